"""The ends of the jobs that are present, if a decision is carried out now and a scheduler decides from then on.

It is what a rollout is made of (Bertsekas, Tsitsiklis and Wu, Journal of Heuristics 3(3), 1997): no further jobs
arrive, and jobs advance at the speeds that their views have, those of a contention table beside their neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from placement.model.cluster import Cluster
from placement.model.throughput import GpusByNode, Neighbour, Workload, gpus_of
from placement.model.throughput_table import TableModel, workload_of
from placement.policies.schedulers.contention.tables import TableTimed
from placement.policies.schedulers.scheduler import (
    CANDIDATES,
    Assignment,
    JobView,
    Scheduler,
    jobs_to_stop,
)
from placement.policies.schedulers.scheduling_policy import SchedulingPolicy
from placement.simulator.cluster_run import ClusterRun, Start
from placement.simulator.rates.run import RatesExecutor
from placement.simulator.rates.timed_job import TimedJob

_NIC_BPS = 10**9
"""No job has a demand, so the rate of NICs makes no difference."""


def ends_after(
    cluster: Cluster,
    now_ns: int,
    jobs: Sequence[JobView],
    assignment: Assignment,
    scheduler: Scheduler,
    round_ns: int = 0,
) -> dict[str, int]:
    """The time from now to the end of each job, in ns.

    Args:
        cluster: that the jobs are on.
        now_ns: the time of the decision.
        jobs: that run or wait.
        assignment: the decision.
        scheduler: decides from then on.
        round_ns: it is asked again after this time, whatever happens; 0: when it wants to be.

    Raises:
        MltcpError: the scheduler never places some of the jobs.
        UsageError: an assignment cannot be, or is one of which the table has no row.
    """
    views = {job.name: job for job in jobs}
    speeds = _ViewSpeeds(jobs)
    timed = [speeds.timed(job, now_ns) for job in jobs]
    executor = _FromPresent(cluster, speeds, views)
    first = _FirstDecided(scheduler, assignment, round_ns)
    run = ClusterRun(timed, cluster, _NIC_BPS, SchedulingPolicy(first, most=1), executor)
    run.run()
    return {job.name: round(job.ended_ns) for job in run.jobs}


class _ViewSpeeds:
    """The speeds of jobs by their views, as a throughput model; a job's workload names its model, or else the job."""

    def __init__(self, jobs: Sequence[JobView]) -> None:
        self._views = {_own(job.name): job for job in jobs if not isinstance(job.times, TableTimed)}
        self._tables = {
            job.times.model_name: job.times.model for job in jobs if isinstance(job.times, TableTimed)
        }

    @property
    def uses_neighbours(self) -> bool:
        """See `ThroughputModel`."""
        return bool(self._tables)

    def samples_per_ns(
        self, workload: Workload, allocation: GpusByNode, neighbours: Sequence[Neighbour] = ()
    ) -> Fraction:
        """See `ThroughputModel`: a sample is the work of one slot in an iteration."""
        view = self._views.get(workload.name)
        if view is None:
            model: TableModel = self._tables[workload.name]
            beside = [other for other in neighbours if other.workload.name not in self._views]
            return model.samples_per_ns(workload, allocation, beside)
        gpus = gpus_of(allocation)
        return gpus / Fraction(view.times.iteration_ns(gpus, len(allocation) == 1))

    def timed(self, job: JobView, now_ns: int) -> TimedJob:
        """The job with the work that it has left, in a world that begins now."""
        samples = max(Fraction(1), Fraction(job.iterations_left) * job.gpus_wanted)
        name = job.times.model_name if isinstance(job.times, TableTimed) else _own(job.name)
        return TimedJob(
            job.name,
            job.arrival_ns - now_ns,
            workload_of(name, samples),  # type: ignore[arg-type]  # a fraction is exact
            *(job.gpus_wanted, job.gpus_min, job.gpus_max),
            job.times,
            None if job.deadline_ns is None else job.deadline_ns - now_ns,
        )


def _own(job: str) -> str:
    return f"job {job}"


class _FromPresent(RatesExecutor):
    """Jobs that keep what they hold go on; others pay for a restart if they have been started before."""

    def __init__(self, cluster: Cluster, speeds: _ViewSpeeds, views: Mapping[str, JobView]) -> None:
        super().__init__(cluster, speeds)
        self._views = views

    def _hold_ns(self, start: Start[TimedJob]) -> int:
        view = self._views[start.job.name]
        if start.restarts:
            return view.restart_cost_ns
        return view.restart_left_ns if start.gpus == view.gpus else view.restart_ns


@dataclass
class _FirstDecided:
    """A scheduler whose first decision has been made by another one."""

    scheduler: Scheduler
    first: Assignment | None
    round_ns: int
    asked: bool = False

    @property
    def name(self) -> str:
        """See `Scheduler`."""
        return self.scheduler.name

    @property
    def lease_ns(self) -> int | None:
        """See `Scheduler`."""
        return self.scheduler.lease_ns

    def candidates(
        self, cluster: Cluster, now_ns: int, jobs: Sequence[JobView], most: int = CANDIDATES
    ) -> tuple[Assignment, ...]:
        """See `Scheduler`."""
        if self.first is None:
            self.asked = True
            return self.scheduler.candidates(cluster, now_ns, jobs, most)
        first, self.first = self.first, None
        return (first,)

    def next_ns(self, now_ns: int, jobs: Sequence[JobView]) -> int | None:
        """See `Scheduler`."""
        own_ns = self.scheduler.next_ns(now_ns, jobs)
        if self.asked or not self.round_ns:
            return own_ns
        return self.round_ns if own_ns is None else min(own_ns, self.round_ns)

    def stops(self, now_ns: int, jobs: Sequence[JobView]) -> tuple[str, ...]:
        """See `PreemptingScheduler`."""
        return () if self.first is not None else jobs_to_stop(self.scheduler, now_ns, jobs)
