"""Jobs that an engine runs for the service, with real processes on this machine."""

import json

import pytest

from mltcp.core.address import Address
from placement.client.client import Client
from placement.engines.hosts import Host
from placement.engines.local import LocalEngine
from placement.service.embedded_gate import EmbeddedGate
from placement.service.protocol import placement_pb2 as pb
from tests.unit.placement.service.serving import eventually, serving

pytestmark = pytest.mark.slow

PATIENCE_S = 90


@pytest.fixture
def client(tmp_path):
    engine = LocalEngine((Host("a", "127.0.0.1", "lo", slots=2),), tmp_path / "logs")
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
