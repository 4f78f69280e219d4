"""An upper bound on the deadlines that any schedule meets, even one that knows the future and restarts for nothing.

A job that meets its deadline uses at least a certain GPU time between its arrival and its deadline: with the concave
hull f of its speed by number of GPUs, and work w in a window of L seconds, that is L * f^-1(w / L), by Jensen's
inequality. The relaxation keeps only that: a job is any amount of GPU time up to this one, given at any moments of its
window, by all GPUs of the cluster as one resource, and it counts by the fraction that it gets. The amounts that can be
given together are a polymatroid (flows from jobs to moments), so that the greedy rule, the least GPU time first, finds
the optimum of this linear program (Edmonds, 1970). A real schedule meets a whole number of deadlines: the optimum is
rounded down.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import numpy as np

from mltcp.core.errors import UsageError
from placement.model.throughput import RingAllReduce, Workload, spread
from placement.simulator.rates.timed_job import RatesSettings
from placement.traces.deadlines import DeadlineTrace

MOST_JOBS = 3000
"""Of a trace: the bound takes memory for the square of their number."""

_ROUNDING = 1e-6


@dataclass(frozen=True)
class TraceBound:
    """The upper bound of a trace.

    Attributes:
        trace: its name.
        seed: of a trace that was drawn; None if it was read.
        jobs: M.
        most: no schedule meets more deadlines than these.
    """

    trace: str
    seed: int | None
    jobs: int
    most: int

    @property
    def guarantee_rate(self) -> float:
        """No schedule has a larger R_trace."""
        return self.most / self.jobs


def bound_of(trace: DeadlineTrace, settings: RatesSettings) -> TraceBound:
    """The upper bound of a trace on a cluster.

    Raises:
        UsageError: the trace has more than `MOST_JOBS` jobs, or speeds depend on more than the number of GPUs and
            whether they are on one node.
    """
    if len(trace.jobs) > MOST_JOBS:
        raise UsageError(f"{trace.name}: jobs: expected up to {MOST_JOBS} for a bound, got {len(trace.jobs)}")
    if not isinstance(settings.model, RingAllReduce):
        raise UsageError("bound: expected the ring all-reduce model, got another throughput model")
    hulls = {job.workload: speed_hull(job.workload, settings) for job in trace.jobs}
    demands = [
        least_gpu_time(hulls[job.workload], job.workload.total_samples, job.deadline_ns - job.arrival_ns)
        for job in trace.jobs
    ]
    arrivals = np.array([job.arrival_ns for job in trace.jobs], float)
    deadlines = np.array([job.deadline_ns for job in trace.jobs], float)
    most = math.floor(
        relaxed_optimum(arrivals, deadlines, demands, settings.nodes * settings.gpus) + _ROUNDING
    )
    return TraceBound(trace.name, trace.seed, len(trace.jobs), most)


def speed_hull(workload: Workload, settings: RatesSettings) -> list[tuple[int, Fraction]]:
    """The corners of the concave hull of the speed: numbers of GPUs from 0, and samples a nanosecond on them."""
    hull: list[tuple[int, Fraction]] = [(0, Fraction(0))]
    for gpus in range(1, settings.nodes * settings.gpus + 1):
        kinds = {gpus <= settings.gpus, settings.nodes == 1}
        speed = max(
            settings.model.samples_per_ns(workload, spread(gpus, settings.gpus, one_node))
            for one_node in kinds
        )
        if speed <= hull[-1][1]:
            continue
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) <= _slope(hull[-2], (gpus, speed)):
            hull.pop()
        hull.append((gpus, speed))
    return hull


def least_gpu_time(hull: list[tuple[int, Fraction]], work: int | Fraction, window_ns: int) -> float:
    """The least GPU time in ns in which so many samples are trained within a window; infinite if it is too short."""
    speed = Fraction(work, window_ns)
    for before, after in pairwise(hull):
        if speed <= after[1]:
            gpus = before[0] + (speed - before[1]) / _slope(before, after)
            return float(window_ns * gpus)
    return math.inf


def relaxed_optimum(arrivals: np.ndarray, deadlines: np.ndarray, demands: list[float], gpus: int) -> float:
    """The optimum of the relaxation.

    Args:
        arrivals: ascending, in ns.
        deadlines: of the same jobs.
        demands: the least GPU time of each, in ns.
        gpus: of the cluster.
    """
    ends = np.sort(deadlines)
    room = gpus * (ends[None, :] - arrivals[:, None])  # left in each interval from an arrival to a deadline
    total = 0.0
    for job in np.argsort(demands, kind="stable"):
        if math.isinf(demands[job]):
            break
        first = np.searchsorted(arrivals, arrivals[job], side="right")
        last = np.searchsorted(ends, deadlines[job], side="left")
        around = room[:first, last:]
        given = min(demands[job], max(0.0, float(around.min())))
        around -= given
        total += given / demands[job]
    return total


def _slope(before: tuple[int, Fraction], after: tuple[int, Fraction]) -> Fraction:
    return (after[1] - before[1]) / (after[0] - before[0])
