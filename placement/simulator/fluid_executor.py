"""The executor that advances jobs iteration by iteration over the links that they share (`Fluid`).

Beyond the sharing of links it models what Cassini has to cope with. A start begins at a random moment of an iteration
(uniform, seeded). Every iteration takes a little more or less time than the last, so that jobs drift. A restart costs
time in which the job holds its GPUs and does not train. Cassini's time shifts, and its corrections of drift, delay the
start of an iteration and count as part of it.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from mltcp.core.demand import Phase
from mltcp.core.errors import UsageError
from placement.cassini.drift import THRESHOLD, corrections
from placement.model.cluster import Cluster
from placement.policies.schedulers.scheduling_policy import Decision
from placement.simulator.cluster_run import JobEnd, Start
from placement.simulator.fluid import Fluid, Iterations
from placement.traces.sets import TracedJob

NIC_BPS = 50 * 10**9
"""NICs of the testbed in Figure 4.10."""

_LONGEST_STEP_NS = 10**15


@dataclass(frozen=True)
class FluidSettings:
    """The cluster and the parameters of the simulation.

    Attributes:
        cluster: its links have speeds relative to `nic_bps`.
        nic_bps: the rate of a NIC of speed 1.
        migration_ns: the cost of a restart.
        noise: the standard deviation of an iteration's time, as a fraction of that time.
        check_ns: the interval at which Cassini checks whether jobs have drifted.
        threshold: the drift that is tolerated, as a fraction of the iteration time.
        congestion_loss: see `Fluid`.

    Raises:
        UsageError: a value is out of range.
    """

    cluster: Cluster
    nic_bps: int = NIC_BPS
    migration_ns: int = 10 * 10**9
    noise: float = 0.005
    check_ns: int = 10**9
    threshold: float = THRESHOLD
    congestion_loss: float = 0.0

    def __post_init__(self) -> None:
        for name, least in (("nic_bps", 1), ("migration_ns", 0), ("check_ns", 1)):
            if getattr(self, name) < least:
                raise UsageError(f"{name}: expected {least} or more, got {getattr(self, name)}")
        if not 0 <= self.noise < 1:
            raise UsageError(f"noise: expected 0 <= noise < 1, got {self.noise}")


@dataclass
class FluidJob:
    """A job of the simulation, over all of its starts.

    Attributes:
        number: its number in the simulation.
        start: the present start, or the last one.
        phases: of an iteration of that start.
        planned: iterations of that start.
        delays: how often it was delayed, to apply its time shift or to correct drift.
        iteration_ns: the durations of the iterations that it has finished, in several arrays.
        slowdown: the same, relative to the duration alone with as many workers.
        marked_bits: the bits that each of them sent over congested links; NaN in a simulation without marks.
        ended_ns: when each of them ended.
        computed_ns: the time for which its GPUs have computed in these iterations, of all of them together.
        held_ns: the time for which it has held GPUs until its last stop, of all of them together.
        since_ns: when it was started.
    """

    number: int
    start: Start | None = None
    phases: tuple[Phase, ...] = ()
    planned: int = 0
    delays: int = 0
    iteration_ns: list[np.ndarray] = field(default_factory=list)
    slowdown: list[np.ndarray] = field(default_factory=list)
    marked_bits: list[np.ndarray] = field(default_factory=list)
    ended_ns: list[np.ndarray] = field(default_factory=list)
    computed_ns: float = 0.0
    held_ns: float = 0.0
    since_ns: float = 0.0

    @property
    def alone_ns(self) -> int:
        """The time of an iteration alone with the present number of workers."""
        return sum(phase.duration_ns for phase in self.phases)

    @property
    def compute_ns(self) -> int:
        """What an iteration computes."""
        return sum(phase.duration_ns for phase in self.phases if not phase.bandwidth_bps)

    @property
    def workers(self) -> int:
        """Of the present start, or of the last one."""
        assert self.start is not None, "it has been started"
        return len(self.start.gpus)


class IteratingJobs(Protocol):
    """A simulation of jobs that repeat an iteration, by number; `Fluid` says what each method does."""

    @property
    def now_ns(self) -> float:
        """The simulated time."""

    def run(self, until_ns: float) -> tuple[int, ...]:
        """Advance until a time, or until jobs have ended; returns these."""

    def stop(self, job: int) -> None:
        """End a job; its current iteration is lost."""

    def delay(self, job: int, by_ns: float) -> None:
        """Delay the next iteration of a job."""

    def iterations_left(self, job: int) -> int:
        """Of a job."""

    def reference_ns(self, job: int) -> float | None:
        """The start of a job's last iteration, as an agent sees it."""

    def iterations(self) -> dict[int, Iterations]:
        """Those that have ended since the last call, by job."""


class FluidExecutor:
    """Runs jobs on `Fluid`; see `Executor`. A subclass runs them on another simulation.

    Args:
        jobs: all jobs that may be started.
        cluster: it need not be that of the settings.
        settings: the parameters.
        seed: of the noise and of the moments at which jobs begin. Under the same seed a job has the same noise whatever
            the policy.
    """

    def __init__(
        self, jobs: Sequence[TracedJob], cluster: Cluster, settings: FluidSettings, seed: int
    ) -> None:
        self.jobs = {job.name: FluidJob(number) for number, job in enumerate(jobs)}
        self._names = [job.name for job in jobs]
        self._cluster, self._settings, self._seed = cluster, settings, seed
        self._simulation = self._simulated(jobs)
        self._shifts_ns: Mapping[str, int] = {}
        self._groups: tuple[tuple[str, ...], ...] = ()

    @property
    def now_ns(self) -> int:
        """See `Executor`."""
        return int(self._simulation.now_ns)

    def run(self, until_ns: int | None) -> Sequence[JobEnd]:
        """See `Executor`. On the way, drift is corrected every `check_ns`."""
        while True:
            ended = self._done(self._simulation.run(self._next_stop_ns(until_ns)))
            if ended:
                self._collect()
                for number in ended:
                    self._release(self.jobs[self._names[number]])
                return [JobEnd(self._names[number], self._simulation.now_ns) for number in ended]
            if until_ns is not None and self._simulation.now_ns >= until_ns:
                return []
            self._correct()

    def start(self, start: Start) -> None:
        """See `Executor`."""
        job = self.jobs[start.job.name]
        job.start = start
        job.phases = start.job.phases(len(start.gpus))
        job.planned = start.iterations()
        job.since_ns = self._simulation.now_ns
        draw = random.Random(f"{self._seed} {start.job.name} {start.restarts}")
        hold_ns = self._settings.migration_ns if start.restarts else 0
        self._begin(job, start, hold_ns + draw.random() * job.alone_ns, self._settings.noise * job.alone_ns)

    def stop(self, job: str) -> None:
        """See `Executor`."""
        self._collect()
        self._simulation.stop(self.jobs[job].number)
        self._release(self.jobs[job])

    def work_done(self, job: str) -> float:
        """See `Executor`."""
        running = self.jobs[job]
        assert running.start is not None
        return (running.planned - self._simulation.iterations_left(running.number)) * running.start.progress

    def decided(self, decision: Decision) -> None:
        """See `Executor`: take over Cassini's time shifts, and the groups of jobs that they tie together."""
        self._groups = decision.tied
        if self._groups:
            self._shifts_ns = decision.shifts_ns
            self._correct()

    def _simulated(self, jobs: Sequence[TracedJob]) -> IteratingJobs:
        """The simulation, before any job starts."""
        settings = self._settings
        self._fluid = Fluid(
            [float(link.speed) * settings.nic_bps for link in self._cluster.links],
            len(jobs),
            most_phases=max(len(job.demand.phases) for job in jobs),
            seed=self._seed,
            congestion_loss=settings.congestion_loss,
        )
        return self._fluid

    def _begin(self, job: FluidJob, start: Start, hold_ns: float, noise_ns: float) -> None:
        """Start a job in the simulation, for the iterations that are planned."""
        links = self._cluster.links_of(start.job.name, start.gpus)
        self._fluid.start(job.number, job.phases, links, job.planned, hold_ns=hold_ns, noise_ns=noise_ns)

    def _next_stop_ns(self, until_ns: int | None) -> int:
        """A finite time, and the next check for drift if there is anything to check."""
        step_ns = self._settings.check_ns if self._groups else _LONGEST_STEP_NS
        return self.now_ns + step_ns if until_ns is None else min(until_ns, self.now_ns + step_ns)

    def _done(self, ended: tuple[int, ...]) -> tuple[int, ...]:
        """Those of the jobs, which have ended in the simulation, that have done their work."""
        return ended

    def _release(self, job: FluidJob) -> None:
        """Count for how long it has held its GPUs."""
        job.held_ns += job.workers * (self._simulation.now_ns - job.since_ns)

    def _collect(self, without: Collection[int] = ()) -> None:
        """Record the iterations that have ended, while their jobs still have the same number of workers."""
        for number, found in self._simulation.iterations().items():
            job = self.jobs[self._names[number]]
            if number in without:
                continue
            job.computed_ns += len(found.began_ns) * job.workers * job.compute_ns
            job.iteration_ns.append(found.duration_ns)
            job.slowdown.append(found.duration_ns / job.alone_ns)
            job.marked_bits.append(found.marked_bits)
            job.ended_ns.append(found.ended_ns)

    def _correct(self) -> None:
        """Delay jobs that are off their time shift."""
        for group in self._groups:
            began = {job: self._simulation.reference_ns(self.jobs[job].number) for job in group}
            known = {job: round(began_ns) for job, began_ns in began.items() if began_ns is not None}
            if len(known) < len(group):
                continue
            periods = {job: self.jobs[job].alone_ns for job in group}
            waits = corrections(known, self._shifts_ns, periods, self._settings.threshold)
            for job, delay_ns in waits.items():
                self._simulation.delay(self.jobs[job].number, delay_ns)
                self.jobs[job].delays += 1
