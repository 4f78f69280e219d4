"""Agents over real streams: delays for drift, leases, clocks that jump."""

import queue
import re
import socket
import subprocess
import threading
from contextlib import suppress

import pytest

from mltcp.core.processes import boot_id, pid_namespace, start_ticks
from placement.client.agent_stream import AgentStream
from placement.client.client import Client, RefusedError, ServiceError
from placement.service.context import ServiceRules
from placement.service.drift import ALLOWANCE
from placement.service.protocol import placement_pb2 as pb
from tests.unit.placement.service.serving import HALF, eventually, job, placed, profile, serving, two_racks

MS = 10**6


class Agent:
    """The agent of a job, controlled by the test."""

    def __init__(self, address, job_id, hello=True, process=None, restarts=None, token=None):
        self.client = Client(address, token=token)
        self.messages = queue.SimpleQueue()
        self.decisions = queue.SimpleQueue()
        self.error = None
        if hello:
            self.say(hello=pb.Hello(job_id=job_id, ranks=2, process=process, restarts=restarts))
        self.thread = threading.Thread(target=self._read)
        self.thread.start()

    def say(self, **message):
        self.messages.put(pb.AgentMessage(**message))

    def report(self, number, began_ns, duration_ns=100 * MS):
        self.say(iteration=pb.IterationReport(number=number, began_ns=began_ns, duration_ns=duration_ns))

    def _read(self):
        try:
            for decision in self.client.attach(iter(self.messages.get, None)):
                self.decisions.put(decision)
        except ServiceError as error:
            self.error = error
        self.decisions.put(None)

    def decision(self):
        return self.decisions.get(timeout=20)

    def leave(self):
        self.messages.put(None)
        self.thread.join(20)
        self.client.close()

    def vanish(self):
        """Close the connection without a message, as a killed process does."""
        self.client.close()
        self.messages.put(None)
        self.thread.join(20)


class Relay:
    """Hands bytes on between clients and a service, until it forgets its connections: then nothing comes through."""

    def __init__(self, address):
        host, _, port = address.rpartition(":")
        self._service, self._forgotten = (host, int(port)), threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = "{}:{}".format(*self._listening.getsockname())
        self._open, self._threads = [], [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._forgotten.set()
        for one in (self._listening, *self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(20)
        for one in (self._listening, *self._open):
            one.close()

    def forget(self):
        """Hand nothing on any more, in either direction, and close nothing."""
        self._forgotten.set()

    def _accept(self):
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                service = socket.create_connection(self._service)
                self._open += client, service
                for pair in ((client, service), (service, client)):
                    self._threads.append(threading.Thread(target=self._hand_on, args=pair))
                    self._threads[-1].start()

    def _hand_on(self, giver, taker):
        with suppress(OSError):
            while data := giver.recv(65536):
                if not self._forgotten.is_set():
                    taker.sendall(data)


@pytest.fixture
def agents():
    made = []
    yield lambda *arguments, **more: made.append(Agent(*arguments, **more)) or made[-1]
    for agent in made:
        agent.vanish()


@pytest.fixture
def address(tmp_path):
    """A client of a service with jobs a and b, which share s1 and are shifted by 50 ms."""
    rules = ServiceRules("lwf-1+cassini", lease_s=0.2)
    with serving(tmp_path, rules=rules, **two_racks()) as found, Client(found) as client:
        for name, servers in (("a", ["s0", "s1"]), ("b", ["s1", "s2"])):
            client.submit(job(name, 6, profile=HALF, servers=servers))
            placed(client, name)
        yield found


@pytest.fixture
def client(address):
    with Client(address) as made:
        yield made


def attached(client, *names):
    eventually(lambda: all(client.job(name).attached for name in names))


def shift_of(client, name):
    return client.job(name).shift_ns


def test_the_job_that_is_ahead_is_told_to_wait_and_then_left_in_peace(address, client, agents):
    a, b = agents(address, "a"), agents(address, "b")
    attached(client, "a", "b")
    apart = shift_of(client, "b") - shift_of(client, "a")
    base = client.clock_ns() - 200 * 10**9
    # b is where it should be; a is 20 ms early.
    a.report(1, base - 20 * MS)
    b.report(1, base + apart % (100 * MS))
    first, second = a.decision().delay, b.decision().delay
    period_ns = round((1 + ALLOWANCE) * 100 * MS)
    assert (first.sequence, first.delay_ns, first.period_ns) == (1, 20 * MS, period_ns)
    assert "20.000 ms" in first.reason
    # Both are told a time, as far apart as they should be.
    assert (second.sequence, second.delay_ns) == (1, 0)
    off_ns = (second.at_ns - first.at_ns - apart) % period_ns
    assert min(off_ns, period_ns - off_ns) <= 2 * ALLOWANCE * period_ns
    # What a says before it has applied the delay does not count, and then it lies right.
    a.report(2, base + 80 * MS)
    b.report(2, base + 100 * MS + apart % (100 * MS))
    a.say(applied=pb.Applied(sequence=1, iteration=3))
    b.say(applied=pb.Applied(sequence=1, iteration=3))
    # From there on they keep to the period that they were told: b is a millisecond late, which tells that it was heard.
    begun = base + 200 * MS
    a.report(3, begun)
    b.report(3, begun + apart % period_ns + MS)
    eventually(lambda: {each.job_id: each.drift_ns for each in client.time_shifts()}["a"] == MS)
    # Later a is 10 ms late, iteration after iteration, until b has been told to wait.
    for number in range(4, 1000):
        begun += period_ns
        a.report(number, begun + 10 * MS)
        b.report(number, begun + apart % period_ns)
        if not b.decisions.empty():
            break
        client.clock_ns()
    assert b.decision().delay.delay_ns == 10 * MS
    assert a.decision().delay.delay_ns == 0
    assert client.job("a").state == pb.PLACED


def test_a_drift_below_the_threshold_is_let_be(address, client, agents):
    a, b = agents(address, "a"), agents(address, "b")
    attached(client, "a", "b")
    apart = (shift_of(client, "b") - shift_of(client, "a")) % (100 * MS)
    base = client.clock_ns() - 10**9
    for number in range(1, 5):
        a.report(number, base + 100 * MS * number - 2 * MS)
        b.report(number, base + 100 * MS * number + apart)
    eventually(lambda: client.time_shifts(["a"])[0].HasField("drift_ns"))
    assert eventually(lambda: client.time_shifts(["a"])[0].drift_ns == 2 * MS)
    assert a.decisions.empty()
    assert b.decisions.empty()


def process_of(child):
    """A child process, as an agent in it would describe itself."""
    return pb.AgentProcess(
        boot_id=boot_id(), pid_namespace=pid_namespace(), pid=child.pid, start_ticks=start_ticks(child.pid)
    )


def test_an_agent_that_is_killed_gives_back_slots_and_time_shift_after_the_lease(address, client, agents):
    with subprocess.Popen(["sleep", "60"]) as child:
        agent = agents(address, "a", process=process_of(child))
        attached(client, "a")
        child.kill()
    agent.vanish()
    status = eventually(lambda: (found := client.job("a")).state == pb.FAILED and found)
    assert status.reason == "its agent was gone, and did not come back within its lease of 0.2 s"
    assert not status.HasField("shift_ns")
    assert {each.server.name: each.gpus_free for each in client.status().servers} == {
        "s0": 4,
        "s1": 2,
        "s2": 0,
        "s3": 4,
    }
    assert not client.job("b").HasField("shift_ns"), "it shares its links with nobody any more"


KEPT = (
    "its agent was gone, and did not come back within its lease of 0.2 s; its slots are kept, since it may go on: "
    "release it if it does not"
)


@pytest.mark.parametrize("where", ["unknown", "alive", "other machine", "other container"])
def test_slots_are_not_given_to_others_while_the_processes_there_may_go_on(address, client, agents, where):
    with subprocess.Popen(["sleep", "60"]) as child:
        process = process_of(child)
        if where == "unknown":
            process = None
        elif where == "other machine":
            process.boot_id = "another"
        elif where == "other container":
            process.pid_namespace += 1
        if where != "alive":
            child.kill()
            child.wait()
        agent = agents(address, "a", process=process)
        attached(client, "a")
        agent.vanish()
        eventually(lambda: client.job("a").reason == KEPT)
        assert client.job("a").state == pb.PLACED
        child.kill()
    if where == "alive":
        eventually(lambda: client.job("a").state == pb.FAILED)
        return
    back = agents(address, "a")
    attached(client, "a")
    assert client.job("a").reason == ""
    back.vanish()
    eventually(lambda: client.job("a").reason == KEPT)
    client.release("a")
    assert client.job("a").state == pb.ENDED


def test_an_agent_of_an_earlier_run_is_refused(address, client):
    late = Agent(address, "a", restarts=1)
    assert late.decision() is None
    assert "expected a job that is in run 1, as this agent, not 0" in str(late.error)
    late.vanish()
    assert client.job("a").state == pb.PLACED
    assert not client.job("a").attached


def test_an_agent_whose_host_is_gone_without_a_word_is_missed(tmp_path, agents):
    rules = ServiceRules(lease_s=0.2)
    with (
        serving(tmp_path, rules=rules, ping_s=1, address="127.0.0.1:0", **two_racks()) as address,
        Client(address) as client,
        Relay(address) as relay,
    ):
        client.submit(job("a", 2, servers=["s0"]))
        placed(client, "a")
        agents(relay.address, "a")
        eventually(lambda: client.job("a").attached)
        relay.forget()
        # Nothing is sent, and no connection ends: without pings this would take hours.
        eventually(lambda: client.job("a").reason == KEPT)


def test_an_agent_that_takes_its_leave_ends_the_job_after_the_lease(address, client, agents):
    agent = agents(address, "a")
    attached(client, "a")
    agent.leave()
    status = eventually(lambda: (found := client.job("a")).state != pb.PLACED and found)
    assert (status.state, status.reason) == (
        pb.ENDED,
        "its agent left, and did not come back within its lease of 0.2 s",
    )


def test_an_agent_that_comes_back_keeps_everything(tmp_path, agents):
    rules = ServiceRules("lwf-1+cassini", lease_s=3600)
    with serving(tmp_path, rules=rules, **two_racks()) as address, Client(address) as client:
        client.submit(job("a", 6, profile=HALF))
        places = placed(client, "a").places
        first = agents(address, "a")
        attached(client, "a")
        first.vanish()
        eventually(lambda: not client.job("a").attached)
        second = agents(address, "a")
        attached(client, "a")
        third = agents(address, "a")
        assert second.decision().detach.reason == "another agent of this job has attached"
        assert second.decision() is None
        attached(client, "a")
        assert client.job("a").places == places
        client.release("a", "done with")
        assert third.decision().detach.reason == "done with"


def test_jobs_that_had_agents_have_the_lease_after_a_restart(tmp_path, agents):
    with serving(tmp_path, **two_racks()) as address, Client(address) as client:
        for name in ("with", "without"):
            client.submit(job(name, 2))
            placed(client, name)
        agent = agents(address, "with")
        attached(client, "with")
    assert agent.decision() is None, "the stream ends without a Detach: the agent is to come back"
    with serving(tmp_path, rules=ServiceRules(lease_s=0.1)) as address, Client(address) as client:
        eventually(lambda: "its slots are kept" in client.job("with").reason)
        assert client.job("without").reason == ""


BAD_REPORTS = {
    "ahead": (
        5,
        60_000,
        "iteration.began_ns",
        r"at most 1 s ahead of the service's clock, got .*, which is (5\d|60)\.\d+ s ahead",
    ),
    "back": (5, -5000, "iteration.began_ns", "the clock went back"),
    "again": (1, 100, "iteration.number", "expected more than 1, the last one, got 1"),
    "negative": (-1, 100, "iteration.number", "expected 0 or more, got -1"),
}


@pytest.mark.parametrize("case", BAD_REPORTS)
def test_a_clock_that_jumps_ends_the_stream_with_the_field_and_nothing_else(address, client, agents, case):
    number, after_ms, field, text = BAD_REPORTS[case]
    a = agents(address, "a")
    attached(client, "a")
    base = client.clock_ns()
    a.report(1, base)
    a.report(number, base + after_ms * MS)
    assert a.decision() is None
    assert isinstance(a.error, RefusedError)
    assert (a.error.field, a.error.code) == (field, "INVALID_ARGUMENT")
    assert re.search(text, str(a.error))
    assert client.job("a").shift_ns is not None
    again = agents(address, "a")
    attached(client, "a")
    again.report(1, client.clock_ns())
    assert client.job("a").state == pb.PLACED


def test_only_placed_jobs_have_agents_and_the_first_word_is_hello(address, client, agents):
    client.register_job(job("idle", 1))
    for name, field, code in (
        ("idle", "hello.job_id", "FAILED_PRECONDITION"),
        ("unknown", "hello.job_id", "NOT_FOUND"),
        ("", "hello.job_id", "INVALID_ARGUMENT"),
    ):
        agent = agents(address, name)
        assert agent.decision() is None
        assert (agent.error.field, agent.error.code) == (field, code)
    rude = agents(address, "a", hello=False)
    rude.report(1, 1)
    assert rude.decision() is None
    assert rude.error.field == "hello"


def test_a_profile_from_an_agent_replaces_the_jobs(address, client, agents):
    a = agents(address, "a")
    attached(client, "a")
    a.say(profile=pb.ProfileReport(profile=profile((150, 0), (50, 10))))
    eventually(lambda: client.time_shifts(["a"])[0].period_ns == 200 * MS)
    a.say(profile=pb.ProfileReport(profile=pb.Profile()))
    assert a.decision() is None
    assert a.error.field == "profile.profile.phases"


def test_a_job_without_an_agent_reports_its_drift_by_calls(address, client):
    base = client.clock_ns() - 10**9
    apart = (shift_of(client, "b") - shift_of(client, "a")) % (100 * MS)
    assert client.report_drift("a", 1, base - 20 * MS, 100 * MS) == 0
    assert client.report_drift("b", 1, base + apart, 100 * MS) == 0
    assert client.report_drift("a", 2, base + 80 * MS, 100 * MS) == 20 * MS
    assert client.report_drift("a", 3, base + 190 * MS, 100 * MS) == 0, "the delay is under way"
    with pytest.raises(RefusedError) as refused:
        client.report_drift("a", 4, base, 100 * MS)
    assert refused.value.field == "began_ns"
    assert client.report_drift("b", 2, base + 300 * MS + apart, 100 * MS) == 0
    assert client.report_drift("a", 5, base + 300 * MS, 100 * MS) == 0


def test_the_agents_own_client_takes_its_leave(address, client):
    stream = AgentStream(Client(address), "a", 2)
    thread = threading.Thread(target=lambda: list(stream.decisions()))
    thread.start()
    attached(client, "a")
    assert abs(stream.clock_ns() - client.clock_ns()) < 10**9
    stream.close()
    thread.join(20)
    assert eventually(lambda: (found := client.job("a")).state != pb.PLACED and found).state == pb.ENDED
