"""A process's membership at a daemon that answers late, ends, or rejects connections: nobody is held up by it."""

import json
import os
import resource
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from mltcp.daemon.client.client import Client, Registration
from mltcp.daemon.client.membership import Membership
from mltcp.daemon.client.protocol import MOST_BYTES, MOST_DESCRIPTORS, encode
from mltcp.pacing.tcp_info import congestion_control
from tests.eventually import LIMIT_S, eventually
from tests.unit.mltcp.daemon.serving import serving

BEYOND_SELECT = 1024


@pytest.fixture
def connections():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pairs = [(socket.create_connection(listener.getsockname()), listener.accept()[0]) for _ in range(3)]
    yield [ours for ours, _ in pairs]
    for each in (end for pair in pairs for end in pair):
        each.close()


class ScriptedDaemon:
    """A daemon that replies to what it is told to, and only then."""

    def __init__(self, path):
        self.path = path
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.settimeout(LIMIT_S)
        self._listener.bind(str(path))
        self._listener.listen(16)
        self._accepted = []

    def close(self):
        for each in (*self._accepted, self._listener):
            each.close()

    def registered(self):
        """Accept a connection, and reply to its registration."""
        accepted, _ = self._listener.accept()
        accepted.settimeout(LIMIT_S)
        self._accepted.append(accepted)
        self.reply(number=1, how="none", control="none", mark=0)

    def request(self):
        """The next request on the last connection, with the inodes of what it passes."""
        packet, descriptors, _, _ = socket.recv_fds(self._accepted[-1], MOST_BYTES, MOST_DESCRIPTORS)
        inodes = [os.fstat(each).st_ino for each in descriptors]
        for each in descriptors:
            os.close(each)
        return json.loads(packet), inodes

    def reply(self, **fields):
        """Reply to the next request; returns the inodes of what it passes."""
        request, inodes = self.request()
        self.send({"id": request["id"], "ok": True, **fields})
        return inodes

    def send(self, message):
        self._accepted[-1].send(encode(message))


@pytest.fixture
def daemon(tmp_path):
    made = ScriptedDaemon(tmp_path / "sock")
    yield made
    made.close()


@pytest.fixture
def refused():
    return []


@pytest.fixture
def patience_s():
    """How long the member waits for a reply."""
    return LIMIT_S


impatient = pytest.mark.parametrize("patience_s", [2.0])


@pytest.fixture
def member(daemon, refused, patience_s, monkeypatch):
    """A member of a job, with a daemon that has registered it."""
    monkeypatch.setattr(Client.__init__, "__defaults__", (None, patience_s))
    with ThreadPoolExecutor(1) as pool:
        registered = pool.submit(daemon.registered)
        made = Membership(Registration("bert"), daemon.path, on_refused=refused.append)
        registered.result()
    yield made
    daemon.close()
    made.close()


def inode(connection):
    return os.fstat(connection.fileno()).st_ino


def used_s(member):
    """The CPU time of the membership's thread."""
    return time.clock_gettime(time.pthread_getcpuclockid(member._thread.ident))


@impatient
def test_a_request_without_a_reply_ends_the_connection_and_all_is_passed_again(
    daemon, member, refused, connections
):
    first, second, third = connections
    member.add([first.fileno()])
    daemon.reply(refused=[])
    assert member.drain(LIMIT_S)
    member.add([second.fileno()])
    daemon.request()
    daemon.registered()
    assert daemon.reply(refused=[{"position": 1, "why": "no"}]) == [inode(first), inode(second)]
    assert member.drain(LIMIT_S)
    ((told,),) = refused
    assert (told.position, told.why) == (1, "no")
    member.add([third.fileno()])
    assert daemon.reply(refused=[]) == [inode(third)]
    assert member.drain(LIMIT_S)


@impatient
def test_a_report_without_a_reply_ends_the_connection_too(daemon, member):
    member.report(1, 1.0, 1)
    request, _ = daemon.request()
    assert request["request"] == "iteration"
    daemon.registered()


def test_a_packet_that_nobody_waits_for_is_not_looked_at_for_ever(daemon, member):
    daemon.send({"id": 1, "ok": True})
    daemon.registered()
    eventually(lambda: member.is_member)


def test_adding_and_reporting_do_not_wait_for_a_silent_daemon(daemon, member, connections):
    for _ in range(1000):
        member.add([connections[0].fileno()])
        member.report(1, 1.0, 1)
    assert not member.drain(0)
    # Each would have waited for the time limit of a request: not one has ended.
    request, _ = daemon.request()
    assert request["request"] == "flows"


def test_connections_are_passed_in_the_order_in_which_they_were_added(daemon, member, connections):
    member.add([connections[0].fileno()])
    member.add([connections[1].fileno(), connections[2].fileno()])
    passed = []
    while len(passed) < len(connections):
        passed += daemon.reply(refused=[])
    assert passed == [inode(each) for each in connections]
    assert member.drain(LIMIT_S)


def test_a_connection_that_is_closed_before_it_is_passed_is_not(daemon, member, connections):
    member.add([connections[0].fileno()])
    member.add([connections[1].fileno()])
    request, _ = daemon.request()  # the thread waits for this reply
    connections[1].close()
    daemon.send({"id": request["id"], "ok": True, "refused": []})
    member.add([connections[2].fileno()])
    passed = daemon.reply(refused=[])
    assert inode(connections[2]) in passed
    assert member.drain(LIMIT_S)


def test_a_descriptor_beyond_those_that_select_takes_is_waited_for(public_directory):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4 * BEYOND_SELECT, hard), hard))
    held = [os.dup(0)]
    try:
        while held[-1] < BEYOND_SELECT:
            held.append(os.dup(0))
        with serving(public_directory) as server:
            member = Membership(Registration("bert"), server.path)
            try:
                time.sleep(0.5)  # of which a thread that does not wait would use all
                assert used_s(member) < 0.1
            finally:
                member.close()
    finally:
        for each in held:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_flows_are_the_jobs_once_they_are_drained_and_after_a_new_daemon(public_directory, connections):
    with serving(public_directory) as server:
        member = Membership(Registration("bert", control="reno"), server.path)
        member.add([connections[0].fileno()])
        assert member.drain(LIMIT_S)
        assert congestion_control(connections[0].fileno()) == "reno"
    try:
        eventually(lambda: not member.is_member)
        member.add([connections[1].fileno()])
        with serving(public_directory):
            assert member.drain(LIMIT_S)
            assert congestion_control(connections[1].fileno()) == "reno"
    finally:
        member.close()
