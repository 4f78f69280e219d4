"""The scheduler loop: jobs arrive, are placed, moved and stopped by a scheduler, and end, on any executor."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from fractions import Fraction
from typing import Generic

from mltcp.core.demand import Demand
from mltcp.core.errors import MltcpError
from placement.model.cluster import Cluster
from placement.policies.schedulers.scheduler import JobView, gpu_owners, jobs_to_stop, progress
from placement.policies.schedulers.scheduling_policy import Decision, SchedulingPolicy
from placement.simulator.executor import Executor, Job, ObservesRatios, ScheduledJob, Start

IDLE_DECISIONS = 100
"""A run fails after this many decisions in a row that leave all jobs waiting, if no more jobs are to arrive."""

_FOREVER_NS = 2**62


class ClusterRun(Generic[Job]):
    """One run of a trace under a policy.

    The scheduler is asked whenever jobs arrive or end, and when it wants to be asked again (leases, timers). Ends come
    before arrivals of the same moment, and one decision follows both. Its assignment is compared with the GPUs that
    jobs hold: a job that is assigned others is stopped, and then started again if it is assigned any. All stops come
    before all starts.

    Attributes:
        jobs: in the order of the trace.
        decision_ns: the time that each decision took.
        scores: the compatibility score of each decision of Cassini under which jobs share links.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        cluster: Cluster,
        nic_bps: int,
        policy: SchedulingPolicy,
        executor: Executor[Job],
        restart_ns: int = 0,
    ) -> None:
        """Prepare a run.

        Args:
            jobs: in the order of their arrival.
            cluster: its links have speeds relative to `nic_bps`.
            nic_bps: the rate of a NIC of speed 1.
            policy: the scheduler, alone or with Cassini.
            executor: runs the jobs.
            restart_ns: the cost of a restart that the scheduler is told, for executors that charge for one.
        """
        self.jobs = tuple(ScheduledJob(job) for job in jobs)
        self.decision_ns: list[int] = []
        self.scores: list[float] = []
        self._cluster, self._nic_bps = cluster, nic_bps
        self._policy, self._executor, self._restart_ns = policy, executor, restart_ns
        self._ratios = executor if isinstance(executor, ObservesRatios) else None
        self._to_come = deque(self.jobs)
        self._active: dict[str, ScheduledJob[Job]] = {}
        self._waiting: dict[str, JobView] = {}
        self._idle_decisions = 0

    def run(self) -> None:
        """Run until all jobs have ended.

        Raises:
            MltcpError: jobs wait that the scheduler never places.
            UsageError: the scheduler gives a GPU to two jobs, or one that does not exist.
        """
        while self._to_come or self._active:
            due_ns = self._due_ns()
            self._check_progress(due_ns)
            ended = self._advance(due_ns)
            arrived = self._admit()
            if ended or arrived or (due_ns is not None and self._executor.now_ns >= due_ns):
                self._decide()

    def _due_ns(self) -> int | None:
        """The time of the next arrival, or at which the scheduler wants to be asked; None if neither comes."""
        asked_ns = self._policy.scheduler.next_ns(self._executor.now_ns, self._views())
        if not self._to_come:
            return asked_ns
        arrival_ns = self._to_come[0].job.arrival_ns
        return arrival_ns if asked_ns is None else min(arrival_ns, asked_ns)

    def _check_progress(self, due_ns: int | None) -> None:
        if self._to_come or any(job.gpus for job in self._active.values()):
            self._idle_decisions = 0
        elif due_ns is None or self._idle_decisions >= IDLE_DECISIONS:
            raise MltcpError(
                f"{self._policy.name} never places {', '.join(self._active)}: no job runs or is to arrive, "
                f"and {self._idle_decisions} decisions in a row gave no GPUs"
            )

    def _advance(self, due_ns: int | None) -> bool:
        """Let time pass; whether jobs have ended."""
        ends = self._executor.run(due_ns)
        for end in ends:
            job = self._active.pop(end.job)
            job.gpus = ()
            job.ended_ns = end.at_ns
        return bool(ends)

    def _admit(self) -> bool:
        """Whether jobs have arrived."""
        arrived = False
        while self._to_come and self._to_come[0].job.arrival_ns <= self._executor.now_ns:
            job = self._to_come.popleft()
            job.since_ns = self._executor.now_ns
            self._active[job.name] = job
            arrived = True
        return arrived

    def _views(self) -> list[JobView]:
        return [self._view(job) for job in self._active.values()]

    def _view(self, job: ScheduledJob[Job]) -> JobView:
        """The view of a job; while it waits, nothing of it changes."""
        if job.gpus:
            ratio = 1.0 if self._ratios is None else self._ratios.ratio(job.name)
            return job.view(self._work_done(job), self._executor.now_ns, self._restart_ns, ratio)
        view = self._waiting.get(job.name)
        if view is None:
            view = self._waiting[job.name] = job.view(job.work_done, 0, self._restart_ns)
        return view

    def _work_done(self, job: ScheduledJob[Job]) -> float | Fraction:
        return job.work_done + self._executor.work_done(job.name) if job.gpus else job.work_done

    def _decide(self) -> None:
        now_ns, views = self._executor.now_ns, self._views()
        if self._stop_first(now_ns, views):
            views = self._views()
        decision = self._policy.decide(self._cluster, self._nic_bps, now_ns, views, self._demand_of)
        gpu_owners(self._cluster, decision.assignment)  # raises if two jobs are given a GPU
        self.decision_ns.append(decision.took_ns)
        if decision.choice is not None and decision.choice.links:
            self.scores.append(decision.choice.score)
        self._idle_decisions += 1
        self._carry_out(decision, views, now_ns)
        self._executor.decided(decision)

    def _stop_first(self, now_ns: int, views: Sequence[JobView]) -> bool:
        """Stop the jobs that the scheduler sends back to the queue before it decides; whether there are any."""
        stops = jobs_to_stop(self._policy.scheduler, now_ns, views)
        for name in stops:
            self._stop(self._active[name])
        return bool(stops)

    def _demand_of(self, name: str, workers: int) -> Demand | None:
        phases = tuple(self._active[name].job.phases(workers))
        demand = Demand(phases) if phases else None
        return demand if demand is not None and demand.bits else None

    def _carry_out(self, decision: Decision, views: Sequence[JobView], now_ns: int) -> None:
        assigned = {view.name: decision.assignment.get(view.name, ()) for view in views}
        for view in views:
            if view.gpus and assigned[view.name] != view.gpus:
                self._stop(self._active[view.name])
        lease_ns = self._policy.scheduler.lease_ns
        for view in views:
            job, gpus = self._active[view.name], assigned[view.name]
            if gpus and not view.holds(now_ns):
                job.lease_end_ns = _FOREVER_NS if lease_ns is None else now_ns + lease_ns
            if gpus != job.gpus:
                self._start(job, gpus)

    def _stop(self, job: ScheduledJob[Job]) -> None:
        job.work_done = self._work_done(job)
        job.held_ns += self._executor.now_ns - job.started_ns
        job.since_ns = self._executor.now_ns
        job.gpus = ()
        self._executor.stop(job.name)

    def _start(self, job: ScheduledJob[Job], gpus: tuple[int, ...]) -> None:
        self._waiting.pop(job.name, None)
        work = job.job.iterations - job.work_done
        worth = progress(job.view(job.work_done), len(gpus))
        self._executor.start(Start(job.job, gpus, work, worth, job.starts))
        job.gpus = gpus
        job.starts += 1
        job.started_ns = job.since_ns = self._executor.now_ns
