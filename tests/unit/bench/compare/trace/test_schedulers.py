"""The compiled placement policies as schedulers."""

from dataclasses import dataclass

import pytest

from bench.compare.trace.trace import scheduler
from mltcp.core.errors import UsageError
from placement.model.cluster import Cluster
from placement.policies.schedulers.scheduler import JobView

CLUSTER = Cluster.star(servers=3, gpus=2)


@dataclass(frozen=True)
class IterationTimes:
    ns: int = 1000

    def iteration_ns(self, workers, one_node):
        return self.ns


def job(name, gpus, left=10.0, arrival=0, at=(), ns=1000):
    return JobView(name, arrival, gpus, gpus, gpus, 100.0, left, IterationTimes(ns), tuple(at))


def placed(name, *jobs):
    decision = scheduler(name, False, 0).decide(CLUSTER, 10**9, 0, jobs, lambda job, workers: None)
    return dict(decision.assignment)


def test_first_fit_takes_the_first_free_slots():
    assert placed("first-fit", job("there", 2, at=(0, 3)), job("new", 3)) == {
        "there": (0, 3),
        "new": (1, 2, 4),
    }


def test_lwf_takes_whole_servers_with_the_least_work():
    there = (job("long", 1, left=90, at=(0,)), job("short", 1, left=5, at=(2,)))
    assert placed("lwf-1", *there, job("new", 2))["new"] == (4, 5)
    assert placed("lwf-2", *there, job("new", 2))["new"] == (1, 3)


def test_the_shortest_goes_first_and_what_does_not_fit_is_passed_over():
    there, large = job("there", 1, at=(0,)), job("large", 6, left=1)
    found = placed("first-fit", there, large, job("long", 2, left=50), job("short", 1, left=10))
    assert found == {"there": (0,), "short": (1,), "long": (2, 3)}


def test_jobs_that_run_are_never_moved():
    assert placed("random", job("a", 2, at=(1, 4)))["a"] == (1, 4)


def test_an_unknown_scheduler_is_refused():
    with pytest.raises(UsageError):
        scheduler("best", False, 0)
