"""Jobs that an engine runs for the service, with real processes on this machine."""

import errno
import json
import threading

import pytest

from mltcp.core.address import Address
from placement.client.client import Client
from placement.engines.engine import EngineJob, HostShare
from placement.engines.hosts import Host
from placement.engines.local import LocalEngine
from placement.service import engine_jobs
from placement.service.embedded_gate import EmbeddedGate
from placement.service.protocol import placement_pb2 as pb
from tests.unit.placement.service.serving import eventually, serving
from tests.unit.placement.service.test_agents import Agent
from tests.warm.marks import torchruns

pytestmark = [pytest.mark.slow, torchruns]

PATIENCE_S = 90


class HeldUpEngine(LocalEngine):
    """An engine whose starts can be held up, and made to fail."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.begun, self.may_go_on, self.failures = threading.Event(), threading.Event(), []
        self.may_go_on.set()

    def start(self, job, placement):
        self.begun.set()
        assert self.may_go_on.wait(PATIENCE_S)
        if self.failures:
            raise self.failures.pop(0)
        return super().start(job, placement)


@pytest.fixture
def engine(tmp_path):
    return HeldUpEngine((Host("a", "127.0.0.1", "lo", slots=2),), tmp_path / "logs")


@pytest.fixture
def client(tmp_path, engine):
    gate = EmbeddedGate(Address.parse(f"unix:{tmp_path}/gate"), "srsf-1")
    server = pb.Server(name="a", cpu_slots=2, nic_bps=1, switch="r")
    with serving(tmp_path, servers=(server,), engine=engine, gate=gate) as address, Client(address) as made:
        yield made
    assert not (tmp_path / "gate").exists()


def shell(job_id, text, slots=2, **fields):
    return pb.Job(id=job_id, cpu_slots=slots, iterations=1, command=["sh", "-c", text], **fields)


def over(client, job_id):
    def is_over():
        status = client.job(job_id)
        return status.state in (pb.ENDED, pb.FAILED) and status

    return eventually(is_over, PATIENCE_S)


def test_a_trace_runs_from_submission_to_completion_within_the_slots(client, tmp_path):
    told = '{"job": "%s", "rank": %s, "placement": "%s", "gate": "%s", "mine": "%s"}'
    values = "$MLTCP_JOB $RANK $MLTCP_PLACEMENT $MLTCP_GATE $MINE"
    text = f"printf '{told}' {values} > {tmp_path}/$MLTCP_JOB.$RANK"
    client.submit(shell("a", text, environment={"MINE": "yes"}))
    client.submit(shell("b", text, 1))
    assert [(over(client, name).state, client.job(name).reason) for name in "ab"] == [
        (pb.ENDED, "finished")
    ] * 2
    assert client.job("b").placed_ns >= client.job("a").ended_ns, "there are two slots"
    for rank in (0, 1):
        assert json.loads((tmp_path / f"a.{rank}").read_text()) == {
            "job": "a",
            "rank": rank,
            "placement": client.address,
            "gate": f"unix:{tmp_path}/gate",
            "mine": "yes",
        }
    assert client.status().servers[0].cpu_slots_free == 2


def test_a_job_that_fails_says_why_and_gives_its_slots_back(client):
    client.submit(shell("bad", "exit 7"))
    status = over(client, "bad")
    assert status.state == pb.FAILED
    assert "7" in status.reason
    eventually(lambda: client.status().servers[0].cpu_slots_free == 2)


def test_a_released_job_has_time_to_stop_before_its_slots_are_free(client, tmp_path):
    client.submit(
        shell(
            "long",
            f"trap 'touch {tmp_path}/saved.$RANK; exit 0' TERM; touch {tmp_path}/began.$RANK; "
            "while :; do sleep 0.05; done",
        )
    )
    eventually(lambda: all((tmp_path / f"began.{rank}").exists() for rank in (0, 1)), PATIENCE_S)
    client.release("long", "enough")
    status = over(client, "long")
    assert (status.state, status.reason) == (pb.ENDED, "enough")
    assert [(tmp_path / f"saved.{rank}").exists() for rank in (0, 1)] == [True, True]


def test_a_job_that_is_released_while_it_is_started_keeps_its_slots_until_it_has_ended(
    client, engine, tmp_path
):
    engine.may_go_on.clear()
    client.submit(shell("a", f"touch {tmp_path}/ran; exec sleep 600"))
    assert engine.begun.wait(PATIENCE_S)
    client.release("a", "changed my mind")
    agent = Agent(client.address, "a")
    assert eventually(lambda: (now := client.job("a")).attached and now).reason == "changed my mind"
    client.submit(shell("b", "true"))
    assert client.job("b").state == pb.QUEUED
    engine.may_go_on.set()
    status = over(client, "a")
    assert (status.state, status.reason) == (pb.ENDED, "changed my mind")
    agent.leave()
    assert over(client, "b").reason == "finished"


def test_a_launch_that_fails_by_what_passes_is_tried_again(client, engine):
    engine.failures = [OSError(errno.EAGAIN, "Resource temporarily unavailable")] * 2
    client.submit(shell("a", "true"))
    assert over(client, "a").reason == "finished"
    assert not engine.failures


def test_a_launch_that_fails_again_and_again_ends_the_job_and_frees_its_slots(client, engine, monkeypatch):
    monkeypatch.setattr(engine_jobs, "LAUNCH_S", 0.0)
    engine.failures = [OSError(errno.ENOSPC, "No space left on device")]
    client.submit(shell("a", "true"))
    status = over(client, "a")
    assert (status.state, status.reason) == (pb.FAILED, "No space left on device")
    assert client.status().servers[0].cpu_slots_free == 2


def test_a_slot_that_is_not_free_yet_is_waited_for(client, engine):
    holder = engine.start(EngineJob("other", ("sleep", "600"), 2, {}), [HostShare("a", (0, 1))])
    assert holder.job_id == "other"
    engine.begun.clear()
    client.submit(shell("a", "true"))
    assert engine.begun.wait(PATIENCE_S)
    engine.stop("other")
    assert over(client, "a").reason == "finished"
