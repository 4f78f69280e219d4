"""Laws of the mean guarantee rate over many traces: it falls with the load, and rises with the size of the cluster."""

from dataclasses import replace
from functools import cache
from statistics import fmean

import pytest

from placement.experiments.deadline_jobs import run_trace
from placement.model.throughput import RingAllReduce
from placement.policies.schedulers.deadlines.rules import RULES
from placement.simulator.rates.timed_job import RatesSettings
from placement.traces.deadlines import DeadlineJob, DrsMix
from tests.unit.placement.simulator.rates.whole_jobs import DEADLINE_SCHEDULERS

MIX = DrsMix(rate=4, hours=8, urgent=0.2)
SETUP = RatesSettings(RingAllReduce(), nodes=3, restart_ns=60 * 10**9)


@cache
def rate(name, mix=MIX, setup=SETUP, epochs=1):
    """The mean guarantee rate; runs that are not compiled take longer, and are fewer."""
    seeds = 100 if name in RULES else 6
    return fmean(
        run_trace(longer(mix.trace(seed), epochs), setup, name).guarantee_rate for seed in range(seeds)
    )


def longer(trace, factor):
    """The trace with so many times the epochs: deadlines follow the work."""
    jobs = (
        DeadlineJob.with_priority(
            job.name, job.arrival_ns, replace(job.workload, epochs=job.workload.epochs * factor), job.alpha
        )
        for job in trace.jobs
    )
    return trace if factor == 1 else replace(trace, jobs=tuple(jobs))


@pytest.mark.slow
@pytest.mark.parametrize("name", DEADLINE_SCHEDULERS)
def test_the_rate_falls_with_load_and_urgency_and_rises_with_nodes(name):
    usual = rate(name)
    assert rate(name, mix=replace(MIX, rate=8)) < usual
    assert rate(name, epochs=2) < usual
    assert rate(name, mix=replace(MIX, urgent=0.6)) < usual
    assert rate(name, setup=replace(SETUP, nodes=4)) > usual
