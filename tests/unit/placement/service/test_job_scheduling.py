"""The loop of decisions about all jobs: it goes on after a scheduler has failed, and forgets jobs that are over."""

import asyncio
import logging
from dataclasses import replace
from types import SimpleNamespace

import pytest

from mltcp.core.errors import UsageError
from placement.policies.schedulers.elastic import ElasticEdf
from placement.service.context import ServiceRules
from placement.service.counts import ServiceCounts
from placement.service.decisions.decider import Decider
from placement.service.decisions.job_scheduling import JobScheduling
from placement.service.decisions.policy_trial import PolicyTrial
from placement.service.protocol import placement_pb2 as pb
from placement.service.state.job_record import JobRecord
from placement.service.state.registry import Registry


def scheduling_of(registry, kind=JobScheduling):
    """A loop of decisions about the jobs of a registry, and what it is called with when a job changes."""
    listeners = []
    context = SimpleNamespace(
        registry=registry,
        clock=SimpleNamespace(now_ns=lambda: 0),
        rules=ServiceRules(),
        placements_changed=lambda: None,
        counts=ServiceCounts(),
        records=SimpleNamespace(switch=None),
    )
    lifecycle = SimpleNamespace(subscribe=listeners.append)
    trial = PolicyTrial(context, Decider(ElasticEdf()), None, None)
    return kind(context, lifecycle, trial, None), listeners[0]


@pytest.mark.parametrize("error", [UsageError("deadline: expected one"), ZeroDivisionError("of a scheduler")])
def test_a_decision_that_fails_is_logged_and_the_next_one_is_made(caplog, error):
    class Failing(JobScheduling):
        steps = 0

        async def _step(self):
            self.steps += 1
            if self.steps == 1:
                self.capacity_changed("k was queued")
                raise error
            raise asyncio.CancelledError

    scheduling, _ = scheduling_of(Registry(), Failing)
    scheduling.capacity_changed("j was queued")
    with caplog.at_level(logging.ERROR), pytest.raises(asyncio.CancelledError):
        asyncio.run(asyncio.wait_for(scheduling.run(), 30))
    assert scheduling.steps == 2
    assert "elastic-edf" in caplog.text
    assert str(error) in caplog.text


def test_a_service_that_is_stopped_as_something_happens_ends():
    """`asyncio.wait_for` of Python 3.11 would lose the cancellation, and the service would never stop."""

    class InRounds(JobScheduling):
        def _due_s(self):
            return 3600

    scheduling, _ = scheduling_of(Registry(), InRounds)

    async def stop_at_a_change():
        loop = asyncio.create_task(scheduling.run())
        for _ in range(5):  # until it waits
            await asyncio.sleep(0)
        scheduling.capacity_changed("j was queued")
        loop.cancel()
        _, running = await asyncio.wait({loop}, timeout=10)
        loop.cancel()
        return not running

    assert asyncio.run(stop_at_a_change())


def test_jobs_that_are_over_are_forgotten():
    jobs = {name: JobRecord(0, pb.Job(id=name), None, pb.PLACED) for name in ("ended", "pruned")}
    registry = Registry()
    registry.add_job(replace(jobs["ended"], state=pb.ENDED))
    scheduling, job_changed = scheduling_of(registry)
    for job in jobs.values():
        job_changed(job, replace(job, state=pb.QUEUED))
    asyncio.run(scheduling._decide("a job was stopped"))
    assert scheduling._queued_ns == {}
