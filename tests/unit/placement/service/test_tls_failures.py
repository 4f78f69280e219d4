"""What a client says when TLS between it and the service fails: the reason, in one line."""

import shutil
import socket
import ssl
import subprocess
import threading
from contextlib import contextmanager

import pytest

from mltcp.core.address import free_port
from placement.client.client import Client, ServiceError
from placement.service.protocol.security import Security
from tests.unit.placement.service.serving import serving, two_racks


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """Makes self-signed certificates: a name, and alternative names; returns the files of certificate and key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    directory = tmp_path_factory.mktemp("tls")

    def in_year(name, names, year):
        """Sign a certificate again, for one year."""
        folder = directory / f"{name}.ca"
        folder.mkdir()
        (folder / "index").touch()
        (folder / "conf").write_text(
            f"[ca]\ndefault_ca=own\n[own]\ndatabase={folder}/index\nnew_certs_dir={folder}\nrand_serial=yes\n"
            "default_md=sha256\npolicy=any\ncopy_extensions=copy\n[any]\ncommonName=supplied\n"
        )
        key, certificate = directory / f"{name}.key", directory / f"{name}.pem"
        subprocess.run(
            [
                *("openssl", "req", "-new", "-key", key, "-out", folder / "request"),
                *("-subj", f"/CN={name}", "-addext", f"subjectAltName={names}"),
            ],
            check=True,
            capture_output=True,
        )
        times = ("-startdate", f"{year}0101000000Z", "-enddate", f"{year}1231000000Z")
        files = ("-keyfile", key, "-in", folder / "request", "-out", certificate, "-config", folder / "conf")
        subprocess.run(
            ["openssl", "ca", "-selfsign", "-batch", "-notext", *times, *files],
            check=True,
            capture_output=True,
        )

    def make(name, names="DNS:localhost,IP:127.0.0.1", year=None):
        certificate, key = directory / f"{name}.pem", directory / f"{name}.key"
        kind = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        subject = ("-subj", f"/CN={name}", "-addext", f"subjectAltName={names}")
        subprocess.run(
            ["openssl", "req", "-x509", *kind, *subject, "-keyout", key, "-out", certificate],
            check=True,
            capture_output=True,
        )
        if year is not None:
            in_year(name, names, year)
        (directory / f"{name}.identity").write_bytes(certificate.read_bytes() + key.read_bytes())
        return certificate, key

    return make


def said(address, **connection):
    """What a client says that cannot reach the service."""
    with Client(address, **connection) as client, pytest.raises(ServiceError) as refused:
        client.clock_ns()
    assert "\n" not in str(refused.value)
    assert str(refused.value).startswith(f"{address}: ")
    return str(refused.value).removeprefix(f"{address}: ")


@contextmanager
def secured(directory, *files, **further):
    security = Security(*files, **further)
    with serving(directory, address="127.0.0.1:0", security=security, **two_racks()) as address:
        yield address


def test_what_a_certificate_lacks_is_told(tmp_path, certificates):
    right = certificates("right")
    for name, made, trusted, expected in (
        (
            "elsewhere",
            certificates("elsewhere", "DNS:gpu7.example,IP:10.0.0.7"),
            None,
            "is not for 127.0.0.1, but for",
        ),
        ("expired", certificates("expired", year=2020), None, "has expired"),
        ("early", certificates("early", year=2099), None, "is not valid yet"),
        ("unknown", certificates("unknown"), right[0], f"is of no authority in {right[0]}"),
    ):
        (tmp_path / name).mkdir(mode=0o700)
        with secured(tmp_path / name, *made) as address:
            assert expected in (text := said(address, certificate=trusted or made[0]))
            if name == "elsewhere":
                assert "gpu7.example, 10.0.0.7" in text


def test_tls_on_one_side_only_is_told(tmp_path, certificates):
    certificate, key = certificates("one-side")
    with serving(tmp_path, address="127.0.0.1:0", **two_racks()) as address:
        assert said(address, certificate=certificate) == (
            "the service there does not answer in TLS: try without --ca"
        )
    with secured(tmp_path, certificate, key) as address:
        assert said(address) == "the service there expects TLS (--ca)"


def test_what_mutual_tls_lacks_is_told(tmp_path, certificates):
    ours, other = certificates("ours"), certificates("other")
    with secured(tmp_path, *ours, client_ca=ours[0]) as address:
        assert said(address, certificate=ours[0]) == (
            "the service there expects a certificate of the client (--identity)"
        )
        identity = other[0].with_suffix(".identity")
        assert said(address, certificate=ours[0], identity=identity) == (
            f"the service there does not accept the certificate in {identity}: it is expired, or of another authority"
        )
        assert said(address) == "the service there expects TLS (--ca)"


def test_files_without_certificates_are_told(tmp_path, certificates):
    (tmp_path / "none.pem").write_text("none\n")
    certificate, key = certificates("files")
    with secured(tmp_path, certificate, key) as address:
        assert "expected certificates of authorities" in said(address, certificate=tmp_path / "none.pem")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of versions that are old on purpose
def test_versions_that_have_nothing_in_common_are_told(certificates):
    """Of a server that speaks TLS 1.1 at most."""
    certificate, key = certificates("old")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                try:
                    context.wrap_socket(connection, server_side=True).close()
                except OSError:
                    connection.close()

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert "speaks no version of TLS" in said(address, certificate=certificate)
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


def test_an_address_without_a_service_is_told(certificates):
    certificate, _ = certificates("nobody")
    address = f"127.0.0.1:{free_port()}"
    assert said(address) == "no placement service answers there: connection refused"
    assert said(address, certificate=certificate) == "no placement service answers there: connection refused"
