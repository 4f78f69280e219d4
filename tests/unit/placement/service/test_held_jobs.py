"""Jobs that a workload manager holds for the service, and GPUs that it gives to others; here it is a script."""

import threading

import pytest

from placement.client.client import Client
from placement.engines.engine import EngineError, HeldJob, HostUsed, JobFinished, JobHandle, JobsHeld
from placement.engines.engine_base import EventQueue
from placement.service.protocol import placement_pb2 as pb
from tests.unit.placement.service.serving import eventually, serving


class ScriptedManager:
    """An engine of which the test says what its workload manager holds; starts are written down."""

    jobs_survive = True

    def __init__(self):
        self.events, self.started, self.declined = EventQueue(), {}, {}
        self.refuses, self.lock = set(), threading.Lock()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def start(self, job, placement):
        if job.held in self.refuses:
            raise EngineError(f"job {job.id}: no such job")
        self.started[job.id] = {share.host: share.slots for share in placement}
        return JobHandle(job.id, job.held)

    def poll(self, timeout_s=0.0):
        return self.events.take(timeout_s)

    def stop(self, job_id, grace_s=0.0):
        raise AssertionError(job_id)

    def recover(self, known):
        pass

    def decline(self, reference, why):
        self.declined[reference] = why

    def close(self):
        pass

    def holds(self, *jobs):
        self.events.put(JobsHeld(jobs))


@pytest.fixture
def manager():
    return ScriptedManager()


@pytest.fixture
def client(tmp_path, manager):
    servers = tuple(pb.Server(name=f"n{each}", gpus=4, nic_bps=10**10, switch="leaf") for each in (1, 2, 3))
    with serving(tmp_path, servers=servers, engine=manager) as address, Client(address) as made:
        yield made


def free(client):
    return [each.gpus_free for each in client.status().servers]


def test_a_held_job_gets_hosts_on_which_it_may_run(client, manager):
    manager.holds(HeldJob("7", "ann", 4, 4, ("n3",)), HeldJob("8", "ann", 4, 2, ("n2", "n3", "elsewhere")))
    eventually(lambda: "slurm-7" in manager.started)
    assert list(manager.started["slurm-7"]) == ["n3"]
    # The second one waits for two of each of two hosts, of which one is full; it is not given any other.
    assert "8" not in manager.declined
    assert client.job("slurm-8").state == pb.QUEUED
    manager.events.put(JobFinished("slurm-7"))
    eventually(lambda: "slurm-8" in manager.started)
    assert list(manager.started["slurm-8"]) == ["n2", "n3"]


def test_what_cannot_be_placed_is_given_back_with_the_reason(client, manager):
    manager.refuses.add("3")
    manager.holds(
        HeldJob("1", "ann", 8, 8), HeldJob("2", "ann", 1, 1, ("elsewhere",)), HeldJob("3", "ann", 1, 1)
    )
    eventually(lambda: set(manager.declined) == {"1", "2", "3"})
    assert "expected at most 0, the GPUs, 8 of each server, of the cluster" in manager.declined["1"]
    assert "expected a known server, got elsewhere" in manager.declined["2"]
    assert "no such job" in manager.declined["3"]
    assert free(client) == [4, 4, 4]


def test_a_changed_job_is_placed_as_it_is_now_and_a_number_serves_again(client, manager):
    manager.events.put(HostUsed("n1", 4))
    manager.events.put(HostUsed("n2", 4))
    manager.holds(HeldJob("7", "ann", 8, 4))
    eventually(lambda: any(each.id == "slurm-7" for each in client.status().jobs))
    manager.holds(HeldJob("7", "ann", 2, 2))
    eventually(lambda: "slurm-7" in manager.started)
    assert manager.started["slurm-7"] == {"n3": (0, 1)}
    manager.holds()
    manager.events.put(JobFinished("slurm-7"))
    eventually(lambda: client.job("slurm-7").state == pb.ENDED)
    manager.holds(HeldJob("7", "bob", 3, 3))
    eventually(lambda: len(manager.started["slurm-7"]["n3"]) == 3)
    assert client.job("slurm-7").owner == "bob"


def test_gpus_that_others_use_are_given_to_nobody(client, manager):
    manager.events.put(HostUsed("n1", 3))
    manager.events.put(HostUsed("n2", 4))
    manager.events.put(HostUsed("n3", 2))
    eventually(lambda: free(client) == [1, 0, 2])
    manager.holds(HeldJob("1", "ann", 2, 2), HeldJob("2", "ann", 2, 2))
    eventually(lambda: "slurm-1" in manager.started)
    assert list(manager.started["slurm-1"]) == ["n3"]
    assert client.job("slurm-2").state == pb.QUEUED
    assert "used by others" in client.explain("slurm-2").summary
    # The job's end frees its own two GPUs, and not those of others.
    manager.events.put(JobFinished("slurm-1"))
    eventually(lambda: "slurm-2" in manager.started)
    assert free(client) == [1, 0, 0]
    manager.events.put(HostUsed("n2", 0))
    eventually(lambda: free(client) == [1, 4, 0])
