"""The ends of the jobs that are present after a decision: by hand, and as in a run from the beginning."""

import math
from dataclasses import dataclass, replace
from fractions import Fraction

import pytest

from mltcp.core.errors import MltcpError
from placement.model.cluster import Cluster
from placement.model.job_speed import TableSpeed
from placement.model.throughput import RingAllReduce
from placement.policies.schedulers.registry import named_scheduler
from placement.policies.schedulers.scheduler import JobView
from placement.simulator.rates.present_jobs import ends_after
from placement.simulator.rates.run import run_rates, timed_jobs
from placement.simulator.rates.timed_job import RatesSettings
from placement.traces.deadlines import DrsMix

S = 10**9
TWO = Cluster.of_nodes(2, 1)


@dataclass(frozen=True)
class Shortest:
    """One GPU for each job that is running, and then for those with the least work left."""

    name: str = "shortest"
    lease_ns: int | None = None

    def candidates(self, cluster, now_ns, jobs, most=1):
        found = {job.name: job.gpus for job in jobs if job.gpus}
        free = [gpu for gpu in range(len(cluster.gpus)) if not any(gpu in held for held in found.values())]
        waiting = sorted((job for job in jobs if not job.gpus), key=lambda job: job.iterations_left)
        return ({**found, **{job.name: (gpu,) for job, gpu in zip(waiting, free, strict=False)}},)

    def next_ns(self, now_ns, jobs):
        return None


def view(name, seconds, **fields):
    times = TableSpeed((S, S // 2))
    return JobView(name, 5 * S, 1, 1, 2, seconds, seconds, times, noise_scale=math.inf, **fields)


def test_a_decision_is_carried_out_and_then_the_rule_decides():
    jobs = [view("a", 10), view("b", 4), view("c", 2)]
    one = Cluster.of_nodes(1, 1)
    assert ends_after(one, 9 * S, jobs, {"b": (0,)}, Shortest()) == {"a": 16 * S, "b": 4 * S, "c": 6 * S}
    assert ends_after(one, 9 * S, jobs, {"a": (0,)}, Shortest()) == {"a": 10 * S, "b": 16 * S, "c": 12 * S}
    assert ends_after(TWO, 9 * S, jobs[:1], {"a": (0, 1)}, Shortest()) == {"a": 5 * S // 2}


def test_a_job_that_stays_goes_on_and_one_that_moves_pays_for_its_restart():
    held = view("a", 10, gpus=(0,), restart_ns=3 * S, restart_left_ns=S, restart_cost_ns=3 * S)
    assert ends_after(TWO, 9 * S, [held], {"a": (0,)}, Shortest()) == {"a": 11 * S}
    assert ends_after(TWO, 9 * S, [held], {"a": (1,)}, Shortest()) == {"a": 13 * S}


def test_where_nothing_runs_the_rule_is_asked_after_a_round_or_never():
    assert ends_after(TWO, 9 * S, [view("a", 10)], {}, Shortest(), 2 * S) == {"a": 12 * S}
    with pytest.raises(MltcpError, match="never places a"):
        ends_after(TWO, 9 * S, [view("a", 10)], {}, Shortest())


@pytest.mark.parametrize("policy", ["drs", "elastic-mh", "hell", "srpt"])
def test_after_its_own_decision_a_scheduler_does_what_it_does_from_the_beginning(policy):
    trace = DrsMix(rate=10).trace(7)
    jobs = tuple(replace(job, arrival_ns=0) for job in trace.jobs[:6])
    trace, settings = replace(trace, jobs=jobs), RatesSettings(RingAllReduce())
    expected = run_rates(trace, settings, named_scheduler(policy))
    views = [
        JobView(
            *(job.name, 0, job.workers, job.min_workers, job.max_workers),
            *(job.iterations, Fraction(job.iterations), job.times),
            noise_scale=math.inf,
            deadline_ns=job.deadline_ns,
        )
        for job in timed_jobs(trace, settings)
    ]
    cluster, scheduler = settings.cluster(), named_scheduler(policy)
    (first, *_) = scheduler.candidates(cluster, 0, views, 1)
    found = ends_after(cluster, 0, views, first, scheduler)
    assert found == {job.name: end for job, end in zip(trace.jobs, expected.end_ns, strict=True)}
