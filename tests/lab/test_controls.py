"""Loading and unloading in the real kernel, and what happens when it goes wrong."""

import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack

import pytest

from mltcp.core.errors import MltcpError, UsageError
from mltcp.ebpf import build
from mltcp.ebpf.congestion_controls import SOURCES, Controls, available
from mltcp.ebpf.libbpf import BpfObject
from tests.lab.controls_under_test import own_controls

pytestmark = pytest.mark.lab
TCP_CONGESTION = 13


@pytest.fixture
def controls():
    with own_controls() as own:
        yield own


@pytest.fixture
def connection():
    """A connected pair of sockets over loopback: (sender, receiver)."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        receiver, _ = server.accept()
    with sender, receiver:
        yield sender, receiver


def use(sender, control):
    sender.setsockopt(socket.IPPROTO_TCP, TCP_CONGESTION, control.encode())


def used(sender):
    return sender.getsockopt(socket.IPPROTO_TCP, TCP_CONGESTION, 16).split(b"\0")[0].decode()


def exchange(sender, receiver, count):
    """Send `count` bytes and wait until the other side has them and their acknowledgement is back."""
    reader = threading.Thread(target=lambda: receive(receiver, count))
    reader.start()
    sender.sendall(bytes(count))
    reader.join()


def receive(receiver, count):
    left = count
    while left:
        left -= len(receiver.recv(min(left, 1 << 16)))


def test_load_is_idempotent_and_unload_leaves_nothing(controls):
    names = controls.names
    assert controls.load(names) == names
    assert controls.load(names) == []
    assert set(names) <= set(available())
    assert controls.unload() == names
    assert not set(names) & set(available())
    assert not controls.root.exists()
    assert controls.unload() == []


def test_unknown_name_says_what_is_allowed(controls):
    with pytest.raises(UsageError, match=controls.names[0]):
        controls.load(["mltcp_vegas"])


def test_shared_maps_stay_until_the_last_control_goes(controls):
    first, second, *_ = controls.names
    controls.load([first, second])
    controls.unload([first])
    assert controls.jobs() == {}
    controls.unload([second])
    with pytest.raises(MltcpError, match="no MLTCP control is loaded"):
        controls.jobs()


def test_a_socket_runs_under_a_loaded_control_and_shows_as_a_flow(controls, connection):
    name = controls.own["mltcp_reno"]
    controls.load([name])
    sender, receiver = connection
    use(sender, name)
    exchange(sender, receiver, 100_000)
    assert used(sender) == name
    (flow,) = [flow for flow in controls.flows() if flow.control == name]
    assert flow.local == "{}:{}".format(*sender.getsockname())
    assert flow.remote == "{}:{}".format(*sender.getpeername())
    assert flow.factor == 1.0


@pytest.mark.parametrize(("server", "client"), [("::1", "::1"), ("::", "127.0.0.1")])
def test_a_socket_of_ipv6_shows_with_its_addresses(controls, server, client):
    name = controls.own["mltcp_reno"]
    controls.load([name])
    family = socket.AF_INET6 if ":" in client else socket.AF_INET
    with ExitStack() as stack:
        try:
            listener = stack.enter_context(
                socket.create_server((server, 0), family=socket.AF_INET6, dualstack_ipv6=server == "::")
            )
        except (OSError, ValueError):
            pytest.skip("no IPv6 on this machine")
        sender = stack.enter_context(socket.socket(family))
        sender.connect((client, listener.getsockname()[1]))
        accepted = stack.enter_context(listener.accept()[0])
        use(accepted, name)
        (flow,) = [flow for flow in controls.flows() if flow.control == name]
        brackets = "[{}]:{}" if family == socket.AF_INET6 else "{}:{}"
        assert flow.local == brackets.format(*sender.getpeername()[:2])
        assert flow.remote == brackets.format(*sender.getsockname()[:2])


def test_unload_refuses_while_flows_use_a_control(controls, connection):
    name = controls.own["mltcp_cubic"]
    controls.load([name])
    use(connection[0], name)
    exchange(*connection, 1000)
    with pytest.raises(MltcpError, match=f"1 flows are using {name}"):
        controls.unload([name])
    assert name in available()


def test_forced_unload_lets_flows_run_out_and_the_name_is_free_again(controls, connection):
    name = controls.own["mltcp_dctcp"]
    controls.load([name])
    use(connection[0], name)
    controls.unload([name], force=True)
    assert name not in available()
    exchange(*connection, 1_000_000)
    assert used(connection[0]) == name
    assert controls.load([name]) == [name]
    exchange(*connection, 1_000_000)


def test_a_name_owned_by_another_program_is_left_alone(controls):
    name = controls.own["mltcp_reno"]
    with BpfObject.open(build.compiled(SOURCES / "reno.bpf.c"), {"mltcp_reno": name}) as foreign:
        foreign.load()
        with foreign.register_struct_ops(name):
            with pytest.raises(
                MltcpError, match=f"{name} is registered by another program .struct_ops map \\d+."
            ):
                controls.load([name])
            assert controls.registration(name).state == "foreign"
            assert controls.unload() == []
            assert name in available()
    assert controls.load([name]) == [name]


@pytest.mark.parametrize("crash_before", ["pin", "register_struct_ops"])
def test_a_crash_while_loading_leaves_nothing_registered(controls, crash_before):
    name = controls.own["mltcp_reno"]
    done = subprocess.run([sys.executable, "-c", _CRASH, str(controls.root), name, crash_before], check=False)
    assert done.returncode == -signal.SIGKILL
    assert name not in available()
    assert controls.registration(name).state == "absent"
    assert controls.load([name]) == [name]
    assert name in available()


_CRASH = """
import os, signal, sys
from pathlib import Path
from mltcp.ebpf import libbpf
from mltcp.ebpf.congestion_controls import Controls

root, name, crash_before = sys.argv[1:]
owner = libbpf.BpfMap if crash_before == "pin" else libbpf.BpfObject
setattr(owner, crash_before, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
Controls(Path(root), {"mltcp_reno": name}).load([name])
"""


def test_a_pin_of_another_version_is_reported(controls):
    """Maps of another layout must not be taken for ours."""
    controls.root.mkdir(parents=True)
    with BpfObject.open(build.compiled(SOURCES / "reno.bpf.c")) as other:
        other.load()
        other.map("mltcp_records").pin(controls.root / "mltcp_jobs")
    try:
        with pytest.raises(MltcpError):
            controls.load([controls.own["mltcp_reno"]])
        assert controls.own["mltcp_reno"] not in available()
    finally:
        (controls.root / "mltcp_jobs").unlink()


def test_two_loads_at_once_register_once(controls):
    name = controls.own["mltcp_cubic"]
    fresh = []
    threads = [
        threading.Thread(target=lambda: fresh.append(Controls(controls.root, controls._rename).load([name])))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(len, fresh)) == [0, 0, 0, 1]
    assert os.path.exists(controls.pin_path(name))
