"""The workloads and traces of the DRS evaluation.

Ten training runs of published networks, two of them "fat" (many parameters for little computation), on an RTX 2080 Ti.
Jobs arrive by a Poisson process; each draws a workload and a priority. Arrivals, workloads and priorities come from
three streams of random numbers, so that experiments that vary one of them share the others.

Sources: parameters are torchvision's counts for 1,000 classes (TSN and TSM: a ResNet-50 with 101 classes); times of a
step are published measurements on, or scaled to, an RTX 2080 Ti; CIFAR-100 has 50,000 training images and UCF-101
(split 1) 9,537 videos; the epochs give a mean run time of 4.29 h on one GPU. The paper's own table of workloads is
lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from mltcp.core.errors import UsageError
from mltcp.core.quantities import NS_PER_HOUR
from placement.model.throughput import Workload
from placement.traces.deadlines.trace import DeadlineJob, DeadlineTrace

WORKLOADS = (
    Workload("AlexNet", 61_100_840, 16, 15_000_000, 50_000, 40),
    Workload("VGG-16", 138_357_544, 16, 90_800_000, 50_000, 40),
    Workload("ResNet-18", 11_689_512, 16, 20_100_000, 50_000, 40),
    Workload("ResNet-50", 25_557_032, 16, 59_700_000, 50_000, 40),
    Workload("ResNet-152", 60_192_808, 16, 142_500_000, 50_000, 40),
    Workload("DenseNet-161", 28_681_000, 16, 148_400_000, 50_000, 40),
    Workload("TSN", 23_715_000, 32, 333_500_000, 9_537, 60),
    Workload("TSM", 23_715_000, 8, 345_000_000, 9_537, 60),
    Workload("SlowOnly", 31_840_000, 8, 345_000_000, 9_537, 60),
    Workload("R(2+1)D", 63_600_000, 8, 552_000_000, 9_537, 60),
)
FAT = 2
"""The first so many workloads are the fat ones."""

URGENT, NORMAL, RELAXED = Fraction(1, 2), Fraction(1), Fraction(3, 2)
"""The paper's three priorities."""

_MOST_JOBS = 1_000_000
_MOST_HOURS = 250_000
"""So that all times are within the 10^18 ns of a trace."""


@dataclass(frozen=True)
class DrsMix:
    """The parameters of a drawn trace; the defaults are the paper's.

    Attributes:
        rate: lambda, jobs an hour.
        hours: for which jobs arrive.
        fat: the share of jobs that train a fat network.
        urgent: the share of jobs with priority 0.5; of the others a third have 1 and the rest 1.5.

    Raises:
        UsageError: a value is out of range.
    """

    rate: float = 4.0
    hours: float = 24.0
    fat: float = 0.2
    urgent: float = 0.1

    def __post_init__(self) -> None:
        for name, most in (("rate", _MOST_JOBS), ("hours", _MOST_HOURS)):
            if not 0 < getattr(self, name) <= most:
                raise UsageError(f"{name}: expected more than 0 up to {most}, got {getattr(self, name)}")
        if self.rate * self.hours > _MOST_JOBS:
            raise UsageError(
                f"rate: expected up to {_MOST_JOBS} jobs in all, got {self.rate:g} an hour for {self.hours:g} h"
            )
        for name in ("fat", "urgent"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"{name}: expected 0 to 1, got {getattr(self, name)}")

    def trace(self, seed: int) -> DeadlineTrace:
        """Draw the trace of a seed, 0 or more; job i is named after its position.

        Raises:
            UsageError: a negative seed, or one so unlucky that no job arrives.
        """
        if seed < 0:
            raise UsageError(f"seed: expected 0 or more, got {seed}")
        count = int(2 * self.rate * self.hours + 200)
        between = np.random.default_rng([seed, 0]).exponential(size=count)
        with np.errstate(over="ignore"):  # at a rate near 0, arrivals after `hours` may be infinite
            arrivals = np.rint(np.cumsum(between) / self.rate * NS_PER_HOUR)
        workloads = np.random.default_rng([seed, 1]).random(count)
        priorities = np.random.default_rng([seed, 2]).random(count)
        end_ns = round(self.hours * NS_PER_HOUR)
        jobs = tuple(
            DeadlineJob.with_priority(
                str(number), int(arrival_ns), self._workload(float(u)), self.priority(float(v))
            )
            for number, (arrival_ns, u, v) in enumerate(zip(arrivals, workloads, priorities, strict=True))
            if arrival_ns < end_ns
        )
        return DeadlineTrace(f"drs-{seed}", jobs, end_ns, seed)

    def _workload(self, u: float) -> Workload:
        if u < self.fat:
            return WORKLOADS[int(u / self.fat * FAT)]
        return WORKLOADS[FAT + int((u - self.fat) / (1 - self.fat) * (len(WORKLOADS) - FAT))]

    def priority(self, v: float) -> Fraction:
        """The priority for a random number from 0 to 1."""
        if v < self.urgent:
            return URGENT
        return NORMAL if v < self.urgent + (1 - self.urgent) / 3 else RELAXED
