"""The durable state of jobs that are stopped and queued again: in the store, and after the service was killed."""

import asyncio
import json
from dataclasses import replace

import pytest

from mltcp.core.errors import UsageError
from placement.client.client import Client, ServiceError
from placement.engines.hosts import Host
from placement.engines.local import LocalEngine
from placement.service.context import ServiceRules
from placement.service.protocol import placement_pb2 as pb
from placement.service.state.job_record import JobRecord
from placement.service.state.persistence import recovered, save_job, save_new_job, save_server
from placement.service.state.registry import Registry
from placement.service.state.store import VERSION, Store
from tests.unit.placement.service.serving import as_of_version, eventually, job, serving, version_of

SERVER = pb.Server(name="a", cpu_slots=4, nic_bps=1, switch="r")
DEAD = 4_194_303
"""No process has this pid on a machine that has not been up for years."""


def spec(name="j", **fields):
    return pb.Job(id=name, cpu_slots=2, iterations=100, elastic=True, command=["true"], **fields)


def saved(path, *changes):
    """A database with a server and a job that was placed on slots 1 to 3; the changes are made in turn."""

    async def write():
        store = Store(path, pytest.fail)
        store.start(asyncio.get_running_loop())
        registry = Registry()
        registry.add_servers([SERVER])
        save_server(store, 0, SERVER)
        record = JobRecord(0, spec(), None, pb.QUEUED, submitted_ns=5)
        registry.add_job(record)
        save_new_job(store, record)
        registry.place(record, (1, 2, 3), (), 7)
        for change in changes:
            change(registry)
            save_job(store, registry.jobs["j"], registry.places(registry.jobs["j"]))
        await store.committed()
        store.close()
        return registry

    return asyncio.run(write())


def reopened(path):
    store = Store(path, pytest.fail)
    try:
        return recovered(store)
    finally:
        store.close()


def stopping(registry):
    reference = json.dumps({"directory": "/nonexistent", "processes": [[DEAD, 1]]})
    record = registry.progress(registry.jobs["j"], 30)
    registry.update(replace(record, state=pb.STOPPING, reason="to make room", engine=reference))


def requeued(registry):
    registry.requeue(registry.jobs["j"], "made room", 40)


def test_a_job_that_is_being_stopped_keeps_its_slots_until_it_is_queued_again(tmp_path):
    before = saved(tmp_path / "s.db", stopping)
    after = reopened(tmp_path / "s.db")
    assert after.jobs["j"] == before.jobs["j"]
    assert (after.jobs["j"].slots, after.cpu_slots.free, "j" in after.waiting) == ((1, 2, 3), 1, False)
    registry = saved(tmp_path / "t.db", stopping, requeued)
    again = reopened(tmp_path / "t.db")
    assert again.jobs["j"] == registry.jobs["j"]
    assert (again.jobs["j"].done, again.jobs["j"].restarts, again.jobs["j"].engine) == (40, 1, "")
    assert (again.cpu_slots.free, "j" in again.waiting) == (4, True)
    assert registry.cpu_slots.free == 4
    assert not registry.cpu_slots.gpus["workload"].any()


def test_a_job_whose_service_was_killed_while_it_was_stopped_goes_on(tmp_path):
    saved(tmp_path / "state.db", stopping)
    engine = LocalEngine((Host("a", "127.0.0.1", "lo", slots=4),), tmp_path / "logs")
    with serving(tmp_path, engine=engine) as address, Client(address) as client:
        status = eventually(lambda: (found := client.job("j")).state == pb.ENDED and found)
    assert (status.restarts, status.reason) == (1, "finished")


def test_a_database_of_version_1_is_read_and_extended(tmp_path):
    saved(tmp_path / "s.db", requeued)
    as_of_version(tmp_path / "s.db", 1)
    found = reopened(tmp_path / "s.db").jobs["j"]
    assert (found.state, found.done, found.restarts, found.reason) == (pb.QUEUED, 0, 0, "made room")
    assert version_of(tmp_path / "s.db") == VERSION


def test_a_scheduler_of_whole_jobs_needs_an_engine_and_jobs_that_can_be_moved(tmp_path):
    with (
        pytest.raises(UsageError, match="expected an engine with drs"),
        serving(tmp_path, rules=ServiceRules("drs")),
    ):
        pass
    with serving(tmp_path, servers=(SERVER,)) as address, Client(address) as client:
        client.submit(pb.Job(id="fixed", cpu_slots=1, iterations=1))
        with pytest.raises(ServiceError, match=r"^job.policy: expected a policy for single jobs, since"):
            client.submit(job("k", 1, policy="drs"))
        with pytest.raises(ServiceError, match=r"^job_id: expected a job that an engine runs, got 'fixed'"):
            client.requeue("fixed")
    engine = LocalEngine((Host("a", "127.0.0.1", "lo", slots=4),), tmp_path / "logs")
    with (
        pytest.raises(UsageError, match="expected one for job 'fixed', which is not elastic, got drs"),
        serving(tmp_path, rules=ServiceRules("drs"), engine=engine),
    ):
        pass


def test_the_jobs_that_are_not_over_are_those_whose_records_say_so():
    registry = Registry()
    registry.add_servers([SERVER])

    def agree():
        return registry.unended == {name: each for name, each in registry.jobs.items() if not each.over}

    for number, name in enumerate("jkl"):
        registry.add_job(JobRecord(number, spec(name), None, pb.QUEUED))
        assert agree()
    registry.place(registry.jobs["j"], (0, 1), (), 7)
    registry.progress(registry.jobs["j"], 30)
    assert agree()
    registry.requeue(registry.jobs["j"], "made room", 40)
    registry.end(registry.jobs["k"], pb.FAILED, "boom", 8)
    assert agree()
    assert list(registry.unended) == ["j", "l"]
    registry.forget(0, 0)
    assert agree()
    assert list(registry.jobs) == ["j", "l"]
