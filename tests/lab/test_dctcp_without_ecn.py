"""A connection whose peer did not negotiate ECN is Reno's, and its packets do not say that it is capable of ECN."""

import contextlib
import socket
import struct
from pathlib import Path

import pytest

from bench.lab.network import namespaces
from mltcp.control.aggressiveness import Aggressiveness
from mltcp.ebpf.jobs import attached
from mltcp.ebpf.layout import KernelJob
from tests.lab.controls_under_test import own_controls
from tests.lab.test_windows import in_process

pytestmark = pytest.mark.lab
_LOOPBACK, _RTAX_CC, _ALL = 1, "cc_algo", 0x0003
_IP_HEADER, _ECN_BITS, _ETHERNET = struct.Struct("!BBHHHBBHII"), 3, 14
SYSCTLS = Path("/proc/sys/net/ipv4")


@pytest.fixture(scope="module")
def controls():
    with own_controls() as own:
        names = [own.own[name] for name in ("mltcp_reno", "mltcp_dctcp", "bpf_dctcp")]
        own.load(names)
        own.allow_users(names)  # else no namespace takes them for its default
        yield own


def connection(way, control, receiver_ecn):
    """Send to a Reno listener from a socket that got the control in this way (or is of the cgroup that is named).

    Returns the control that the socket has then, and the ECN bits of the packets with data.
    """

    def act(route):
        route.link("set", index=_LOOPBACK, state="up")
        (SYSCTLS / "tcp_ecn").write_text(receiver_ecn)
        if way == "sysctl":
            (SYSCTLS / "tcp_congestion_control").write_text(control)
        if way == "route":
            # Of the table of local addresses, in which 127.0.0.0/8 is found before all others.
            route.route(
                "add",
                dst="127.0.0.9/32",
                oif=_LOOPBACK,
                table=255,
                scope=254,
                type="local",
                metrics={_RTAX_CC: control},
            )
        return sent(way, control)

    return namespaces.in_scratch(act)


def sent(way, control):
    with contextlib.ExitStack() as stack:
        sniffer = stack.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL)))
        sniffer.bind(("lo", 0))
        sniffer.settimeout(10)
        server = stack.enter_context(socket.socket())
        if way != "listener":
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
        elif control:
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control.encode())
        server.bind(("127.0.0.9", 0))
        server.listen()
        if way == "cgroup":
            Path(control, "cgroup.procs").write_text("0")
        client = stack.enter_context(socket.socket())
        if way == "listener":
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
        if way == "before":
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control.encode())
        client.bind(("127.0.0.1", 0))  # the way back is none of the route's
        client.connect(server.getsockname())
        accepted, _ = server.accept()
        stack.enter_context(accepted)
        if way == "after":
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control.encode())
        sender, receiver = (accepted, client) if way == "listener" else (client, accepted)
        for _ in range(20):
            sender.sendall(bytes(500))
            receiver.recv(500)
        name = sender.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).split(b"\0")[0].decode()
        return name, ecn_bits(sniffer, sender.getsockname()[1], 20)


def ecn_bits(sniffer, port, count):
    """The ECN bits of the first packets with data that were sent from a port."""
    found = []
    while len(found) < count:
        frame, address = sniffer.recvfrom(65536)
        packet = frame[_ETHERNET:]
        header = _IP_HEADER.unpack_from(packet)
        tcp = packet[(header[0] & 15) * 4 :]
        has_data = header[2] - (header[0] & 15) * 4 - (tcp[12] >> 4) * 4 > 0
        if address[2] == socket.PACKET_OUTGOING and has_data and struct.unpack_from("!H", tcp)[0] == port:
            found.append(header[1] & _ECN_BITS)
    return found


@pytest.mark.parametrize("receiver_ecn", ["0", "2"])
@pytest.mark.parametrize("way", ["before", "after", "sysctl", "route"])
@pytest.mark.parametrize(
    ("control", "becomes"), [("mltcp_dctcp", "mltcp_reno"), ("bpf_dctcp", "reno")], ids=["mltcp", "base"]
)
def test_it_is_given_to_reno(controls, control, becomes, way, receiver_ecn):
    name, bits = connection(way, controls.own[control], receiver_ecn)
    assert name == controls.own.get(becomes, becomes)
    assert set(bits) == {0}


def test_a_connection_with_ecn_keeps_dctcp(controls):
    name, bits = connection("listener", controls.own["mltcp_dctcp"], "1")
    assert name == controls.own["mltcp_dctcp"]
    assert set(bits) == {2}


def test_a_listener_whose_client_asks_for_no_ecn(controls):
    name, bits = connection("listener", controls.own["mltcp_dctcp"], "0")
    assert name == controls.own["mltcp_reno"]
    assert set(bits) == {0}


@pytest.mark.parametrize("receiver_ecn", ["0", "2"])
@pytest.mark.parametrize("mltcp", [True, False])
def test_a_program_of_a_job_that_sends_to_one_outside(controls, mltcp, receiver_ecn):
    """The control is set before the SYN, when nothing is negotiated yet."""
    control = controls.own["mltcp_dctcp" if mltcp else "bpf_dctcp"]
    with attached(KernelJob("outward", Aggressiveness()), control, controls) as place:
        name, bits = in_process(lambda: connection("cgroup", str(place.cgroup), receiver_ecn))
    assert name == (controls.own["mltcp_reno"] if mltcp else "reno")
    assert set(bits) == {0}


def test_without_mltcp_reno_it_is_plain_reno():
    with own_controls() as own:
        own.load([own.own["mltcp_dctcp"]])
        name, bits = connection("before", own.own["mltcp_dctcp"], "2")
    assert name == "reno"
    assert set(bits) == {0}
