"""What must outlive a service: jobs on an engine that does, and all that their agents know."""

import sqlite3
import subprocess

import pytest

from bench.lab.programs import ServiceProcess
from placement.client.client import Client, RefusedError
from placement.service.context import ServiceRules
from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol.connection import TOKEN
from placement.service.protocol.security import AcceptedTokens, Security
from tests.unit.placement.service.serving import HALF, eventually, job, placed, serving, two_racks
from tests.unit.placement.service.surviving_engine import SurvivingEngine, engine_of
from tests.unit.placement.service.test_agents import Agent, process_of

OPERATOR = "the-token-of-nobody"


@pytest.fixture
def tokens(tmp_path):
    path = tmp_path / "tokens"
    path.write_text(f"{OPERATOR}\nuser alice the-token-of-alice\nuser bob the-token-of-bob\n")
    path.chmod(0o600)
    return path


def test_ten_restarts_under_tokens_end_no_job_and_every_agent_comes_back(tmp_path, tokens):
    engine = SurvivingEngine()
    rules = ServiceRules(lease_s=0.05)
    for restart in range(11):
        running = serving(
            tmp_path, engine=engine, rules=rules, security=Security(tokens=tokens), **two_racks()
        )
        with running as address, Client(address, token=OPERATOR) as operator:
            if not restart:
                for name in ("comes-back", "silent"):
                    operator.submit(job(name, 1, command=["train"]))
                    eventually(lambda name=name: name in engine.jobs)
            token = engine.jobs["comes-back"].environment[TOKEN]
            agent = Agent(address, "comes-back", token=token)
            eventually(lambda: operator.job("comes-back").attached)
            if not restart:
                with subprocess.Popen(["sleep", "60"]) as child:
                    process, silent = process_of(child), engine.jobs["silent"].environment[TOKEN]
                    other = Agent(address, "silent", process=process, token=silent)
                    eventually(lambda: operator.job("silent").attached)
                    child.kill()
                other.vanish()
                status = eventually(lambda: (found := operator.job("silent")).seen and found)
                assert status.seen == (
                    "its agent was gone, and did not come back within its lease of 0.05 s; "
                    "its engine says that it goes on"
                )
                assert status.seen in operator.explain("silent").summary
            assert [each.state for each in operator.status().jobs] == [pb.PLACED, pb.PLACED]
            agent.vanish()
            eventually(lambda: "its agent was gone" in operator.job("comes-back").seen)
    assert engine.stopped == []
    assert set(engine.jobs) == {"comes-back", "silent"}


def test_the_token_of_a_forgotten_job_is_not_that_of_a_later_one(tmp_path, tokens):
    engine = SurvivingEngine()
    configured = {"engine": engine, "rules": ServiceRules(keep_ended=0), "security": Security(tokens=tokens)}
    with serving(tmp_path, **configured, **two_racks()) as address:
        with Client(address, token="the-token-of-alice") as alice:
            alice.submit(job("first", 1, command=["train"]))
            eventually(lambda: "first" in engine.jobs)
            token = engine.jobs["first"].environment[TOKEN]
            alice.release("first")
            eventually(lambda: not alice.status().jobs)
    with serving(tmp_path, **configured, **two_racks()) as address:
        with Client(address, token="the-token-of-bob") as bob, Client(address, token=token) as agent:
            bob.submit(job("second", 1, command=["train"]))
            with pytest.raises(RefusedError) as refused:
                agent.release("second")
            assert refused.value.code == "PERMISSION_DENIED"


def test_delays_are_numbered_on_after_a_restart(tmp_path):
    def first_delay():
        with serving(tmp_path, rules=ServiceRules("lwf-1+cassini"), **two_racks()) as address:
            with Client(address) as client:
                for name, servers in (("a", ["s0", "s1"]), ("b", ["s1", "s2"])):
                    client.submit(job(name, 6, profile=HALF, servers=servers))
                    placed(client, name)
                a, b = Agent(address, "a"), Agent(address, "b")
                try:
                    eventually(lambda: client.job("a").attached and client.job("b").attached)
                    apart = client.job("b").shift_ns - client.job("a").shift_ns
                    base = client.clock_ns() - 10**9
                    a.report(1, base - 20 * 10**6)
                    b.report(1, base + apart % 10**8)
                    return a.decision().delay.sequence
                finally:
                    a.vanish()
                    b.vanish()

    assert first_delay() < first_delay()


def test_what_was_asked_to_stop_before_a_restart_is_stopped_after_it(tmp_path):
    engine = SurvivingEngine()
    with serving(tmp_path, engine=engine, **two_racks()) as address, Client(address) as client:
        for name in ("released", "requeued"):
            client.submit(job(name, 1, command=["train"], elastic=True))
        eventually(lambda: all(engine_of(tmp_path, name) for name in ("released", "requeued")))
        engine.answers = False
        client.release("released", "enough")
        assert client.requeue("requeued").state == pb.STOPPING
    engine.answers = True
    with serving(tmp_path, engine=engine, **two_racks()) as address, Client(address) as client:
        assert (
            eventually(lambda: (found := client.job("released")).state == pb.ENDED and found).reason
            == "enough"
        )
        eventually(lambda: client.job("requeued").restarts == 1)
        assert sorted(engine.stopped) == ["released", "requeued"]


def test_a_job_that_finishes_as_it_is_asked_to_stop_has_finished(tmp_path):
    engine = SurvivingEngine()
    with serving(tmp_path, engine=engine, **two_racks()) as address, Client(address) as client:
        client.submit(job("last-step", 1, command=["train"], elastic=True))
        eventually(lambda: engine_of(tmp_path, "last-step"))
        engine.answers = False  # the request is late
        client.requeue("last-step", "room for another")
        engine.finish("last-step")
        assert (
            eventually(lambda: (found := client.job("last-step")).state == pb.ENDED and found).reason
            == "finished"
        )


def test_a_launch_that_is_found_again_late_is_not_taken_for_released(tmp_path):
    """Of a job that was started, and whose service was killed before it knew; the engine is silent beyond a lease."""
    engine = SurvivingEngine()
    with serving(tmp_path, engine=engine, **two_racks()) as address, Client(address) as client:
        client.submit(job("a", 1, command=["train"]))
        eventually(lambda: "a" in engine.jobs)
        agent = Agent(address, "a")
        eventually(lambda: client.job("a").attached)
    agent.vanish()
    with sqlite3.connect(tmp_path / "state.db") as database:
        database.execute("UPDATE jobs SET engine=''")
    engine.answers = False
    rules = ServiceRules(lease_s=0.05)
    with serving(tmp_path, engine=engine, rules=rules, **two_racks()) as address, Client(address) as client:
        assert "its agent was gone" in eventually(lambda: client.job("a").seen)
        engine.answers = True
        eventually(lambda: engine_of(tmp_path, "a"))
        assert (client.job("a").state, client.job("a").reason, engine.stopped) == (pb.PLACED, "", [])


@pytest.mark.slow
def test_a_killed_service_knows_the_agents_of_the_one_before(tmp_path, tokens):
    with ServiceProcess(tmp_path, "lwf-1", "--tokens", str(tokens), "--lease", "0.5") as process:
        with Client(process.address, token=OPERATOR) as client:
            client.register_servers(two_racks()["servers"])
            client.submit(job("a", 1))
            placed(client, "a")
        process.kill()
        with sqlite3.connect(tmp_path / "state.db") as database:
            (key,) = database.execute("SELECT value FROM identities WHERE name='tokens of agents'").fetchone()
        process.start()
        agent = Agent(process.address, "a", token=AcceptedTokens({}, key).token_of_job(0))
        with Client(process.address, token=OPERATOR) as client:
            eventually(lambda: client.job("a").attached)
        agent.vanish()


@pytest.mark.parametrize("gone", [False, True])
def test_an_engine_that_ends_with_the_service_is_asked_to_stop_only_what_lost_its_process(tmp_path, gone):
    engine = SurvivingEngine()
    engine.jobs_survive = False
    with serving(tmp_path, engine=engine, rules=ServiceRules(lease_s=0.05), **two_racks()) as address:
        with Client(address) as client, subprocess.Popen(["sleep", "60"]) as child:
            client.submit(job("a", 1, command=["train"]))
            eventually(lambda: "a" in engine.jobs)
            agent = Agent(address, "a", process=process_of(child))
            eventually(lambda: client.job("a").attached)
            if gone:
                child.kill()
                child.wait()
            agent.vanish()
            if gone:
                status = eventually(lambda: (found := client.job("a")).state == pb.ENDED and found)
                assert "its agent was gone" in status.reason
            else:
                assert "its engine says that it goes on" in eventually(lambda: client.job("a").seen)
                assert (client.job("a").state, engine.stopped) == (pb.PLACED, [])
            child.kill()
