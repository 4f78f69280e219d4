"""Loading and unloading in the real kernel, and what happens when it goes wrong."""

import json
import signal
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack

import pytest

from mltcp.core.errors import MltcpError, UsageError
from mltcp.ebpf import build, congestion_controls
from mltcp.ebpf.congestion_controls import SHARED_MAPS, SOURCES, Controls, available
from mltcp.ebpf.jobs import remove_stale
from mltcp.ebpf.libbpf import BpfObject
from mltcp.ebpf.registrations import hold, release
from tests.eventually import eventually
from tests.lab.controls_under_test import ANOTHER_PROGRAMS, own_controls

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
    assert controls.in_kernel() == []
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
    with pytest.raises(MltcpError, match="no MLTCP control of this version is loaded"):
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
    name = controls.own["mltcp_cubic"]
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
    renamed = {"mltcp_reno": name, **ANOTHER_PROGRAMS}
    with BpfObject.open(build.compiled(SOURCES / "reno.bpf.c"), renamed) as foreign:
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


@pytest.mark.parametrize("crash_before", ["bind", "register_struct_ops"])
def test_a_crash_while_loading_leaves_nothing_registered(controls, crash_before):
    name = controls.own["mltcp_reno"]
    done = subprocess.run([sys.executable, "-c", _CRASH, name, crash_before], check=False)
    assert done.returncode == -signal.SIGKILL
    assert name not in available()
    assert controls.registration(name).state == "absent"
    assert controls.load([name]) == [name]
    assert name in available()


_CRASH = """
import os, signal, sys
from mltcp.ebpf import libbpf
from mltcp.ebpf.congestion_controls import Controls

name, crash_before = sys.argv[1:]
setattr(libbpf.BpfObject, crash_before, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
Controls({"mltcp_reno": name}).load([name])
"""


@pytest.mark.parametrize("maps", ["looked for", "opened"])
def test_controls_that_another_program_unloads_meanwhile_are_none(controls, monkeypatch, maps):
    name = controls.own["mltcp_reno"]
    controls.load([name])
    act, taken = getattr(*UNLOADED_BEFORE[maps]), []

    def unload_before(*arguments):
        if not taken:
            taken.append(name)
            assert controls.unload([name]) == taken
        return act(*arguments)

    monkeypatch.setattr(*UNLOADED_BEFORE[maps], unload_before)
    remove_stale(controls)
    assert taken == [name]


UNLOADED_BEFORE = {"looked for": (Controls, "_shared_ids"), "opened": (congestion_controls, "open_map")}


def test_two_loads_at_once_register_once(controls):
    name = controls.own["mltcp_cubic"]
    fresh = []
    threads = [
        threading.Thread(target=lambda: fresh.append(Controls(controls._rename).load([name])))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(len, fresh)) == [0, 0, 0, 1]
    assert controls.loaded() == [name]


def maps_of(controls, name):
    (control,) = [each for each in controls.in_kernel() if each.name == name]
    return {shared: control.maps[shared] for shared in SHARED_MAPS}


def test_controls_that_are_loaded_one_by_one_share_their_maps(controls):
    """Also the plain one, whose programs use none of them."""
    plain = controls.own["bpf_dctcp"]
    controls.load([plain])
    controls.load([controls.own["mltcp_cubic"], controls.own["mltcp_reno"]])
    first, *others = (maps_of(controls, name) for name in controls.loaded())
    assert len(others) == 2
    assert all(maps == first for maps in others)


def test_a_process_that_registers_beside_another_one_takes_its_own_back(controls, monkeypatch):
    """As two containers do at once, which no lock of a file can keep apart: the second look finds the other's maps."""
    first, second = controls.own["mltcp_reno"], controls.own["mltcp_cubic"]
    looked = []

    def at_the_first_look(self):
        found = kept(self)
        if not looked:
            looked.append(found)
            Controls(controls._rename).load([first])
        return found

    kept = Controls._shared_ids
    monkeypatch.setattr(Controls, "_shared_ids", at_the_first_look)
    assert controls.load([second]) == [second]
    assert looked == [{}]
    assert maps_of(controls, first) == maps_of(controls, second)


def test_users_are_counted_in_all_network_namespaces_without_reading_a_map(controls, connection):
    name = controls.own["mltcp_reno"]
    controls.load([name])
    assert controls.registration(name).users == 0
    for end in connection:
        use(end, name)
    assert controls.registration(name).users == 2
    connection[0].close()
    connection[1].close()
    # Their last packets are handled by whatever processor has the time.
    eventually(lambda: controls.registration(name).users == 0)


def test_what_only_its_sockets_keep_is_told_and_gone_with_the_last_one(controls, connection):
    name = controls.own["mltcp_reno"]
    controls.load([name])
    use(connection[0], name)
    controls.unload([name], force=True)
    (kept,) = controls.in_kernel()
    assert (kept.name, kept.registered, kept.users) == (name, False, 1)
    use(connection[0], "cubic")
    assert controls.in_kernel() == []


def test_what_is_held_is_known_and_can_be_unloaded_when_it_cannot_be_looked_for(controls, monkeypatch):
    name = controls.own["mltcp_reno"]
    controls.load([name])
    hold(controls.names)
    try:
        monkeypatch.setattr("mltcp.ebpf.registrations.all_maps", None)
        assert controls.loaded() == [name]
        assert controls.jobs() == {}
        assert controls.unload() == [name]
        assert controls.loaded() == []
        assert name not in available()
    finally:
        release()


def in_a_mount_namespace_of_its_own(script, *arguments):
    """Run Python as in `ip netns exec` or a container: with a /sys of its own, in which there is no bpffs."""
    inside = 'mount -t sysfs sysfs /sys && exec "$@"'
    command = [
        "unshare",
        "--mount",
        "--net",
        "sh",
        "-c",
        inside,
        "sh",
        sys.executable,
        "-c",
        script,
        *arguments,
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


_ACT = """
import json, sys
from mltcp.ebpf.congestion_controls import Controls

rename, act, *arguments = sys.argv[1:]
controls = Controls(json.loads(rename))
print(*getattr(controls, act)(arguments))
print(*(one.state for one in controls.registrations(arguments)))
"""


def test_a_control_is_known_used_and_unloaded_whatever_mount_namespace_loaded_it(controls):
    name, rename = controls.own["mltcp_dctcp"], json.dumps(controls.own)
    assert in_a_mount_namespace_of_its_own(_ACT, rename, "load", name) == [name, "loaded"]
    assert controls.registration(name).state == "loaded"
    assert in_a_mount_namespace_of_its_own(_ACT, rename, "load", name) == ["loaded"]  # not again
    assert controls.load([name]) == []
    assert in_a_mount_namespace_of_its_own(_ACT, rename, "unload", name) == [name, "absent"]
    assert controls.registration(name).state == "absent"
    in_a_mount_namespace_of_its_own(_ACT, rename, "load", name)
    assert controls.unload([name]) == [name]


def test_a_read_only_bpffs_and_run_do_not_matter(controls):
    name = controls.own["mltcp_reno"]
    inside = 'mount -t tmpfs -o ro none /run && mount -t tmpfs -o ro none /sys/fs/bpf && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", inside, "sh", sys.executable, "-c", _ACT]
    done = subprocess.run(
        [*command, json.dumps(controls.own), "load", name], check=False, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    assert controls.unload([name]) == [name]
