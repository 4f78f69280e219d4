"""Elastic jobs under a scheduler of whole jobs: moved by stop and resume, with real processes."""

import re

import pytest

from placement.client.client import Client, ServiceError
from placement.engines.hosts import Host
from placement.engines.local import LocalEngine
from placement.service.context import ServiceRules
from placement.service.protocol import placement_pb2 as pb
from placement.service.state.persistence import recovered
from placement.service.state.store import Store
from tests.unit.placement.service.serving import eventually, placed, profile, serving

pytestmark = pytest.mark.slow

SERVER = pb.Server(name="a", cpu_slots=2, nic_bps=1, switch="r")
RULES = ServiceRules("elastic-edf", grace_s=100, restart_cost_s=0)
TRAINING = """
trap 'while [ ! -e go ]; do sleep 0.2; done; exit 0' TERM
[ $RANK != 0 ] || echo $MLTCP_RESTARTS:$WORLD_SIZE >> $MLTCP_JOB.runs
while [ ! -e $MLTCP_JOB.end ]; do sleep 0.2; done
"""
"""Stops on SIGTERM, as soon as there is a file `go`; ends when there is a file that asks it to."""


def training(name, directory, **fields):
    fields = {"cpu_slots": 1, "iterations": 10**6, "profile": profile((1000, 0)), "elastic": True, **fields}
    return pb.Job(id=name, command=["sh", "-c", f"cd {directory}; {TRAINING}"], **fields)


def engine(tmp_path):
    return LocalEngine((Host("a", "127.0.0.1", "lo", slots=2),), tmp_path / "logs")


def state(client, name):
    return client.job(name).state


def test_jobs_are_moved_one_decision_at_a_time_and_wait_when_the_service_is_stopped(tmp_path):
    def runs(name):
        path = tmp_path / f"{name}.runs"
        return path.read_text().split() if path.exists() else []

    with (
        serving(tmp_path, servers=(SERVER,), rules=RULES, engine=engine(tmp_path)) as address,
        Client(address) as client,
    ):
        client.submit(training("j", tmp_path))
        assert placed(client, "j").restarts == 0
        eventually(lambda: runs("j") == ["0:2"])
        assert "elastic-edf: placed on 2 slots, after j was queued" in client.explain("j").summary

        client.submit(training("k", tmp_path))
        eventually(lambda: state(client, "j") == pb.STOPPING)
        reason = client.job("j").reason
        assert re.fullmatch(r"elastic-edf stops it to go on at a:[01], after k was queued", reason)
        assert client.explain("j").summary == f"is being stopped: {reason}"
        assert client.explain("k").summary == (
            "waits: elastic-edf gives it slots that are not free yet, after k was queued"
        )
        with pytest.raises(ServiceError) as error:
            client.requeue("j")
        assert (error.value.field, error.value.code) == ("job_id", "FAILED_PRECONDITION")
        assert str(error.value) == (
            "job_id: expected a job that is PLACED and started, and not being stopped, got 'j', which is STOPPING"
        )
        with pytest.raises(
            ServiceError, match=r"^policy: expected a service whose jobs are placed one by one"
        ):
            client.place("k")
        assert runs("k") == []
        (tmp_path / "go").touch()
        eventually(lambda: runs("j") == ["0:2", "1:1"] and runs("k") == ["0:1"])
        assert [client.job(name).restarts for name in "jk"] == [1, 0]
        assert client.explain("j").summary.startswith(
            "elastic-edf: moved from a:0,1 to 1 slot (restart 1), after k was queued"
        )
    store = Store(tmp_path / "state.db", pytest.fail)
    found = recovered(store)
    store.close()
    assert [(found.jobs[name].state, found.jobs[name].restarts) for name in "jk"] == [
        (pb.QUEUED, 2),
        (pb.QUEUED, 1),
    ]
    assert {found.jobs[name].reason for name in "jk"} == {"the service was stopped"}
    assert found.cpu_slots.free == 2


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"elastic": False}, "job.elastic: expected a job with a command that can be stopped and resumed"),
        ({"policy": "lwf-1"}, "job.policy: expected none beside the service's drs, got 'lwf-1'"),
        ({"servers": ["a"]}, "job.servers: expected none under drs"),
        ({"cpu_slots": 3}, "job.cpu_slots: expected at most 2, the CPU slots of the cluster, got 3"),
    ],
)
def test_a_job_that_cannot_be_moved_is_refused(tmp_path, fields, text):
    with (
        serving(tmp_path, servers=(SERVER,), rules=ServiceRules("drs"), engine=engine(tmp_path)) as address,
        Client(address) as client,
        pytest.raises(ServiceError) as error,
    ):
        client.submit(training("j", tmp_path, **fields))
    assert str(error.value).startswith(text)
