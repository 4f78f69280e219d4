"""A gate server over its sockets: admissions, and disconnection of peers that violate the protocol."""

import contextlib
import json
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.lab.programs import gate_process
from collectives.gate import gate as gate_channel
from mltcp.core.address import Address
from mltcp.core.errors import MltcpError, UsageError
from mltcp.core.trusted_directory import UnsafeDirectoryError
from placement.gate import gatekeeper, messages
from placement.gate import server as gate_server
from placement.gate.messages import GateJob, job_document, job_from, links_from, load_links
from placement.gate.server import GateConfiguration, GateServer
from tests.eventually import eventually

WAIT_S = 20.0


class Rank:
    """A rank's connection, written in the bytes of the protocol."""

    def __init__(self, address, job=None, rank=0, **hello):
        family = socket.AF_UNIX if address.path else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        self.socket.settimeout(WAIT_S)
        self.socket.connect(os.fspath(address.path) if address.path else (address.host, address.port))
        self.received = bytearray()
        if job is not None:
            self.send_json(messages.HELLO, version=1, job=job, instance="run", rank=rank, **hello)
            self.welcome = json.loads(self.expect(messages.WELCOME))

    def send(self, kind, body=b""):
        self.socket.sendall(messages.message(kind, body))

    def send_json(self, kind, **document):
        self.socket.sendall(messages.json_message(kind, document))

    def ask(self, number=1, nbytes=1 << 20, size=1, iterations=0):
        self.send(messages.ASK, messages.ASK_BODY.pack(7, number, nbytes, size, iterations))

    def done(self, number=1):
        self.send(messages.DONE, messages.OPERATION.pack(7, number))

    def take(self):
        """The next message other than WAIT."""
        while True:
            for kind, body in messages.take_messages(self.received):
                if kind != messages.WAIT:
                    return kind, body
            try:
                more = self.socket.recv(4096)
            except ConnectionResetError:  # the gate has not read all that was sent to it
                more = b""
            if not more:
                return None, b""
            self.received += more

    def expect(self, kind):
        found, body = self.take()
        assert found == kind, (found, body)
        return body

    def may_go(self, number=1):
        assert self.expect(messages.GO) == messages.OPERATION.pack(7, number)

    def refused(self):
        text = self.expect(messages.REFUSED).decode()
        assert self.take() == (None, b"")
        return text

    def status(self):
        self.send(messages.STATUS)
        return json.loads(self.expect(messages.WELCOME))


@contextlib.contextmanager
def serving(address, **configuration):
    server = GateServer(GateConfiguration(address, **{"policy": "srsf-1", **configuration}))
    server.start()
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def address(tmp_path):
    return Address(path=tmp_path / "gate.sock")


@pytest.fixture
def server(address):
    with serving(address) as found:
        yield found


def test_both_ends_speak_of_the_same_messages():
    for name in ("VERSION", "HELLO", "ASK", "DONE", "WELCOME", "GO", "WAIT", "REFUSED"):
        assert getattr(gate_channel, name) == getattr(messages, name)
    ask = gate_channel._ASK.pack(gate_channel.ASK, messages.ASK_BODY.size, 1, 2, 3, 4, 5)
    assert ask == messages.message(messages.ASK, messages.ASK_BODY.pack(1, 2, 3, 4, 5))
    done = gate_channel._DONE.pack(gate_channel.DONE, messages.OPERATION.size, 1, 2)
    assert done == messages.message(messages.DONE, messages.OPERATION.pack(1, 2))


@pytest.mark.slow
def test_one_job_waits_for_the_other(server, address):
    a, b = Rank(address, "a"), Rank(address, "b")
    assert a.welcome == {"policy": "srsf-1"}
    a.ask()
    a.may_go()
    b.ask()
    assert [(job["job"], job["sending"], job["waiting"]) for job in b.status()["jobs"]] == [
        ("a", 1, 0),
        ("b", 0, 1),
    ]
    a.done()
    b.may_go()
    assert b.status()["operations"] == {"asked": 2, "waited": 1, "overruled": 0, "stalled": 0}


def test_who_waits_hears_that_the_gate_lives(server, address):
    a, b = Rank(address, "a"), Rank(address, "b")
    a.ask()
    a.may_go()
    b.ask()
    assert next(iter(_messages(b)))[0] == messages.WAIT


def _messages(rank):
    while True:
        yield from messages.take_messages(rank.received)
        rank.received += rank.socket.recv(4096)


def test_a_job_whose_connection_ends_is_waited_for_no_longer(server, address):
    a, b = Rank(address, "a"), Rank(address, "b")
    a.ask()
    a.may_go()
    b.ask()
    a.socket.close()
    b.may_go()


def test_a_question_whose_connection_ends_is_withdrawn_though_the_rank_has_others(server, address):
    a, b, c = Rank(address, "a"), Rank(address, "b"), Rank(address, "c")
    thread = Rank(address, "b")
    a.ask()
    a.may_go()
    thread.ask()
    thread.status()
    c.ask()
    c.status()
    thread.socket.close()
    eventually(lambda: [job["waiting"] for job in b.status()["jobs"]] == [0, 0, 1])
    a.done()
    c.may_go()


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (messages.message(messages.ASK, b"short"), "expected 32 bytes, got 5"),
        (messages.message(messages.ASK, messages.ASK_BODY.pack(1, 1, 1, 0, 1)), "1 or more ranks, got 0"),
        (messages.message(messages.DONE, b""), "expected 16 bytes, got 0"),
        (messages.message(77), "message kind: expected 1 to 5, got 77"),
        (messages.HEADER.pack(messages.ASK, 1 << 30), "at most 65536"),
        (messages.message(messages.HELLO, b"\xff"), "expected a JSON object, got other bytes"),
        (messages.message(messages.HELLO, b"[1]"), "expected a JSON object, got [1]"),
        (messages.message(messages.HELLO, b"[" * 60000), "expected a JSON object, got other bytes"),
        (messages.json_message(messages.HELLO, {"version": 2}), "version: expected 1, got 2"),
        (
            messages.json_message(messages.HELLO, {"version": 1, "rank": -1}),
            "whole number from 0 on, got -1",
        ),
        (
            messages.json_message(messages.HELLO, {"version": 1, "rank": True}),
            "number from 0 on, got True",
        ),
        (
            messages.json_message(messages.HELLO, {"version": 1, "rank": 0}),
            "job: expected a text of at most 200",
        ),
        (
            messages.json_message(messages.HELLO, {"version": 1, "rank": 0, "job": ""}),
            "job: expected a name, got ''",
        ),
        (messages.json_message(messages.HELLO, {"version": 1, "rank": 0, "job": "x" * 201}), "200"),
        (
            messages.json_message(messages.DESCRIBE, {"job": "a", "links": "l"}),
            "links: expected a list of names",
        ),
        (messages.json_message(messages.DESCRIBE, {"job": "a", "speed": 1}), "gpus, got 'speed'"),
        (struct.pack("<BxxxIQQ", messages.DONE, 16, 1, 1), "expected HELLO first"),
    ],
)
def test_what_is_not_allowed_is_said_and_disturbs_nobody(server, address, sent, text):
    a, b = Rank(address, "a"), Rank(address, "b")
    a.ask()
    a.may_go()
    b.ask()
    stranger = Rank(address)
    stranger.socket.sendall(sent)
    if (
        text not in ("expected HELLO first",)
        and sent[0] in (messages.ASK, messages.DONE)
        and "at most" not in text
    ):
        assert "expected HELLO first" in stranger.refused()
        stranger = Rank(address, "c")
        stranger.socket.sendall(sent)
    assert text in stranger.refused()
    a.done()
    b.may_go()


def test_a_second_question_while_one_waits_is_refused(server, address):
    a, b = Rank(address, "a"), Rank(address, "b")
    a.ask()
    a.may_go()
    b.ask(1)
    b.ask(2)
    assert "one at a time" in b.refused()
    assert [job["job"] for job in a.status()["jobs"]] == ["a"]


@given(st.binary(max_size=200))
def test_any_bytes_are_messages_or_refused(received):
    with contextlib.suppress(UsageError):
        for kind, body in messages.take_messages(bytearray(received)):
            assert kind < 256
            assert len(body) <= messages.MOST_BYTES


@given(st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=50)), max_size=5), st.integers(1, 7))
def test_messages_arrive_whole_however_they_are_cut(sent, cut):
    stream = b"".join(messages.message(kind, body) for kind, body in sent)
    received, found = bytearray(), []
    for at in range(0, len(stream), cut):
        received += stream[at : at + cut]
        found += messages.take_messages(received)
    assert found == sent


def test_a_peer_that_sends_byte_by_byte_holds_up_nobody(server, address):
    slow, quick = Rank(address), Rank(address, "quick")
    hello = messages.json_message(messages.HELLO, {"version": 1, "job": "slow", "instance": "run", "rank": 0})
    for at, byte in enumerate(hello):
        slow.socket.sendall(bytes([byte]))
        quick.ask(at)
        quick.may_go(at)
        quick.done(at)
    slow.expect(messages.WELCOME)


def test_a_peer_that_does_not_read_is_dropped(server, address):
    deaf, quick = Rank(address, "deaf"), Rank(address, "quick")
    deaf.socket.setblocking(False)

    def is_dropped():
        try:
            deaf.socket.send(messages.message(messages.STATUS) * 100)
        except BlockingIOError:
            return quick.status()["policy"] != "srsf-1"
        except OSError:
            return True
        return False

    eventually(is_dropped)
    quick.ask()
    quick.may_go()


def test_only_the_owner_may_connect_unless_it_is_open_to_all(server, address, tmp_path):
    assert stat.S_IMODE(address.path.stat().st_mode) == 0o600
    with serving(Address(path=tmp_path / "open.sock"), open_to_all=True) as other:
        assert stat.S_IMODE(other.address.path.stat().st_mode) == 0o666


def test_its_directory_is_its_own_unless_it_is_open_to_all(tmp_path):
    for name, open_to_all, mode in (("own", False, 0o700), ("shared", True, 0o755)):
        with serving(Address(path=tmp_path / name / "gate.sock"), open_to_all=open_to_all):
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == mode


def test_a_directory_that_others_can_write_to_is_refused(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o1777)
    with pytest.raises(
        UnsafeDirectoryError, match="open: expected a directory that only its owner can write to"
    ):
        GateServer(GateConfiguration(Address(path=tmp_path / "open" / "gate.sock")))


def test_the_socket_is_gone_afterwards_and_one_that_was_left_is_replaced(address):
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(os.fspath(address.path))
    with serving(address):
        Rank(address, "a")
        with pytest.raises(MltcpError, match="another process does"):
            GateServer(GateConfiguration(address))
    assert not address.path.exists()


def test_other_hosts_need_a_token():
    with pytest.raises(UsageError, match="expected unix:/path or a loopback address without a token"):
        GateServer(GateConfiguration(Address.parse("0.0.0.0:0")))
    with serving(Address.parse("0.0.0.0:0"), token="secret") as server:
        near = Address.parse(f"127.0.0.1:{server.address.port}")
        assert Rank(near, "a", token="secret").welcome
        stranger = Rank(near)
        stranger.send_json(messages.HELLO, version=1, job="a", instance="run", rank=0, token="guess")
        assert "token" in stranger.refused()


def test_jobs_are_described_over_the_unix_socket(server, address):
    a, b = Rank(address, "a"), Rank(address, "b")
    a.ask()
    a.may_go()
    b.ask()
    assert b.status()["jobs"][1]["waiting"] == 1
    service = Rank(address)
    service.send_json(messages.DESCRIBE, **job_document(GateJob("b", ("other",))))
    service.expect(messages.WELCOME)
    b.may_go()


def test_jobs_are_described_by_the_program_that_has_the_server(server, address):
    a, b = Rank(address, "a"), Rank(address, "b")
    a.ask()
    a.may_go()
    b.ask()
    server.describe(GateJob("a", ("other",)))
    b.may_go()


def test_over_tcp_nobody_describes():
    with serving(Address.parse("127.0.0.1:0")) as server:
        stranger = Rank(server.address)
        stranger.send_json(messages.DESCRIBE, job="a")
        assert "DESCRIBE" in stranger.refused()


def test_links_are_read_from_a_file(tmp_path, address):
    path = tmp_path / "links.json"
    path.write_text(
        '{"jobs": {"a": {"links": ["x"]}, "b": {"links": ["y"]}}, "links": {"x": {"speed": 2.5}}}'
    )
    with serving(address, links=load_links(path)):
        a, b = Rank(address, "a"), Rank(address, "b")
        a.ask()
        a.may_go()
        b.ask()
        b.may_go()


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ([], "expected an object, got []"),
        ({"job": {}}, "jobs, links, got 'job'"),
        ({"jobs": {"a": {"links": "x"}}}, "jobs.a.links: expected a list of names"),
        ({"jobs": {"a": {"links": [""]}}}, "jobs.a.links[0]"),
        (
            {"jobs": {"a": {"iterations": -1}}},
            "jobs.a.iterations: expected a whole number from 0 to",
        ),
        ({"jobs": {"a": {"compute_s": float("nan")}}}, "jobs.a.compute_s"),
        ({"jobs": {"a": {"gpus": 0}}}, "jobs.a.gpus: expected a whole number from 1 to 1000000000, got 0"),
        ({"links": {"x": {"speed": 0}}}, "links.x.speed: expected more than 0 and at most 1000000, got 0"),
        ({"links": {"x": {"spede": 1}}}, "links.x: expected the fields speed, got 'spede'"),
    ],
)
def test_bad_links_are_refused_by_field(document, text):
    with pytest.raises(UsageError) as found:
        links_from(document)
    assert text in str(found.value)


@given(
    st.builds(
        GateJob,
        st.text(min_size=1, max_size=20),
        st.lists(st.text(min_size=1, max_size=5), unique=True).map(tuple),
        st.none() | st.integers(0, 10**6),
        st.integers(0, 10**12),
        st.integers(1, 100),
    )
)
def test_a_job_survives_its_document(job):
    assert job_from(json.loads(json.dumps(job_document(job)))) == job


@pytest.mark.parametrize("text", ["", "unix:", "unix:gate", "7411", ":7411", "host:", "host:99999", "host:x"])
def test_bad_addresses_are_refused(text):
    with pytest.raises(UsageError, match="unix:/path or host:port"):
        Address.parse(text)


def test_addresses_are_what_they_say():
    for text in ("unix:/run/gate", "127.0.0.1:7411", "[::1]:7411", "host:1"):
        assert str(Address.parse(text)) == text
    for text in ("unix:/x", "127.0.0.1:1", "[::1]:1", "localhost:1"):
        assert Address.parse(text).is_local
    for text in ("0.0.0.0:1", "[::]:1", "host:1"):
        assert not Address.parse(text).is_local


# -- the command -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_serves_until_it_is_told_to_stop(address):
    with gate_process(address.path, "srsf-1") as process:
        a, b = Rank(address, "a"), Rank(address, "b")
        a.ask()
        a.may_go()
        b.ask()
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == 0
        assert b.take() == (None, b"")
    assert not address.path.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["--policy", "fair"], 2, "policy of a gate: expected"),
        (
            ["--policy", "srtf-1"],
            2,
            "srsf-N, ada-srsf, ada-srsf-k, srtf-yield (N: 1 to 1000000), got 'srtf-1'",
        ),
        (["--listen", "nowhere"], 2, "unix:/path or host:port"),
        (["--listen", "unix:/proc/gate"], 1, "cannot listen at unix:/proc/gate"),
        (["--links", "/nonexistent"], 2, "/nonexistent: No such file"),
        (["--token-file", "/dev/null"], 2, "/dev/null: expected a token, got an empty file"),
        (["--b", "x"], 2, "--b (ms): expected a number from 0 to 1000000, got 'x'"),
    ],
)
def test_the_command_says_what_is_wrong_in_one_line(tmp_path, arguments, status, text):
    command = [sys.executable, "-m", "placement.cli", "gate", "--listen", f"unix:{tmp_path}/gate", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert (done.returncode, done.stdout) == (status, "")
    assert text in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_hundred_ranks_of_ten_jobs_are_all_let_through_one_job_at_a_time(server, address):
    jobs = [[Rank(address, f"job{job}", rank) for rank in range(10)] for job in range(10)]
    jobs[0][0].ask(size=10)
    jobs[0][0].may_go()
    for ranks in jobs[1:]:
        for rank in ranks:
            rank.ask(size=10)
            assert rank.status()["operations"]["overruled"] == 0  # and the gate has read the question
    for rank in jobs[0][1:]:
        rank.ask(size=10)
        rank.may_go()
    for rank in jobs[0]:
        rank.done()
    for ranks in jobs[1:]:
        for rank in ranks:
            rank.may_go()
        for rank in ranks:
            rank.done()
    assert jobs[9][9].status()["operations"]["waited"] == 9


# -- users -----------------------------------------------------------------------------------------------------------

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs other users")
ALICE, BOB = 1, 2


@contextlib.contextmanager
def user(uid):
    """Connect as another user: a peer is whose effective uid connects."""
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_address():
    with tempfile.TemporaryDirectory(prefix="mltcp-test-") as directory:
        os.chmod(directory, 0o755)
        yield Address(path=Path(directory) / "gate.sock")


@needs_root
def test_many_runs_of_one_user_are_one_turn_for_another_user(open_address):
    with serving(open_address, open_to_all=True):
        with user(ALICE):
            many = [Rank(open_address, f"a{number}") for number in range(60)]
        with user(BOB):
            one = Rank(open_address, "b")
        for rank in many:
            rank.ask()
            if rank is many[0]:
                rank.may_go()
            rank.status()  # it has been asked by then
        one.ask()
        one.status()
        many[0].done()
        one.may_go()
        one.done()
        many[1].may_go()


@needs_root
def test_a_user_cannot_act_as_a_rank_of_another_users_run(open_address):
    with serving(open_address, open_to_all=True) as server:
        with user(ALICE):
            own, waiting = Rank(open_address, "a"), Rank(open_address, "other")
        own.ask()
        own.may_go()
        waiting.ask()
        waiting.status()
        with user(BOB):
            stranger = Rank(open_address, "a")
        stranger.done()
        assert [each["sending"] for each in stranger.status()["jobs"]] == [1, 0, 0]
        assert len(server._keeper.runs) == 3


@needs_root
def test_more_runs_and_connections_than_a_user_may_have_are_refused_and_others_are_served(
    open_address, monkeypatch, caplog
):
    monkeypatch.setattr(gatekeeper, "MOST_RUNS_OF_USER", 2)
    with serving(open_address, open_to_all=True) as server:
        server._most = 8
        with user(ALICE):
            held = [Rank(open_address, f"a{number}") for number in range(2)]
            third = Rank(open_address)
            third.send_json(messages.HELLO, version=1, job="a2", instance="run", rank=0)
            assert third.refused() == "runs: expected at most 2 of uid 1, got one more"
            held += [Rank(open_address, "a0", rank) for rank in (1, 2)]
            assert Rank(open_address).take() == (None, b"")
        with user(BOB):
            held.append(Rank(open_address, "b"))
    assert "uid 1 already has 4 connections, the limit" in caplog.text


def test_a_peer_that_does_not_introduce_itself_is_disconnected_also_if_it_asks_for_the_status(
    address, monkeypatch
):
    monkeypatch.setattr(gate_server, "HEARTBEAT_S", 0.1)
    with serving(address):
        rank, silent = Rank(address, "a"), Rank(address)
        curious = Rank(address)
        curious.status()
        # Not before: a heartbeat may come between a connection and what is said on it.
        monkeypatch.setattr(gate_server, "INTRODUCTION_S", 0.0)
        assert silent.refused().startswith("HELLO: expected within")
        assert curious.refused().startswith("HELLO: expected within")
        rank.ask()
        rank.may_go()


def test_a_frozen_job_holds_the_gate_until_its_limit_and_not_until_a_heartbeat(address, monkeypatch):
    monkeypatch.setattr(gatekeeper, "STALLED_NS", 300_000_000)
    monkeypatch.setattr(gate_server, "HEARTBEAT_S", 1000.0)
    with serving(address):
        frozen, other = Rank(address, "a"), Rank(address, "b")
        frozen.ask()
        frozen.may_go()
        other.ask()
        other.may_go()


def test_lines_that_a_user_causes_are_limited_and_counted(address, caplog):
    with serving(address):
        for _ in range(100):
            rank = Rank(address)
            rank.send(99)
            rank.refused()
    assert caplog.text.count("dropped the connection") < 60
