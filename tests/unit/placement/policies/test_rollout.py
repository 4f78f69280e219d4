"""The futures on which EDF with rollouts tries its choices."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings

from mltcp.core.errors import UsageError
from placement.policies.schedulers.edf_rollout import EdfRollout
from placement.policies.schedulers.futures import WAIT, Machines, Options, Queue, best_choice, draw, met_after
from placement.policies.schedulers.non_preemptive import NonPreemptive, Scheme
from placement.policies.schedulers.scheduler import deadline_of
from placement.policies.schedulers.speeds import efficient_options, efficient_scheme
from placement.simulator.rates.run import run_rates
from placement.simulator.rates.timed_job import ModelTimes, TimedJob
from placement.simulator.scheduled_job import ScheduledJob
from tests.unit.placement.simulator.rates.whole_jobs import settings, traces

HOUR = 3600 * 10**9


def queue(*jobs):
    return Queue(*(np.array(column, np.int64) for column in zip(*jobs, strict=True)))


NOBODY = Queue(*(np.zeros(0, np.int64) for _ in range(3)))


def options(*rows):
    """Rows of (GPUs, run time) on one node."""
    width = max(map(len, rows))
    gpus, run = np.zeros((2, len(rows), width), np.int64)
    for row, listed in enumerate(rows):
        for column, option in enumerate(listed):
            gpus[row, column], run[row, column] = option
    return Options(gpus, run, np.zeros_like(gpus))


def idle(*free):
    return Machines(np.array(free, np.int64), np.zeros(0, np.int64), np.zeros((0, len(free)), np.int64))


def test_jobs_that_would_be_late_do_not_start():
    jobs = queue((0, 10, 0), (0, 11, 0), (0, 20, 0))
    assert met_after(0, False, options([(1, 10)]), idle(1), jobs, NOBODY) == 2
    assert met_after(0, False, options([(1, 10)]), idle(2), jobs, NOBODY) == 3
    assert met_after(0, False, options([(1, 10), (2, 5)]), idle(2), queue((0, 5, 0)), NOBODY) == 1
    assert met_after(0, True, options([(1, 10)]), idle(1), jobs, queue((1, 12, 0))) == 1


@dataclass(frozen=True)
class Base(NonPreemptive):
    """The base rule by the plain means."""

    late_ns: int = 10**15

    @property
    def name(self):
        return "base"

    def share(self, job, now_ns, free):
        node, gpus = max(free.sizes), sum(free.sizes)
        scheme = efficient_scheme(job, now_ns, node, gpus)
        if scheme is None:  # late: after all others
            return Scheme(1, False, now_ns) if now_ns > self.late_ns else None
        fits = scheme.gpus <= (free.total if scheme.cross_node else max(free.counts))
        return scheme if fits else None

    def rank(self, job, now_ns, scheme):
        return (deadline_of(job),)

    def next_ns(self, now_ns, jobs):
        return self.late_ns + 1 if now_ns <= self.late_ns else None


@hypothesis_settings(max_examples=40)
@given(trace=traces(), setup=settings(costs=(0,)))
def test_a_future_is_what_a_run_of_the_base_rule_gives(trace, setup):
    listed = [
        efficient_options(view, view.iterations, setup.gpus, setup.nodes * setup.gpus)
        for view in (
            ScheduledJob(
                TimedJob.elastic(
                    job, ModelTimes(setup.model, job.workload, setup.gpus), setup.nodes * setup.gpus
                )
            ).view(0)
            for job in trace.jobs
        )
    ]
    width = max(map(len, listed))
    table = np.zeros((3, len(listed), width), np.int64)
    for row, found in enumerate(listed):
        for column, option in enumerate(found):
            table[:, row, column] = option
    come = queue(*((job.arrival_ns, job.deadline_ns, row) for row, job in enumerate(trace.jobs)))
    machines = idle(*[setup.gpus] * setup.nodes)
    met = met_after(0, False, Options(table[0], table[2], table[1]), machines, NOBODY, come)
    deadlines = [job.deadline_ns for job in trace.jobs]
    if len(set(deadlines)) == len(deadlines):  # equal ones may be taken in another order
        assert met == run_rates(trace, setup, Base()).met


def test_futures_repeat_the_jobs_that_were_seen():
    seen = queue((5, 50, 0), (7, 20, 3))
    drawn = [draw(100, 1000, 0.02, seen, seed, 400) for seed in range(1, 200)]
    for arrival, deadline, row in drawn:
        assert ((arrival >= 100) & (arrival <= 1100)).all()
        assert set(zip(deadline - arrival, row, strict=True)) <= {(45, 0), (13, 3)}
    assert np.mean([len(row) for _, _, row in drawn]) == pytest.approx(20, abs=1.5)
    assert all(
        np.array_equal(*pair) for pair in zip(drawn[0], draw(100, 1000, 0.02, seen, 1, 400), strict=True)
    )


def choice(seen, choices):
    table = options([(1, 100 * HOUR)], [(1, HOUR // 10)])
    running = Machines(np.array([1]), np.array([HOUR]), np.array([[1]]))
    long = queue((0, 300 * HOUR, 0))
    return best_choice(0, 2 * HOUR, 10 / HOUR, 16, 400, 0.1, table, running, long, seen, np.array(choices))


def test_a_long_job_waits_where_many_short_ones_are_to_come():
    assert choice(queue((0, HOUR // 5, 1)), [0, WAIT]) == 1
    assert choice(NOBODY, [0, WAIT]) == 0


def test_values_out_of_range():
    with pytest.raises(UsageError, match="edf-rollout: futures: expected more than 0, got 0"):
        EdfRollout(futures=0)
