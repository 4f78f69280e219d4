"""The daemon's socket, its requests and its client: valid and refused requests, permissions and limits."""

import json
import os
import random
import socket
import subprocess
import sys
import threading
import time

import pytest

import mltcp
from mltcp.control.aggressiveness import Aggressiveness, Shape
from mltcp.core.errors import NotAvailableError, UsageError
from mltcp.daemon.client import protocol
from mltcp.daemon.client.client import Client, NoDaemonError, Registration
from mltcp.daemon.client.protocol import MOST_BYTES, DeniedError
from mltcp.daemon.descriptors import workers
from mltcp.daemon.mechanisms import socket as socket_mechanism
from mltcp.pacing.tcp_info import congestion_control, descriptors
from tests.eventually import eventually
from tests.unit.mltcp.daemon.serving import NOBODY, serving

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="another user is needed")


@pytest.fixture
def server(public_directory):
    with serving(public_directory) as running:
        yield running


@pytest.fixture
def client(server):
    with Client(server.path) as made:
        yield made


@pytest.fixture
def connection():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    with ours, theirs:
        yield ours


def raw(server):
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.settimeout(10)
    made.connect(str(server.path))
    return made


def answer(peer, packet, fds=()):
    socket.send_fds(peer, [packet], list(fds))
    return json.loads(peer.recv(MOST_BYTES))


def as_nobody(server, code):
    """The output of a program that another user runs, with a client named `client`."""
    program = (
        "import os; from pathlib import Path; from mltcp.daemon.client.client import *\n"
        f"os.setgid({NOBODY}); os.setuid({NOBODY})\n"
        f"client = Client(Path({str(server.path)!r}))\n{code}"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_job_lives_as_long_as_its_processes(server):
    with Client(server.path) as first, Client(server.path) as second:
        one = first.register(Registration("bert", "a", rank=0, ranks=2))
        two = second.register(Registration("bert", "a", rank=1, ranks=2))
        assert one == two
        (job,) = first.status().jobs
        assert (job.job, job.ranks, job.how, job.user) == ("bert", 2, "none", _user())
        second.close()
        assert [job.ranks for job in _fresh(first).jobs] == [1]
    with Client(server.path) as third:
        assert _fresh(third).jobs == ()


def _user():
    import pwd

    return pwd.getpwuid(os.geteuid()).pw_name


def _fresh(client):
    """A status that is not the one made for somebody a moment ago."""
    time.sleep(0.25)
    return client.status()


def test_jobs_of_one_name_and_other_instances_are_apart(server):
    with Client(server.path) as first, Client(server.path) as second:
        one = first.register(Registration("bert", "a"))
        two = second.register(Registration("bert", "b"))
        assert one.number != two.number


def test_flows_are_taken_and_their_descriptors_given_back(server, client, connection):
    client.register(Registration("bert"))
    client.add_flows([connection.fileno()])  # begins the process that takes descriptors
    before = len(descriptors())
    assert client.add_flows([connection.fileno()] * 3) == ()
    assert len(descriptors()) == before
    assert client.status().jobs[0].flows == 1


def test_a_closed_connection_is_closed_although_it_was_passed(client):
    client.register(Registration("bert"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    client.add_flows([ours.fileno()])
    ours.close()
    theirs.settimeout(5)
    assert theirs.recv(1) == b""
    theirs.close()


def test_a_control_that_is_asked_for_is_set(client, connection):
    client.register(Registration("bert", control="reno"))
    assert client.add_flows([connection.fileno()]) == ()
    assert congestion_control(connection.fileno()) == "reno"


@pytest.mark.parametrize("what", ["file", "udp", "unix", "listener", "pipe", "unconnected"])
def test_what_is_no_tcp_connection_is_refused_and_the_rest_taken(client, connection, what, tmp_path):
    client.register(Registration("bert"))
    (tmp_path / "file").touch()
    kinds = {
        "file": (tmp_path / "file").open,
        "udp": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
        "unix": lambda: socket.socket(socket.AF_UNIX),
        "listener": lambda: socket.create_server(("127.0.0.1", 0)),
        "pipe": lambda: os.fdopen(os.pipe()[0]),
        "unconnected": lambda: socket.socket(),
    }
    with kinds[what]() as other:
        (refused,) = client.add_flows([other.fileno(), connection.fileno()])
    assert refused.position == 0
    assert "expected an established TCP connection" in refused.why
    assert client.status().jobs[0].flows == 1


def test_bad_fields_are_named_with_what_is_allowed(client):
    for fields, expected in [
        (
            {"job": "../x"},
            "job: expected 1 to 31 letters, digits or ._@-, the first a letter or digit, got '../x'",
        ),
        ({}, "job: expected 1 to 31 letters, digits or ._@-, the first a letter or digit, got nothing"),
        ({"job": "a", "rank": -1}, "rank: expected a whole number between 0 and 16777216, got -1"),
        ({"job": "a", "rank": True}, "rank: expected a whole number"),
        ({"job": "a", "slope": "x"}, "slope: expected a number between 0 and 64, got 'x'"),
        ({"job": "a", "function": "cubic"}, "function: expected one of one, linear"),
        ({"job": "a", "control": "nonsense"}, "control: expected one of default, none, reno"),
        ({"job": "a", "instance": "x" * 65}, "instance: expected a string of at most 64 characters"),
    ]:
        with pytest.raises(UsageError, match="mltcpd: ") as raised:
            client.ask("register", **fields)
        assert expected in str(raised.value)
    assert client.status().jobs == ()


def test_a_job_without_an_f_of_its_own_has_the_daemons(server, client):
    server.manager.aggressiveness = Aggressiveness(Shape.QUADRATIC, 1.5, 0.5)
    client.register(Registration("bert"))
    (job,) = client.status().jobs
    assert (job.function, job.slope, job.intercept) == ("quadratic", 1.5, 0.5)


def test_a_function_brings_its_own_constants(server, client):
    server.manager.aggressiveness = Aggressiveness(Shape.QUADRATIC, 1.5, 0.5)
    client.register(Registration("bert", function="remaining", intercept=0.25))
    (job,) = client.status().jobs
    assert (job.function, job.slope, job.intercept) == ("remaining", pytest.approx(16 - 1 / 3), 0.25)


def test_a_control_of_ours_that_is_not_loaded_is_said_to_be_so(client, monkeypatch):
    monkeypatch.setattr(socket_mechanism, "available", lambda: ("reno", "cubic"))  # this host may have it
    with pytest.raises(NotAvailableError, match="mltcp_dctcp is not loaded on this host"):
        client.register(Registration("bert", control="mltcp_dctcp"))


def test_flows_need_a_job_and_descriptors(client, connection):
    with pytest.raises(UsageError, match="has not registered a job"):
        client.add_flows([connection.fileno()])
    client.register(Registration("bert"))
    with pytest.raises(UsageError, match="got none"):
        client.ask("flows")


def test_reported_iterations_are_counted_and_told_to_subscribers(server, client):
    client.register(Registration("bert"))
    with Client(server.path) as watcher:
        records = watcher.records()
        for number in range(7):
            client.report_iteration(number, 0.5 + 0.1 * number, 1000)
        assert [next(records)["number"] for _ in range(7)] == list(range(7))
    status = _fresh(client).jobs[0]
    assert (status.iterations, status.iteration_s) == (7, pytest.approx(1.1))
    assert status.typical_iteration_s == pytest.approx(0.8)
    assert status.best_iteration_s == pytest.approx(0.7)
    assert status.slowdown == pytest.approx(0.8 / 0.7)


@ROOT
def test_a_late_reply_is_not_taken_for_that_to_the_next_request(server):
    with Client(server.path) as registering:
        number = registering.register(Registration("bert")).number
    with Client(server.path) as client:
        client.register(Registration("bert"))
        client._socket.settimeout(0.2)
        held, holding = threading.Event(), threading.Event()

        def hold():
            holding.set()
            held.wait(60)

        server.call_soon(hold)
        holding.wait(60)
        with pytest.raises(NoDaemonError, match="does not answer within"):
            client.iteration()
        held.set()
        # The machine may be too busy for an answer within 0.2 s: what comes late must not be taken for an answer.
        status = eventually(lambda: _answer_in_time(client.status))
    assert [job.job for job in status.jobs] == ["bert"]
    assert status.jobs[0].number > number


def _answer_in_time(ask):
    try:
        return ask()
    except NoDaemonError:
        return None


def test_the_reply_to_a_numbered_request_has_its_number_also_if_it_is_refused(server):
    with raw(server) as peer:
        assert answer(peer, b'{"version": 1, "id": 7, "request": "status"}')["id"] == 7
        refused = answer(peer, b'{"version": 1, "id": 8, "request": "progress"}')
        assert (refused["ok"], refused["id"]) == (False, 8)
        assert "id" not in answer(peer, b'{"version": 1, "request": "status"}')
        assert (
            "id: expected a whole number"
            in answer(peer, b'{"version": 1, "id": true, "request": "x"}')["error"]
        )


def test_a_stranger_sees_that_there_is_a_job_and_no_more(server, client):
    number = client.register(Registration("secret")).number
    seen = as_nobody(server, "print([vars(job) for job in client.status().jobs])")
    assert "'detail': False" in seen
    assert "secret" not in seen
    told = as_nobody(
        server,
        "for act in (client.stop, lambda n: client.change(n, slope=2.0)):\n"
        f"    try: act({number})\n"
        "    except Exception as error: print(type(error).__name__, error)",
    )
    assert told.count("DeniedError") == 2
    assert client.status().jobs[0].slope == 1.75


@ROOT
def test_root_sees_and_stops_everybodys_jobs(server):
    code = "client.register(Registration('theirs'))\nprint(client.status().jobs[0].job)"
    assert as_nobody(server, code) == "theirs"
    program = (
        "import os, sys; from pathlib import Path; from mltcp.daemon.client.client import *\n"
        f"os.setgid({NOBODY}); os.setuid({NOBODY})\n"
        f"client = Client(Path({str(server.path)!r})); print(client.register(Registration('theirs')).number)\n"
        "sys.stdout.flush(); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        number = int(other.stdout.readline())
        with Client(server.path) as root:
            (job,) = _fresh(root).jobs
            assert (job.job, job.user) == ("theirs", "nobody")
            root.change(number, slope=1.0)
            root.stop(number)
            assert _fresh(root).jobs == ()


@ROOT
def test_same_names_of_two_users_are_two_jobs(server, client):
    client.register(Registration("bert", "a"))
    told = as_nobody(server, "print(client.register(Registration('bert', 'a')).number)")
    assert int(told) != client.status().jobs[0].number


def test_a_stranger_is_not_told_whether_a_job_exists(client):
    with pytest.raises(DeniedError, match="has no job 4711"):
        client.stop(4711)


# -- malformed, and too much -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("packet", "expected"),
    [
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 50000, "not JSON"),
        (b"7", "expected a JSON object, got 7"),
        (b"null", "expected a JSON object, got None"),
        (b"{}", "version: expected 1, got None"),
        (b'{"version": 2, "request": "status"}', "version: expected 1, got 2"),
        (b'{"version": 1}', "request: expected one of register, attach"),
        (b'{"version": 1, "request": ["status"]}', "request: expected one of register"),
        (b'{"version": 1, "request": "register", "job": "a", "slope": NaN}', "slope: expected a number"),
        (b'{"version": 1, "request": "register", "job": "a", "gap_s": 1e999}', "gap_s: expected a number"),
        (b'{"version": 1, "request": "register", "job": "a", "rank": ' + b"9" * 6000 + b"}", ""),
        (
            b'{"version": 1, "request": "status"' + b" " * MOST_BYTES + b"}",
            f"message: expected at most {MOST_BYTES} bytes",
        ),
    ],
)
def test_a_malformed_message_gets_an_error_and_the_connection_goes_on(server, packet, expected):
    with raw(server) as peer:
        reply = answer(peer, packet)
        assert reply["ok"] is False
        assert expected in reply["error"]
        assert "\n" not in reply["error"]
        assert answer(peer, b'{"version": 1, "request": "status"}')["ok"] is True


def test_descriptors_with_other_requests_are_refused_and_closed(server):
    before = len(descriptors())
    with raw(server) as peer, open(os.devnull) as null:
        reply = answer(peer, b'{"version": 1, "request": "status"}', [null.fileno()] * 5)
    assert "expected no descriptors, got 5" in reply["error"]
    server.call(lambda: None)
    assert len(descriptors()) <= before + 1  # the server's end of the connection may still be closing


def test_too_many_descriptors_are_refused_and_closed(server):
    with raw(server) as peer, open(os.devnull) as null:
        answer(
            peer, b'{"version": 1, "request": "status"}', [null.fileno()]
        )  # begins the process that takes them
        before = len(descriptors())
        reply = answer(peer, b'{"version": 1, "request": "flows"}', [null.fileno()] * 200)
        assert "descriptors: expected at most 64, got more" in reply["error"]
        assert len(descriptors()) == before


def test_a_peer_that_does_not_read_is_dropped_and_holds_nobody_up(server, client):
    with raw(server) as peer:
        peer.setblocking(False)
        sent = 0
        try:
            while sent < 100_000:
                peer.send(b'{"version": 1, "request": "status"}')
                sent += 1
        except (BlockingIOError, BrokenPipeError, ConnectionResetError):
            pass
        assert client.status().connections >= 1
    assert sent > 0


def test_a_thousand_connections_are_served(server):
    peers = []
    for _ in range(1000):
        peers.append(raw(server))
    with Client(server.path) as client:
        eventually(lambda: client.status().connections == 1001)
        assert answer(peers[-1], b'{"version": 1, "request": "status"}')["ok"] is True
        for peer in peers:
            peer.close()
        eventually(lambda: client.status().connections == 1)


def test_a_packet_in_the_middle_of_which_the_peer_leaves_does_no_harm(server, client):
    with raw(server) as peer:
        peer.send(b'{"version": 1, "request": "status"}')
    assert client.status().pid == os.getpid()


def fuzzed(random_source, number):
    """A message that is nearly one: a valid one with bytes or fields changed, or noise."""
    requests = ["register", "flows", "iteration", "progress", "status", "change", "stop", "subscribe", "x"]
    values = [None, True, -1, 0, 3, 2**70, 1.5, "", "a", "x" * 300, [], {}, [[]], "NaN", "\u0000", "\ud800"]
    names = ["job", "instance", "rank", "ranks", "control", "function", "slope", "intercept", "total_bytes"]
    names += ["gap_s", "attach", "number", "duration_s", "sent_bytes", "position"]
    kind = random_source.randrange(4)
    if kind == 0:
        return random_source.randbytes(random_source.randrange(1, 2000))
    message = {"version": 1, "request": random_source.choice(requests)}
    for _ in range(random_source.randrange(6)):
        message[random_source.choice(names)] = random_source.choice(values)
    # Nobody's processes are moved about, and nobody subscribes for long.
    message.pop("attach", None)
    packet = bytearray(json.dumps(message).encode())
    if kind == 1:
        for _ in range(random_source.randrange(1, 5)):
            packet[random_source.randrange(len(packet))] = random_source.randrange(256)
    if kind == 2:
        del packet[random_source.randrange(1, len(packet)) :]
    return bytes(packet)


def test_ten_thousand_strange_messages_move_nothing(server, connection, caplog):
    source = random.Random(4)
    with Client(server.path) as owner:
        number = owner.register(Registration("bystander")).number
        owner.add_flows([connection.fileno()])
        before = owner.status().jobs[0]
        fds = len(descriptors())
        peer = raw(server)
        for count in range(10_000):
            if count % 100 == 0:
                peer.close()
                peer = raw(server)
            attached = [0, connection.fileno(), peer.fileno()][: source.randrange(4)]
            packet = fuzzed(source, number)
            reply = answer(peer, packet, attached)
            while "ok" not in reply:
                reply = json.loads(peer.recv(MOST_BYTES))
            if not reply["ok"]:
                assert reply["kind"] in protocol.KINDS
                assert "the daemon failed" not in reply["error"], packet
        peer.close()
        mine = [job for job in _fresh(owner).jobs if job.number == number]
        assert mine == [before] or mine[0].flows == before.flows
        assert len(descriptors()) <= fds + 1


def test_no_daemon_is_one_line(tmp_path):
    with pytest.raises(NoDaemonError, match=r"^no mltcpd answers at .*sock: No such file"):
        Client(tmp_path / "sock")
    (tmp_path / "file").touch()
    with pytest.raises(NoDaemonError, match=r"^no mltcpd answers at .*: Connection refused"):
        Client(tmp_path / "file")


def test_a_daemon_that_goes_away_is_noticed(tmp_path):
    with serving(tmp_path) as running:
        client = Client(running.path)
        client.status()
    with pytest.raises(NoDaemonError, match=r"closed the connection|is gone"):
        client.status()
    client.close()


def test_the_client_needs_nothing_but_the_standard_library():
    program = (
        "import sys; import mltcp.daemon.client.client, mltcp.daemon.client.membership\n"
        "foreign = {name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names\n"
        "print(sorted(name for name in foreign if not name.startswith('__')))"
    )
    done = subprocess.run([sys.executable, "-S", "-c", program], capture_output=True, text=True, cwd=_root())
    assert done.stdout.strip() == "['mltcp']", done.stderr


def _root():
    return os.path.dirname(os.path.dirname(mltcp.__file__))


def test_descriptors_do_not_block_where_it_is_the_daemon_that_is_late(
    server, client, connection, monkeypatch
):
    client.register(Registration("bert"))
    assert client.add_flows([connection.fileno()]) == ()  # begins the process that takes descriptors
    monkeypatch.setattr(workers, "LONGEST_S", 1.0)
    tell = workers._Worker.tell

    def tell_and_be_late(worker, *arguments):
        told = tell(worker, *arguments)
        worker._loop.call_soon(time.sleep, 2.0)
        return told

    monkeypatch.setattr(workers._Worker, "tell", tell_and_be_late)
    assert client.add_flows([connection.fileno()]) == ()


def test_descriptors_do_not_block_where_the_process_that_takes_them_starts_late(
    server, connection, monkeypatch, tmp_path
):
    late = tmp_path / "python"
    late.write_text(f'#!/bin/sh\nsleep 2.5\nexec {sys.executable} "$@"\n')
    late.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(late))
    monkeypatch.setattr(workers, "LONGEST_START_S", 60.0)  # of a busy machine; the other time stays 2 s
    with Client(server.path, timeout_s=60) as client:
        client.register(Registration("bert"))
        assert client.add_flows([connection.fileno()]) == ()
