"""``mltcp-bench contention``: how long an all-reduce takes while k of them share a link, for eq. 5 of Ada-SRSF.

The jobs are real processes on hosts of their own, on both sides of one bottleneck. All stay for the whole
measurement; in a round, k of them all-reduce as many bytes each, starting together. Every repeat has every k and
every size once, one after the other, so that a drift of the machine falls on all alike, and the jobs take turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import fmean

from bench.compare.approaches.policy import Policy
from bench.compare.launch import loaded_controls
from bench.lab.lab import Lab
from bench.lab.link import Link
from bench.lab.network import namespaces
from bench.lab.network.wiring import INTERFACE
from bench.lab.processors import busy_s, count
from bench.lab.topology import dumbbell
from bench.workloads.launch.rounds import StandingJob, StandingJobs, standing
from bench.workloads.loop import sleep_until
from bench.workloads.ranks.place import RankPlace
from mltcp.ebpf.congestion_controls import Controls
from mltcp.ebpf.jobs import attached
from placement.experiments.measurements import Measurement

RANKS = 2
_US_PER_S = 1e6


@dataclass(frozen=True)
class ContentionPlan:
    """What is measured: numbers of concurrent all-reduces, their sizes, how often, over which link and control."""

    jobs: tuple[int, ...]
    sizes_bytes: tuple[int, ...]
    repeat: int
    link: Link
    policy: Policy

    @property
    def total(self) -> int:
        """How many rounds it comes to."""
        return self.repeat * len(self.jobs) * len(self.sizes_bytes)

    def rounds(self) -> Iterator[tuple[int, int, int]]:
        """Repeat (from 0), number of jobs and size of every round, in order."""
        for repeat in range(self.repeat):
            for size in self.sizes_bytes:
                for jobs in self.jobs:
                    yield repeat, jobs, size


@dataclass(frozen=True)
class ContentionRound:
    """What a round gave.

    Attributes:
        repeat: which one, from 0.
        size_bytes: of each job's all-reduce.
        times_us: how long each job's took, in microseconds.
        busy_s: processor time of the whole machine that was spent meanwhile.
        wall_s: how long the round took.
    """

    repeat: int
    size_bytes: int
    times_us: tuple[float, ...]
    busy_s: float
    wall_s: float

    @property
    def jobs(self) -> int:
        """How many took part."""
        return len(self.times_us)

    @property
    def measurement(self) -> Measurement:
        """The mean over the jobs, as eq. 5 is about."""
        return Measurement(self.jobs, self.size_bytes, fmean(self.times_us))


@dataclass(frozen=True)
class ContentionResult:
    """All rounds in order, and the packets that the link dropped and marked in them, both directions together."""

    rounds: tuple[ContentionRound, ...]
    drops: int
    marks: int

    def cpu_busy(self, jobs: int) -> float:
        """The share of the machine's processor time that was spent while so many jobs all-reduced."""
        rounds = [each for each in self.rounds if each.jobs == jobs]
        return sum(each.busy_s for each in rounds) / (sum(each.wall_s for each in rounds) * count())


def measure(plan: ContentionPlan, step: Callable[[str, int], None]) -> ContentionResult:
    """Measure in a lab of its own; ``step`` is called with the number of jobs and the repeat after every round.

    Raises:
        NotAvailableError: not root, or the kernel lacks something.
        RankError: a rank failed, or its sum was wrong; the lab is gone by the time this is raised.
    """
    namespaces.require_privileges()
    with loaded_controls([plan.policy]) as controls:
        with Lab(dumbbell(max(plan.jobs), RANKS, plan.link)) as lab, ExitStack() as stack:
            placed = [_placed(plan, job, lab, controls, stack) for job in lab.topology.jobs]
            jobs = stack.enter_context(standing(placed))
            # What a connection's first transfer costs is no part of an iteration's.
            jobs.tell(lab.topology.jobs, min(plan.sizes_bytes))
            jobs.times_s(lab.topology.jobs)
            lab.start_measuring()
            rounds = tuple(_measured_rounds(plan, jobs, len(placed), step))
            use = lab.measurement()
    return ContentionResult(rounds, use.drops, use.marks)


def _placed(plan: ContentionPlan, number: int, lab: Lab, controls: Controls, stack: ExitStack) -> StandingJob:
    """Every rank is on a host of its own, and each host knows the job for itself, as separate machines would."""
    name = f"job-{number + 1}"
    places = []
    for host in lab.topology.hosts_of(number):
        job = plan.policy.job(f"{name}@{host.name}")
        cgroup = stack.enter_context(attached(job, plan.policy.control, controls)).cgroup
        places.append(RankPlace(lab.namespace(host.name), INTERFACE, host.address, cgroup))
    return StandingJob(name, tuple(places), plan.policy.control)


def _measured_rounds(
    plan: ContentionPlan, jobs: StandingJobs, there: int, step: Callable[[str, int], None]
) -> Iterator[ContentionRound]:
    for repeat, number, size in plan.rounds():
        # In turns, lest what is peculiar to one job's hosts be taken for what is peculiar to a number of jobs.
        yield _measured_round(jobs, [(repeat + position) % there for position in range(number)], size, repeat)
        step(f"{number} at a time", repeat)


def _measured_round(jobs: StandingJobs, members: list[int], size_bytes: int, repeat: int) -> ContentionRound:
    start_s = jobs.tell(members, size_bytes)
    sleep_until(start_s)
    busy_before_s = busy_s()
    times_s = jobs.times_s(members)
    spent_s = busy_s() - busy_before_s
    times_us = tuple(each * _US_PER_S for each in times_s)
    return ContentionRound(repeat, size_bytes, times_us, spent_s, time.monotonic() - start_s)
