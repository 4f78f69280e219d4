"""TLS, tokens, and the addresses that the service may listen at."""

import datetime
import os
import shutil
import subprocess

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from mltcp.core.address import Address
from mltcp.core.errors import MltcpError, UsageError
from placement.client.client import Client, RefusedError, ServiceError
from placement.service.protocol.security import Security
from tests.unit.placement.service.serving import serving, two_racks

TOKEN = "a-token-of-some-length"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """Files with a self-signed certificate of localhost and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    directory = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [
            *(
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-nodes",
            ),
            *("-keyout", directory / "key.pem", "-out", directory / "cert.pem", "-days", "2"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    return directory / "cert.pem", directory / "key.pem"


@pytest.fixture
def tokens(tmp_path):
    path = tmp_path / "tokens"
    path.write_text(f"# those of the cluster\n{TOKEN}  # alice\nanother-long-token-123\n")
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("address", ["0.0.0.0:0", "10.1.2.3:7410", "[::]:0", "example.org:1"])
def test_other_hosts_are_not_listened_to_without_tls(address, certificate):
    with pytest.raises(
        UsageError, match="expected unix:/path or a loopback address without --certificate and --key"
    ):
        Security().check(Address.parse(address))
    Security(*certificate).check(Address.parse(address))


@pytest.mark.parametrize("address", ["127.0.0.1:0", "localhost:0", "[::1]:0", "127.9.9.9:1", "unix:/run/s"])
def test_this_host_is_listened_to(address):
    Security().check(Address.parse(address))


@pytest.mark.parametrize(
    "address", ["", "unix:", "unix:relative", "host", "host:", ":1", "h:99999", "unix:/" + "x" * 108]
)
def test_addresses_that_are_none(address):
    with pytest.raises(UsageError):
        Address.parse(address)


def test_half_of_tls_is_refused(certificate):
    with pytest.raises(UsageError, match="expected both or neither"):
        Security(certificate[0]).check(Address.parse("127.0.0.1:0"))


def test_over_tls_only_those_who_trust_the_certificate_are_answered(tmp_path, certificate):
    with serving(tmp_path, address="127.0.0.1:0", security=Security(*certificate), **two_racks()) as address:
        assert int(address.rpartition(":")[2]) > 0
        with Client(address, certificate=certificate[0]) as client:
            assert len(client.status().servers) == 4
        with Client(address) as client, pytest.raises(ServiceError):
            client.clock_ns()


def test_client_certificates_need_tls(certificate):
    with pytest.raises(UsageError, match="--client-ca: expected --certificate and --key too"):
        Security(client_ca=certificate[0]).check(Address.parse("127.0.0.1:0"))
    with pytest.raises(UsageError, match="identity: expected TLS"):
        Client("127.0.0.1:1", identity=certificate[0])


def test_under_mutual_tls_only_clients_with_a_certificate_are_answered(tmp_path, certificate, monkeypatch):
    identity = tmp_path / "identity.pem"
    identity.write_bytes(b"".join(path.read_bytes() for path in certificate))
    security = Security(*certificate, client_ca=certificate[0])
    with serving(tmp_path, address="127.0.0.1:0", security=security, **two_racks()) as address:
        with Client(address, certificate=certificate[0], identity=identity) as client:
            assert len(client.status().servers) == 4
        with Client(address, certificate=certificate[0]) as client, pytest.raises(ServiceError):
            client.clock_ns()
        monkeypatch.setenv("MLTCP_PLACEMENT_IDENTITY", str(identity))
        with Client(address, certificate=certificate[0]) as client:
            assert len(client.status().servers) == 4


def test_without_one_of_the_tokens_nothing_is_answered_but_health(tmp_path, tokens):
    with serving(tmp_path, security=Security(tokens=tokens), **two_racks()) as address:
        for known in (TOKEN, "another-long-token-123"):
            with Client(address, token=known) as client:
                assert len(client.status().servers) == 4
        for unknown in ("", "a-token-of-some-lengt", TOKEN + "x", "# alice"):
            with Client(address, token=unknown) as client:
                with pytest.raises(RefusedError, match="authorization") as refused:
                    client.status()
                assert (refused.value.code, refused.value.field) == ("UNAUTHENTICATED", "authorization")
                with pytest.raises(RefusedError):
                    list(client.attach([]))
        with grpc.insecure_channel(address) as channel:
            reply = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
            assert reply.status == health_pb2.HealthCheckResponse.SERVING


def test_tokens_that_others_can_read_or_guess_are_refused(tokens):
    tokens.chmod(0o644)
    with pytest.raises(UsageError, match="all users have access to the file"):
        Security(tokens=tokens).accepted_tokens()
    tokens.chmod(0o600)
    tokens.write_text("short\n")
    with pytest.raises(UsageError, match="16 characters"):
        Security(tokens=tokens).accepted_tokens()
    tokens.write_text("# none\n")
    with pytest.raises(UsageError, match="one or more tokens of 16 characters"):
        Security(tokens=tokens).accepted_tokens()


def test_the_socket_is_for_its_owner_only_unless_asked_otherwise(tmp_path):
    for mode in (0o600, 0o666):
        with serving(tmp_path, socket_mode=mode) as address:
            assert os.stat(address.removeprefix("unix:")).st_mode & 0o777 == mode


def test_an_address_that_is_taken_is_left_to_its_owner(tmp_path):
    (tmp_path / "other").mkdir()
    with serving(tmp_path) as address:
        with pytest.raises(MltcpError, match="another process does"):
            with serving(tmp_path / "other", address=address):
                pass
        with Client(address) as client:
            assert client.clock_ns() > datetime.datetime(2020, 1, 1).timestamp() * 1e9


def test_the_socket_of_a_killed_service_is_replaced(tmp_path):
    import socket

    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / "s"))
    left.close()
    with serving(tmp_path) as address, Client(address) as client:
        client.clock_ns()
