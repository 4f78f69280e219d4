"""The times of a job on every number of GPUs, on one node where it fits there, and the numbers that it uses well."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TypeAlias

from placement.policies.schedulers.non_preemptive import Scheme
from placement.policies.schedulers.scheduler import JobView, deadline_of, progress

LEAST_EFFICIENCY = Fraction(3, 4)
"""Of 0.72 to 0.85 the best on traces with seeds 100 to 299, at both bandwidths of the DRS evaluation."""

Option: TypeAlias = tuple[int, bool, int]
"""A number of GPUs, whether across nodes, and the run time on them."""

_MOST_KNOWN = 4096
_KNOWN: dict[Hashable, Speeds] = {}


@dataclass(frozen=True)
class LargerShare:
    """A larger number of GPUs for a job.

    Attributes:
        gain: in speed, over that on the fewest GPUs, per GPU added.
        gpus: the number.
    """

    gain: float
    gpus: int


class Speeds:
    """The times of a job in an otherwise idle cluster.

    Args:
        job: its view.
        most: the GPUs of the cluster.
        per_node: the GPUs of its largest node.
    """

    def __init__(self, job: JobView, most: int, per_node: int) -> None:
        self.fewest, self.most = job.gpus_min, min(job.gpus_max, most)
        numbers = range(self.fewest, self.most + 1)
        self._time = {
            gpus: Fraction(job.times.iteration_ns(gpus, gpus <= per_node)) / Fraction(progress(job, gpus))
            for gpus in numbers
        }
        self._speed = {
            0: 0.0,
            **{gpus: float(self._time[self.fewest] / self._time[gpus]) for gpus in numbers},
        }
        self._shortest = min(self._time.values())
        self._steps: dict[tuple[int, int], LargerShare | None] = {}
        self._shorter: dict[int, int | None] = {}
        self._rates: dict[int, tuple[float, ...]] = {}

    def time_ns(self, gpus: int) -> Fraction:
        """The time of an iteration with `gpus_wanted` workers' worth of samples."""
        return self._time[gpus]

    def rates(self, most: int) -> tuple[float, ...]:
        """The iterations a ns on 0 to `most` GPUs: 0 on fewer than it can run on, no more on more than it can use."""
        if most not in self._rates:
            of = [float(1 / time) for time in self._time.values()]
            self._rates[most] = (*(0.0,) * self.fewest, *of, *of[-1:] * (most - self.most))
        return self._rates[most]

    def within(self, limit_ns: float | Fraction, left: float | Fraction) -> int | None:
        """The fewest GPUs on which so many iterations take no longer than a time; None if there are none."""
        if limit_ns < 0:
            return None
        if left == 0:
            return self.fewest
        longest = Fraction(limit_ns) / Fraction(left)
        if self._shortest > longest:
            return None
        return next(gpus for gpus, time in self._time.items() if time <= longest)

    def shorter(self, present: int) -> int | None:
        """The next larger number of GPUs than these that is faster; the fewest, if `present` is 0."""
        if present == 0:
            return self.fewest
        if present not in self._shorter:
            numbers = range(present + 1, self.most + 1)
            self._shorter[present] = next(
                (gpus for gpus in numbers if self._time[gpus] < self._time[present]), None
            )
        return self._shorter[present]

    def step(self, present: int, left: int) -> LargerShare | None:
        """The step from `present` GPUs, by at most `left`, with the greatest gain per GPU; the shortest of equals.

        None if no larger number within reach is faster.
        """
        key = present, left
        if key not in self._steps:
            self._steps[key] = self._best_step(present, left)
        return self._steps[key]

    def _best_step(self, present: int, left: int) -> LargerShare | None:
        best: LargerShare | None = None
        for gpus in range(max(present + 1, self.fewest), min(present + left, self.most) + 1):
            gain = (self._speed[gpus] - self._speed[present]) / (gpus - present)
            if gain > 0 and (best is None or gain > best.gain):
                best = LargerShare(gain, gpus)
        return best


def speeds_of(job: JobView, most: int, per_node: int) -> Speeds:
    """The speeds of a job; those of jobs with equal times are worked out once."""
    key = job.times, job.gpus_wanted, job.gpus_min, job.gpus_max, job.noise_scale, most, per_node
    if key not in _KNOWN:
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        _KNOWN[key] = Speeds(job, most, per_node)
    return _KNOWN[key]


# -- efficient numbers of GPUs -----------------------------------------------------------------------------------------


def efficient_scheme(
    job: JobView, now_ns: int, node: int, gpus: int, least: Fraction = LEAST_EFFICIENCY
) -> Scheme | None:
    """The scheme of the job if it started now: the efficient number of GPUs, or the next larger one that is in time.

    The efficient number is the largest part of a node (all of it, a half, a quarter ...) whose efficiency is at least
    `least`. Beyond a node come two, three ... nodes.

    Args:
        job: a job that waits.
        now_ns: the time.
        node: the GPUs of the largest node.
        gpus: of the cluster.
        least: the efficiency, 0 to 1.

    Returns:
        None if the job would end late on any of these numbers.

    Raises:
        UsageError: the job has no deadline.
    """
    begin_ns = now_ns + job.restart_ns
    for size, cross_node, run_ns in efficient_options(job, job.iterations_left, node, gpus, least):
        if begin_ns + run_ns <= deadline_of(job):
            return Scheme(size, cross_node, begin_ns + run_ns)
    return None


def efficient_options(
    job: JobView, iterations: float | Fraction, node: int, gpus: int, least: Fraction = LEAST_EFFICIENCY
) -> tuple[Option, ...]:
    """The efficient number of GPUs and larger ones, for so many iterations."""
    return _options(speeds_of(job, gpus, node), iterations, node, least)


def efficiency(speeds: Speeds, gpus: int) -> Fraction:
    """A job's speed per GPU, relative to that on the fewest that it can run on."""
    return speeds.fewest * speeds.time_ns(speeds.fewest) / (gpus * speeds.time_ns(gpus))


@lru_cache(maxsize=4096)
def _options(speeds: Speeds, iterations: float | Fraction, node: int, least: Fraction) -> tuple[Option, ...]:
    sizes = _sizes(speeds, node, least)
    return tuple((size, size > node, math.ceil(iterations * speeds.time_ns(size))) for size in sizes)


def _sizes(speeds: Speeds, node: int, least: Fraction) -> tuple[int, ...]:
    """The efficient number, and larger ones: parts of a node and multiples of it, or the fewest GPUs of the job."""
    parts = {node >> shift for shift in range(node.bit_length())}
    whole = set(range(2 * node, speeds.most + 1, node))
    possible = sorted(
        size for size in parts | whole | {speeds.fewest} if speeds.fewest <= size <= speeds.most
    )
    efficient = [size for size in possible if size <= node and efficiency(speeds, size) >= least]
    smallest = efficient[-1] if efficient else speeds.fewest
    return tuple(size for size in possible if size >= smallest)
