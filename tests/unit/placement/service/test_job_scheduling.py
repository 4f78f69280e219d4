"""The loop of decisions about all jobs: it goes on after a scheduler has failed, and forgets jobs that are over."""

import asyncio
import logging
from types import SimpleNamespace

import pytest

from mltcp.core.errors import UsageError
from placement.policies.schedulers.elastic import ElasticEdf
from placement.service.context import ServiceRules
from placement.service.deciding.decider import DirectDecider
from placement.service.decisions.job_scheduling import JobScheduling


@pytest.mark.parametrize("error", [UsageError("deadline: expected one"), ZeroDivisionError("of a scheduler")])
def test_a_decision_that_fails_is_logged_and_the_next_one_is_made(caplog, error):
    class Failing(JobScheduling):
        steps = 0

        async def _step(self):
            self.steps += 1
            if self.steps == 1:
                self.changed("k was queued")
                raise error
            raise asyncio.CancelledError

    registry = SimpleNamespace(jobs={})
    clock = SimpleNamespace(now_ns=lambda: 0)
    context = SimpleNamespace(registry=registry, clock=clock, rules=ServiceRules())
    scheduling = Failing(context, DirectDecider(ElasticEdf()), None, lambda job: None, None)
    scheduling.changed("j was queued")
    with caplog.at_level(logging.ERROR), pytest.raises(asyncio.CancelledError):
        asyncio.run(asyncio.wait_for(scheduling.run(), 30))
    assert scheduling.steps == 2
    assert "elastic-edf" in caplog.text
    assert str(error) in caplog.text


def test_jobs_that_are_over_are_forgotten():
    registry = SimpleNamespace(
        jobs={"ended": SimpleNamespace(over=True, spec=SimpleNamespace(elastic=False))}
    )
    registry.jobs["ended"].placed, registry.jobs["ended"].state = False, None
    context = SimpleNamespace(
        registry=registry,
        clock=SimpleNamespace(now_ns=lambda: 0),
        rules=ServiceRules(),
        placements_changed=lambda: None,
    )
    scheduling = JobScheduling(context, DirectDecider(ElasticEdf()), None, lambda job: None, None)
    for job in ("ended", "pruned"):
        scheduling.stopped(job)
    asyncio.run(scheduling._decide("a job was stopped"))
    assert scheduling._queued_ns == {}
