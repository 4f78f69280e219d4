"""A trace of jobs under a scheduler, with or without Cassini: arrivals, ends of jobs and leases, and the fluid between.

What is modelled beside the sharing of links: a job that is started or moved begins at a moment of its own (uniformly
random in its iteration time, seeded), every iteration takes a little more or less time than the last, so that jobs
drift, and moving a job costs time, in which it does not train. Cassini gives time shifts when jobs are placed, and then
looks every now and then how far they have drifted; both are delays of the start of an iteration, which count as a part
of that iteration.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mltcp.core.demand import Demand, Phase
from mltcp.core.errors import MltcpError, UsageError
from placement.cassini.drift import THRESHOLD, corrections
from placement.model.cluster import Cluster
from placement.policies.schedulers.augmented import Decision, Policy, links_of
from placement.policies.schedulers.scheduler import JobView, progress
from placement.simulator.fluid.fluid import Fluid
from placement.simulator.trace_outcome import JobOutcome, TraceOutcome, joined
from placement.traces.sets import JobSet, TracedJob

NIC_BPS = 50 * 10**9
"""Of the servers of Figure 4.10."""

ACROSS_RACKS = 1.5
"""By how much schedulers reckon that communication takes longer if a job is not under one rack."""

IDEAL = "ideal"

_FOREVER_NS = 2**62


@dataclass(frozen=True)
class Setup:
    """The cluster, and what the simulation reckons with.

    Attributes:
        cluster: its links have speeds relative to `nic_bps`.
        nic_bps: of a NIC of speed 1.
        migration_ns: in which a job that is moved does not train.
        noise: the standard deviation of an iteration's time, over that time.
        check_ns: how often Cassini looks whether jobs have drifted.
        threshold: the share of its iteration time by which a job may have drifted.
        congestion_loss: see `Fluid`.

    Raises:
        UsageError: a number that cannot be.
    """

    cluster: Cluster
    nic_bps: int = NIC_BPS
    migration_ns: int = 10 * 10**9
    noise: float = 0.005
    check_ns: int = 10**9
    threshold: float = THRESHOLD
    congestion_loss: float = 0.0

    def __post_init__(self) -> None:
        if self.nic_bps < 1 or self.migration_ns < 0 or self.check_ns < 1 or not 0 <= self.noise < 1:
            raise UsageError(
                f"nic_bps {self.nic_bps}, migration_ns {self.migration_ns}, check_ns {self.check_ns}, "
                f"noise {self.noise}: from 1, 0, 1 and 0 on are allowed, and a noise below 1"
            )


@dataclass(frozen=True)
class ProfiledPace:
    """How fast a job of a trace is by its profile, for schedulers: they know racks, but not who else sends."""

    job: TracedJob

    def iteration_ns(self, workers: int, one_rack: bool) -> float:
        """Sending takes longer across racks."""
        phases = self.job.phases(workers)
        sending = sum(phase.duration_ns for phase in phases if phase.bandwidth_bps)
        every = sum(phase.duration_ns for phase in phases)
        return every if one_rack else every + (ACROSS_RACKS - 1) * sending


def run_trace(jobs: JobSet, setup: Setup, policy: Policy | None, seed: int = 0) -> TraceOutcome:
    """Run a trace to its end under a policy. The same seed gives jobs the same noise under every policy.

    Args:
        jobs: the trace.
        setup: the cluster.
        policy: None for Ideal (4.5.1): each job at once on a cluster of its own.
        seed: of the noise, and of when jobs begin.

    Raises:
        UsageError: a job that needs more GPUs than there are.
        MltcpError: jobs wait that the scheduler never places.
    """
    for job in jobs.jobs:
        if policy is not None and job.min_workers > len(setup.cluster.gpus):
            raise UsageError(
                f"{jobs.name}: {job.name} needs {job.min_workers} GPUs: the cluster has {len(setup.cluster.gpus)}"
            )
    run = _Run(jobs, setup, policy, seed)
    run.to_the_end()
    return run.outcome()


class _Running:
    """A job of the trace: what it has done, and where it is."""

    def __init__(self, number: int, job: TracedJob) -> None:
        self.number = number
        self.job = job
        self.done = 0.0
        self.planned = 0
        self.gpus: tuple[int, ...] = ()
        self.workers = 0
        self.phases: tuple[Phase, ...] = ()
        self.lease_end_ns = 0
        self.starts = 0
        self.delayed = 0
        self.ended_ns = math.nan
        self.seen: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def view(self, done: float) -> JobView:
        """As a scheduler sees it."""
        job = self.job
        return JobView(
            job.name,
            job.arrival_ns,
            job.workers,
            job.min_workers,
            job.max_workers,
            float(job.iterations),
            max(job.iterations - done, 0.0),
            ProfiledPace(job),
            self.gpus,
            self.lease_end_ns,
            max(self.starts - 1, 0),
            job.noise_scale,
        )

    @property
    def worth(self) -> float:
        """Of an iteration with its present workers."""
        return progress(self.view(0.0), self.workers)

    @property
    def iteration_ns(self) -> int:
        """Alone, with its present workers."""
        return sum(phase.duration_ns for phase in self.phases)

    def outcome(self) -> JobOutcome:
        """What became of it."""
        durations, slowdowns, marks = ([part[kind] for part in self.seen] for kind in range(3))
        return JobOutcome(
            self.job.name,
            self.job.model,
            joined(durations),
            joined(slowdowns),
            joined(marks),
            self.ended_ns - self.job.arrival_ns,
            max(self.starts - 1, 0),
            self.delayed,
        )


class _Run:
    """A trace that is being run."""

    def __init__(self, jobs: JobSet, setup: Setup, policy: Policy | None, seed: int) -> None:
        self._setup = setup
        self._policy = policy
        self._seed = seed
        self._all = [_Running(number, job) for number, job in enumerate(jobs.jobs)]
        self._to_come = list(self._all)
        self._active: dict[str, _Running] = {}
        self._fluid = Fluid(
            [float(link.speed) * setup.nic_bps for link in setup.cluster.links],
            len(self._all),
            most_phases=max(len(job.demand.phases) for job in jobs.jobs),
            seed=seed,
            congestion_loss=setup.congestion_loss,
        )
        self._shifts_ns: Mapping[str, int] = {}
        self._groups: list[tuple[str, ...]] = []
        self._decision_ns: list[int] = []
        self._scores: list[float] = []

    def outcome(self) -> TraceOutcome:
        """Once it has come to its end."""
        return TraceOutcome(
            IDEAL if self._policy is None else self._policy.name,
            tuple(each.outcome() for each in self._all),
            tuple(self._decision_ns),
            tuple(self._scores),
        )

    def to_the_end(self) -> None:
        """Run all jobs."""
        while self._to_come or self._active:
            due_ns = self._due_ns()
            check_ns = self._now_ns + self._setup.check_ns if self._groups else _FOREVER_NS
            if min(due_ns, check_ns) == _FOREVER_NS and not any(
                self._fluid.runs(each.number) for each in self._active.values()
            ):
                raise MltcpError(
                    f"{self._policy_name} never places {', '.join(self._active)}: waiting for more GPUs than it gives"
                )
            ended = self._fluid.run(min(due_ns, check_ns, self._horizon_ns))
            for number in ended:
                self._end(self._all[number])
            if self._admit() or ended or self._fluid.now_ns >= due_ns:
                self._decide()
            else:
                self._correct()

    @property
    def _now_ns(self) -> int:
        return int(self._fluid.now_ns)

    @property
    def _horizon_ns(self) -> int:
        """A finite time for the fluid; jobs end long before."""
        return self._now_ns + 10**15

    @property
    def _policy_name(self) -> str:
        return IDEAL if self._policy is None else self._policy.name

    def _due_ns(self) -> int:
        """When the scheduler is asked at the latest."""
        arrival_ns = self._to_come[0].job.arrival_ns if self._to_come else _FOREVER_NS
        if self._policy is None:
            return arrival_ns
        asked_ns = self._policy.scheduler.next_ns(self._now_ns, self._views())
        return min(arrival_ns, _FOREVER_NS if asked_ns is None else asked_ns)

    def _admit(self) -> bool:
        """Whether jobs have arrived."""
        arrived = False
        while self._to_come and self._to_come[0].job.arrival_ns <= self._fluid.now_ns:
            job = self._to_come.pop(0)
            self._active[job.job.name] = job
            arrived = True
        return arrived

    def _end(self, job: _Running) -> None:
        self._collect()
        job.gpus = ()
        job.ended_ns = self._fluid.now_ns
        del self._active[job.job.name]

    def _views(self) -> list[JobView]:
        return [each.view(self._done(each)) for each in self._active.values()]

    def _done(self, job: _Running) -> float:
        if not self._fluid.runs(job.number):
            return job.done
        return job.done + (job.planned - self._fluid.iterations_left(job.number)) * job.worth

    def _collect(self) -> None:
        """Take note of the iterations that ended, while it is known with how many workers."""
        for number, found in self._fluid.iterations().items():
            job = self._all[number]
            durations = found.duration_ns
            job.seen.append((durations, durations / job.iteration_ns, found.marked_bits))

    def _decide(self) -> None:
        self._collect()
        if self._policy is None:
            for job in self._active.values():
                if not job.workers:
                    self._start(job, job.job.workers, (), 0)
            return
        now_ns = self._now_ns
        views = self._views()
        decision = self._policy.decide(
            self._setup.cluster, self._setup.nic_bps, now_ns, views, self._demand_of
        )
        self._decision_ns.append(decision.took_ns)
        for view in views:
            self._place(self._active[view.name], view, decision.assignment.get(view.name, ()), now_ns)
        self._note(decision)
        self._correct()

    def _place(self, job: _Running, view: JobView, gpus: tuple[int, ...], now_ns: int) -> None:
        """Start a job, move it, leave it where it is, or stop it."""
        assert self._policy is not None
        lease_ns = self._policy.scheduler.lease_ns
        if gpus and not view.holds(now_ns):
            job.lease_end_ns = _FOREVER_NS if lease_ns is None else now_ns + lease_ns
        if gpus == job.gpus:
            return
        if job.gpus:
            job.done = self._done(job)
            self._fluid.stop(job.number)
        job.gpus = gpus
        if gpus:
            hold_ns = self._setup.migration_ns if job.starts else 0
            self._start(job, len(gpus), links_of(self._setup.cluster, gpus), hold_ns)

    def _start(self, job: _Running, workers: int, links: Sequence[int], hold_ns: int) -> None:
        """Begin after a hold, and at a random moment of an iteration."""
        job.workers = workers
        job.phases = job.job.phases(workers)
        job.planned = max(1, math.ceil((job.job.iterations - job.done) / job.worth - 1e-6))
        draw = random.Random(f"{self._seed} {job.job.name} {job.starts}")
        job.starts += 1
        self._fluid.start(
            job.number,
            job.phases,
            links,
            job.planned,
            hold_ns=hold_ns + draw.random() * job.iteration_ns,
            noise_ns=self._setup.noise * job.iteration_ns,
        )

    def _demand_of(self, job: str, workers: int) -> Demand | None:
        phases = self._active[job].job.phases(workers)
        return Demand(phases) if any(phase.bandwidth_bps for phase in phases) else None

    def _note(self, decision: Decision) -> None:
        """Cassini's time shifts, and which jobs they tie together."""
        self._groups = []
        if decision.choice is None:
            return
        self._shifts_ns = decision.shifts_ns
        if decision.choice.links:
            self._scores.append(decision.choice.score)
        self._groups = list(decision.turns)

    def _correct(self) -> None:
        """Delay jobs that are not where their time shifts have them."""
        for group in self._groups:
            phases = {job: self._fluid.reference_ns(self._active[job].number) for job in group}
            known = {job: round(phase) for job, phase in phases.items() if phase is not None}
            if len(known) < len(group):
                continue
            periods = {job: self._active[job].iteration_ns for job in group}
            for job, delay_ns in corrections(known, self._shifts_ns, periods, self._setup.threshold).items():
                self._fluid.delay(self._active[job].number, delay_ns)
                self._active[job].delayed += 1
