"""Descriptors that block whoever looks at them or closes them: they hold up their own user, and nobody else."""

import json
import os
import socket
import struct
import subprocess
import sys
from contextlib import ExitStack, contextmanager, suppress

import pytest

from mltcp.core.errors import MltcpError
from mltcp.daemon.client.client import Client, Registration
from mltcp.daemon.descriptors import worker
from mltcp.daemon.descriptors.workers import MOST_OF_USER
from mltcp.daemon.jobs.job_table import Limits
from mltcp.pacing.tcp_info import descriptors
from tests.eventually import eventually
from tests.unit.mltcp.daemon.serving import NOBODY, serving
from tests.unit.mltcp.daemon.silent_file_system import mounted

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="another user and a mount are needed")
_LINGER = struct.pack("ii", 1, 600)


@pytest.fixture
def server(public_directory):
    with serving(public_directory) as running:
        yield running


@contextmanager
def connection():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    with ours, theirs:
        yield ours, theirs


def fill(ours):
    """Send until the other end's window is full, so that a close has to linger."""
    ours.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            ours.send(bytes(1 << 20))


def pass_without_waiting(server, descriptor, request="flows"):
    """A connection of this user on which a request with a descriptor was sent."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.settimeout(60)
    made.connect(str(server.path))
    made.send(b'{"version": 1, "request": "register", "job": "blocks"}')
    assert json.loads(made.recv(1 << 16))["ok"]
    socket.send_fds(made, [b'{"version": 1, "request": "%s"}' % request.encode()], [descriptor])
    return made


def serves_another_user(server, connection_of_other):
    """Whether the daemon answers another user, with and without descriptors."""
    program = (
        "import os, socket, sys; from pathlib import Path; from mltcp.daemon.client.client import *\n"
        f"os.setgid({NOBODY}); os.setuid({NOBODY})\n"
        f"client = Client(Path({str(server.path)!r}))\n"
        "client.register(Registration('other'))\n"
        f"print(client.add_flows([{connection_of_other.fileno()}]), len(client.status().jobs) >= 1)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        pass_fds=[connection_of_other.fileno()],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.strip() == "() True", done.stderr


# Another process has the file: whatever is started by one that has it would have to close it first.
PASSES_A_FILE = """
import os, socket, sys
file = os.open(sys.argv[2], os.O_RDONLY)
peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
peer.connect(sys.argv[1])
peer.send(b'{"version": 1, "request": "register", "job": "blocks"}')
peer.recv(1 << 16)
socket.send_fds(peer, [sys.argv[3].encode()], [file])
print(peer.recv(1 << 16).decode(), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("name", ["flows", "status", "nonsense"])
def test_a_file_that_is_never_closed_holds_up_its_own_user_only(server, tmp_path, caplog, name):
    place = tmp_path / "silent"
    place.mkdir()
    request = f'{{"version": 1, "request": "{name}"}}'
    arguments = [sys.executable, "-c", PASSES_A_FILE, str(server.path), str(place / "file"), request]
    with connection() as (good, _):
        with mounted(place):
            passing = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            answer = json.loads(passing.stdout.readline())
            assert not answer["ok"] or answer["refused"]
            serves_another_user(server, good)
            with Client(server.path, timeout_s=60) as own:
                own.register(Registration("own"))
                assert len(own.status().jobs) >= 2
                with pytest.raises(MltcpError, match=r"descriptors: one that root has passed blocks"):
                    own.add_flows([good.fileno()])
        # The file system is gone, which ends all waits.
        passing.communicate(timeout=60)
        with Client(server.path, timeout_s=60) as own:
            own.register(Registration("own"))
            eventually(lambda: _is_taken(own, good))
        # Its close failed when the file system went away, which ends nothing but that file.
        assert "has ended" not in caplog.text


def _is_taken(client, flow):
    with suppress(MltcpError):
        return client.add_flows([flow.fileno()]) == ()
    return False


def test_a_socket_that_lingers_holds_up_its_own_user_only(server):
    with connection() as (ours, theirs), connection() as (good, _):
        fill(ours)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)
        peer = pass_without_waiting(server, ours.fileno())
        # The daemon's copy is the last one from here on; how far the daemon is by now is left to chance.
        os.close(ours.detach())
        serves_another_user(server, good)
        with Client(server.path, timeout_s=60) as own:
            own.register(Registration("own"))
            assert len(own.status().jobs) >= 2
        peer.close()
        theirs.close()


# Another process has the connection, too: what the daemon starts here would have to close it first.
PASSES_AND_CLOSES = """
import json, os, socket, sys
from contextlib import suppress
ours = socket.create_connection(("127.0.0.1", int(sys.argv[2])))
ours.setblocking(False)
with suppress(BlockingIOError):
    while True:
        ours.send(bytes(1 << 20))
ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes.fromhex(sys.argv[3]))
peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
peer.connect(sys.argv[1])
peer.send(b'{"version": 1, "request": "register", "job": "blocks"}')
peer.recv(1 << 16)
# With a reply that is not read, the next thing that the daemon hears of this connection is that it was reset.
peer.send(b'{"version": 1, "request": "status"}')
peer.recv(1, socket.MSG_PEEK)
peer.setblocking(False)
for _ in range(20):
    with suppress(BlockingIOError):
        socket.send_fds(peer, [b'{"version": 1, "request": "flows"}'], [ours.fileno()])
peer.close()
print("closed", flush=True)
"""


def test_what_waits_on_a_connection_that_its_peer_has_closed_blocks_nobody(server):
    """The daemon closes its end with packets unread: what they carry is then closed, too."""
    with connection() as (good, _), socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        command = [sys.executable, "-c", PASSES_AND_CLOSES, str(server.path), port, _LINGER.hex()]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as peer:
            theirs, _ = listener.accept()
            assert peer.stdout.readline() == "closed\n"
            serves_another_user(server, good)
            theirs.close()
    eventually(lambda: _user_has_no_connection(server))


def _user_has_no_connection(server):
    return server.call(lambda: server.server.connections) == 0


def test_the_daemon_itself_has_no_more_descriptors_afterwards(server):
    with Client(server.path) as first, connection() as (good, _):
        first.register(Registration("first"))
        first.add_flows([good.fileno()])
    eventually(lambda: _user_has_no_connection(server))
    before = len(descriptors())
    for _ in range(3):
        with Client(server.path) as client, connection() as (good, _):
            client.register(Registration("bert"))
            assert client.add_flows([good.fileno()] * 3) == ()
    eventually(lambda: _user_has_no_connection(server))
    assert len(descriptors()) <= before


def test_a_user_who_comes_again_and_again_with_descriptors_that_block_has_few_processes(server):
    with ExitStack() as stack:
        for _ in range(4):
            ours, _ = stack.enter_context(connection())
            fill(ours)
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)
            peer = pass_without_waiting(server, ours.fileno())
            os.close(ours.detach())
            peer.close()
            eventually(lambda: server.call(lambda: server.server.connections) == 0)
            assert server.call(lambda: server.workers.count) <= 1 + MOST_OF_USER


def test_accounts_without_a_name_have_few_processes_and_others_are_served(public_directory, monkeypatch):
    monkeypatch.setattr("mltcp.daemon.descriptors.workers.IDLE_S", 0.0)
    with (
        serving(public_directory, Limits(workers=4)) as server,
        connection() as (good, _),
        ExitStack() as stack,
    ):
        for uid in (*range(300_001, 300_006), NOBODY, 0):
            os.seteuid(uid)
            try:
                client = stack.enter_context(Client(server.path, timeout_s=60))
            finally:
                os.seteuid(0)
            client.register(Registration("job"))
            assert client.add_flows([good.fileno()]) == ()
            assert server.call(lambda: server.workers.count) <= 8
        assert server.call(lambda: server.server.connections) == 7
        eventually(lambda: server.call(lambda: server.workers.count) == 0)


def test_where_all_processes_are_busy_accounts_without_a_name_are_refused_before_others(public_directory):
    with (
        serving(public_directory, Limits(workers=4)) as server,
        connection() as (good, _),
        ExitStack() as stack,
    ):

        def user(uid):
            os.seteuid(uid)
            try:
                client = stack.enter_context(Client(server.path, timeout_s=60))
            finally:
                os.seteuid(0)
            client.register(Registration("job"))
            return client

        for uid in (300_001, 300_002):
            user(uid).add_flows([good.fileno()])
        server.call(
            lambda: [each.held.add(0) for each in server.workers._workers.values()]
        )  # as if they were busy
        with pytest.raises(MltcpError, match=r"2 processes already take those of users.*limits\.workers"):
            user(300_003).add_flows([good.fileno()])
        assert user(NOBODY).add_flows([good.fileno()]) == ()
        assert user(0).add_flows([good.fileno()]) == ()


def test_a_worker_whose_daemon_is_killed_meanwhile_ends_without_a_word():
    """Its standard error is the daemon's log, in which a traceback would look like a fault of the next daemon."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client, served = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, client, served:
        client.send(b"{}")
        socket.send_fds(ours, [json.dumps({"do": "look", "task": 1}).encode()], [served.fileno()])
        ours.close()
        command = [sys.executable, "-P", "-m", worker.__name__, str(theirs.fileno()), "-1"]
        ended = subprocess.run(
            command, pass_fds=[theirs.fileno()], capture_output=True, timeout=120, check=False
        )
    assert (ended.returncode, ended.stderr) == (0, b"")
