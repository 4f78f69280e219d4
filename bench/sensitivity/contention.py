"""Measurement of k all-reduces that share a link, for the contention model of Ada-SRSF (eq. 5).

The jobs are real processes on hosts of their own, on both sides of one bottleneck. All run for the whole measurement;
in a round, k of them all-reduce the same number of bytes each, starting together. Every repeat has every k and every
size once, so that a drift of the machine affects all alike, and the jobs that take part rotate.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from statistics import fmean
from typing import Protocol

from bench.compare.approach import Policy
from bench.compare.launch import loaded_controls
from bench.compare.results.runs import HostFacts
from bench.hosts.connection import connected
from bench.hosts.hosts_file import HostsFile
from bench.hosts.messages import ReadBusy, StartMeasuring, StopMeasuring
from bench.hosts.placement import two_sided
from bench.hosts.session import Session
from bench.lab.lab import Lab
from bench.lab.link import Link
from bench.lab.network import namespaces
from bench.lab.network.wiring import INTERFACE
from bench.lab.processors import busy_s, count
from bench.lab.topology import dumbbell
from bench.workloads.job import sleep_until
from bench.workloads.place import RankPlace
from bench.workloads.rank_pool import StandingJob, StandingJobs, standing
from mltcp.ebpf.congestion_controls import Controls
from mltcp.ebpf.jobs import attached
from placement.experiments.measurements import Measurement

RANKS = 2
_US_PER_S = 1e6


@dataclass(frozen=True)
class AllReducePlan:
    """A measurement: numbers of concurrent all-reduces, their sizes, repeats, the link and the congestion control."""

    jobs: tuple[int, ...]
    sizes_bytes: tuple[int, ...]
    repeat: int
    link: Link
    policy: Policy

    @property
    def total(self) -> int:
        """The number of rounds."""
        return self.repeat * len(self.jobs) * len(self.sizes_bytes)

    def rounds(self) -> Iterator[tuple[int, int, int]]:
        """Repeat (from 0), number of jobs and size of every round, in order."""
        for repeat in range(self.repeat):
            for size in self.sizes_bytes:
                for jobs in self.jobs:
                    yield repeat, jobs, size


@dataclass(frozen=True)
class ContentionRound:
    """The result of a round.

    Attributes:
        repeat: its number, from 0.
        size_bytes: of each job's all-reduce.
        times_us: the duration of each job's all-reduce, in microseconds.
        busy_s: CPU time of the whole machine, or of all hosts together, during the round.
        wall_s: duration of the round.
    """

    repeat: int
    size_bytes: int
    times_us: tuple[float, ...]
    busy_s: float
    wall_s: float

    @property
    def jobs(self) -> int:
        """The number of jobs that took part."""
        return len(self.times_us)

    @property
    def measurement(self) -> Measurement:
        """The mean time over the jobs, which eq. 5 models."""
        return Measurement(self.jobs, self.size_bytes, fmean(self.times_us))


@dataclass(frozen=True)
class ContentionResult:
    """All rounds in order, and the packets that the link dropped and marked, in both directions together.

    Attributes:
        rounds: in order.
        drops: packets dropped at a full queue; on real hosts, by their interfaces.
        marks: packets marked; on real hosts, that arrived with a mark.
        processors: of the machine, or of all hosts together.
        hosts: the facts of real hosts; empty in a lab.
    """

    rounds: tuple[ContentionRound, ...]
    drops: int
    marks: int
    processors: int
    hosts: tuple[HostFacts, ...] = ()

    def cpu_busy(self, jobs: int) -> float:
        """The share of the machine's CPU time that was busy in the rounds of so many jobs."""
        rounds = [each for each in self.rounds if each.jobs == jobs]
        return sum(each.busy_s for each in rounds) / (sum(each.wall_s for each in rounds) * self.processors)


class ContentionTestbed(Protocol):
    """The place of a measurement: jobs that wait for rounds, and the counters of their hosts."""

    @property
    def jobs(self) -> StandingJobs:
        """The jobs; a job's position is its number."""

    @property
    def processors(self) -> int:
        """The processors of all hosts together."""

    @property
    def facts(self) -> tuple[HostFacts, ...]:
        """The facts of real hosts; empty in a lab."""

    def busy_s(self) -> float:
        """The time since boot for which these processors were busy."""

    def start_measuring(self) -> None:
        """Count drops and marks from now on."""

    def drops_and_marks(self) -> tuple[int, int]:
        """The packets that were dropped and marked since."""


TestbedSource = Callable[[AllReducePlan], AbstractContextManager[ContentionTestbed]]
"""Makes the testbed of a plan, for as long as the context lasts."""


@dataclass(frozen=True)
class LabTestbed:
    """A lab whose jobs wait for rounds."""

    jobs: StandingJobs
    lab: Lab
    facts: tuple[HostFacts, ...] = ()

    @property
    def processors(self) -> int:
        """The processors of this machine."""
        return count()

    def busy_s(self) -> float:
        """The time since boot for which they were busy."""
        return busy_s()

    def start_measuring(self) -> None:
        """Count drops and marks of the bottleneck from now on."""
        self.lab.start_measuring()

    def drops_and_marks(self) -> tuple[int, int]:
        """The packets that the bottleneck has dropped and marked since."""
        use = self.lab.measurement()
        return use.drops, use.marks


@contextmanager
def lab_testbed(plan: AllReducePlan) -> Iterator[LabTestbed]:
    """A new lab with the jobs of the plan.

    Raises:
        NotAvailableError: not root, or the kernel lacks something.
        RankError: a rank did not get ready.
    """
    namespaces.require_privileges()
    with loaded_controls([plan.policy]) as controls:
        with Lab(dumbbell(max(plan.jobs), RANKS, plan.link)) as lab, ExitStack() as stack:
            placed = [_placed(plan, job, lab, controls, stack) for job in lab.topology.jobs]
            yield LabTestbed(stack.enter_context(standing(placed)), lab)


def measure(
    plan: AllReducePlan, step: Callable[[str, int], None], testbed: TestbedSource = lab_testbed
) -> ContentionResult:
    """Measure in a new lab or, with another testbed, on real hosts.

    Args:
        plan: the measurement.
        step: called with the number of jobs and the repeat after every round.
        testbed: makes the testbed.

    Raises:
        MltcpError: the hosts cannot be had, a rank failed, or its sum was wrong; nothing is left by then.
    """
    with testbed(plan) as place:
        everyone = range(max(plan.jobs))
        # A connection's first transfer is slower than later ones.
        place.jobs.tell(everyone, min(plan.sizes_bytes))
        place.jobs.times_s(everyone)
        place.start_measuring()
        rounds = tuple(_measured_rounds(plan, place, step))
        drops, marks = place.drops_and_marks()
        return ContentionResult(rounds, drops, marks, place.processors, place.facts)


def _placed(plan: AllReducePlan, number: int, lab: Lab, controls: Controls, stack: ExitStack) -> StandingJob:
    """Place every rank on a host of its own, with a job entry of its own, as on separate machines."""
    name = f"job-{number + 1}"
    places = []
    for host in lab.topology.hosts_of(number):
        job = plan.policy.job(f"{name}@{host.name}")
        cgroup = stack.enter_context(attached(job, plan.policy.control, controls)).cgroup
        places.append(RankPlace(lab.namespace(host.name), INTERFACE, host.address, cgroup))
    return StandingJob(name, tuple(places), plan.policy.control)


def _measured_rounds(
    plan: AllReducePlan, place: ContentionTestbed, step: Callable[[str, int], None]
) -> Iterator[ContentionRound]:
    there = max(plan.jobs)
    for repeat, number, size in plan.rounds():
        # The jobs rotate, so that a property of one job's hosts is not taken for an effect of the number of jobs.
        yield _measured_round(
            place, [(repeat + position) % there for position in range(number)], size, repeat
        )
        step(f"{number} at a time", repeat)


def _measured_round(
    place: ContentionTestbed, members: list[int], size_bytes: int, repeat: int
) -> ContentionRound:
    start_s = place.jobs.tell(members, size_bytes)
    sleep_until(start_s)
    busy_before_s = place.busy_s()
    times_s = place.jobs.times_s(members)
    spent_s = place.busy_s() - busy_before_s
    times_us = tuple(each * _US_PER_S for each in times_s)
    return ContentionRound(repeat, size_bytes, times_us, spent_s, time.monotonic() - start_s)


# -- on real hosts -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RemoteTestbed:
    """Hosts whose jobs wait for rounds."""

    jobs: StandingJobs
    session: Session

    @property
    def facts(self) -> tuple[HostFacts, ...]:
        """The facts of all hosts."""
        return self.session.facts

    @property
    def processors(self) -> int:
        """The processors of all hosts together."""
        return sum(host.processors for host in self.facts)

    def busy_s(self) -> float:
        """The time since boot for which these processors were busy."""
        return float(sum(self.session.on_all(ReadBusy()).values()))

    def start_measuring(self) -> None:
        """Count the drops of the hosts' interfaces, and the marked packets that arrive, from now on."""
        self.session.on_all(StartMeasuring(()))

    def drops_and_marks(self) -> tuple[int, int]:
        """The packets that were dropped, and those that arrived marked, since."""
        found = self.session.on_all(StopMeasuring()).values()
        return sum(each.drops for each in found), sum(each.ce_packets for each in found)


def remote_testbed(hosts: HostsFile) -> TestbedSource:
    """The testbed on these hosts: half of the ranks on the first half of the hosts, the others on the rest."""

    @contextmanager
    def testbed(plan: AllReducePlan) -> Iterator[RemoteTestbed]:
        placed = two_sided(hosts.hosts, (RANKS,) * max(plan.jobs))
        with connected(hosts) as agents:
            session = Session(agents)
            control = plan.policy.control
            session.check_controls([control])
            jobs = [
                StandingJob(f"job-{number + 1}", session.place(ranks, lambda rank: ()), control)
                for number, ranks in enumerate(placed)
            ]
            launcher = session.launcher(placed, control, plan.policy.job)
            with session.lost_hosts_blamed(), standing(jobs, launcher) as ready:
                yield RemoteTestbed(ready, session)

    return testbed
