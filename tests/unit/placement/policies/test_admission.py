"""Admission by Moore and Hodgson's rule, efficient numbers of GPUs, and the schedulers that use them."""

import math
from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement.model.cluster import Cluster
from placement.model.throughput import RingAllReduce
from placement.policies.schedulers.admission import admitted
from placement.policies.schedulers.elastic import ElasticDensity
from placement.policies.schedulers.registry import named_scheduler
from placement.policies.schedulers.scheduler import JobView
from placement.policies.schedulers.speeds import efficiency, efficient_scheme, speeds_of
from placement.simulator.rates.timed_job import ModelTimes, TimedJob
from placement.simulator.scheduled_job import ScheduledJob
from placement.traces.deadlines import WORKLOADS, DeadlineJob

NAMED = {workload.name: workload for workload in WORKLOADS}


def view(workload, alpha, name="j"):
    job = DeadlineJob.with_priority(name, 0, workload, Fraction(alpha))
    return ScheduledJob(TimedJob.elastic(job, ModelTimes(RingAllReduce(), workload, 4), 16)).view(0)


class Linear:
    """Steps of one second, whatever the number of workers."""

    def iteration_ns(self, workers, one_node):
        return 10**9


def linear(name, seconds, deadline_s, gpus_min=1, gpus=()):
    """A job of so many seconds on `gpus_min` GPUs, twice as fast on twice as many."""
    deadline_ns, work = deadline_s * 10**9, (seconds, seconds)
    return JobView(
        name, 0, gpus_min, gpus_min, 8, *work, Linear(), gpus, deadline_ns=deadline_ns, noise_scale=math.inf
    )


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 60)), max_size=8))
def test_moore_and_hodgson_give_up_as_few_jobs_as_possible(jobs):
    jobs.sort(key=lambda job: job[1])

    def feasible(chosen):
        return all(
            sum(work for work, _ in chosen[: count + 1]) <= chosen[count][1] for count in range(len(chosen))
        )

    kept = admitted(jobs)
    assert feasible([jobs[position] for position in kept])
    most = max(
        count
        for count in range(len(jobs) + 1)
        if any(feasible(chosen) for chosen in combinations(jobs, count))
    )
    assert len(kept) == most


@pytest.mark.parametrize(
    ("name", "gpus"), [("AlexNet", 1), ("VGG-16", 1), ("ResNet-18", 2), ("ResNet-152", 4), ("TSN", 4)]
)
def test_a_job_gets_the_gpus_that_it_uses_well(name, gpus):
    scheme = efficient_scheme(view(NAMED[name], "3/2"), 0, 4, 16)
    assert (scheme.gpus, scheme.cross_node) == (gpus, False)


@given(
    workload=st.sampled_from(WORKLOADS),
    alpha=st.sampled_from(["1/2", "1", "3/2"]),
    late=st.integers(0, 40_000),
)
def test_an_efficient_scheme_is_in_time_and_no_larger_than_it_must_be(workload, alpha, late):
    job, now_ns = view(workload, alpha), late * 10**9
    speeds, scheme = speeds_of(job, 16, 4), efficient_scheme(job, now_ns, 4, 16)
    in_time = {
        gpus
        for gpus in (1, 2, 4, 8, 12, 16)
        if now_ns + math.ceil(job.iterations_left * speeds.time_ns(gpus)) <= job.deadline_ns
    }
    if scheme is None:
        assert not in_time
    elif scheme.gpus <= 4 and efficiency(speeds, scheme.gpus) >= Fraction(3, 4):
        larger = [gpus for gpus in (1, 2, 4) if gpus > scheme.gpus]
        assert all(efficiency(speeds, gpus) < Fraction(3, 4) for gpus in larger)
    else:
        enough = [gpus for gpus in in_time if gpus >= scheme.gpus]
        assert scheme.gpus == min(enough)
        assert scheme.cross_node == (scheme.gpus > 4)


def test_elastic_density_serves_small_jobs_first_where_jobs_are_given_up():
    jobs = [linear("large", 40, 50), linear("small", 10, 60), linear("hopeless", 90, 95)]
    ordered = [(job, speeds_of(job, 1, 1)) for job in jobs]
    needs = {job.name: 1 for job in jobs}
    kept = ElasticDensity().admitted(ordered, needs, 0, 1)
    assert [job.name for job, _ in kept] == ["small", "large"]
    assert [job.name for job, _ in ElasticDensity(weight=0).admitted(ordered, needs, 0, 1)] == [
        "large",
        "small",
    ]


def test_elastic_density_takes_gpus_from_a_job_that_is_late_anyway():
    late = JobView(
        "late", 0, 1, 1, 1, 50, 50, Linear(), gpus=(0,), deadline_ns=10 * 10**9, noise_scale=math.inf
    )
    chosen = ElasticDensity().candidates(Cluster.star(1, 1), 0, [late, linear("in-time", 10, 60)])
    assert chosen == ({"in-time": (0,)},)


@pytest.mark.parametrize("scheduler", ["edf-late-last-node", "edf-efficient"])
def test_a_job_that_needs_more_than_a_node_gets_whole_nodes(scheduler):
    cluster, job = Cluster.star(3, 4), linear("wide", 60, 1000, gpus_min=6)
    assert named_scheduler(scheduler).candidates(cluster, 0, [job])[0]["wide"] in (
        tuple(range(8)),
        tuple(range(6)),
    )
    held = linear("held", 60, 1000, gpus_min=4, gpus=(0, 1, 2, 3))
    other = linear("other", 60, 1000, gpus_min=4, gpus=(4, 5, 6, 7))
    waiting = named_scheduler("edf-late-last-node").candidates(cluster, 0, [held, other, job])
    assert waiting == ({"held": (0, 1, 2, 3), "other": (4, 5, 6, 7)},)
