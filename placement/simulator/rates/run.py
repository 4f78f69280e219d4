"""Runs a trace of whole jobs under a scheduler, at the rates of a throughput model.

A job advances at the rate that the model gives for its allocation and its neighbours. Times are whole nanoseconds and
work is exact, so that a run can be repeated to the nanosecond. A job ends at the first whole nanosecond at which its
work is done. A restart holds the GPUs for a fixed time before the job goes on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from mltcp.core.errors import UsageError
from placement.model.cluster import Cluster
from placement.model.throughput import GpusByNode, Neighbour, ThroughputModel
from placement.policies.schedulers.scheduler import Scheduler
from placement.policies.schedulers.scheduling_policy import Decision, SchedulingPolicy
from placement.simulator.cluster_run import ClusterRun, JobEnd, Start
from placement.simulator.rates.outcome import RatesOutcome, Span
from placement.simulator.rates.timed_job import RatesSettings, TimedJob, timed_jobs
from placement.traces.deadlines import DeadlineTrace
from placement.traces.trace import check_gpus

# -- the executor ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StartCost:
    """The cost of a start as a linear function of its GPUs: processes that start on shared cores take turns.

    Attributes:
        fixed_ns: of any start.
        per_gpu_ns: of each GPU.
        first: whether a job's first start costs as much as a restart; otherwise it costs nothing.

    Raises:
        UsageError: a cost is negative.
    """

    fixed_ns: int = 0
    per_gpu_ns: int = 0
    first: bool = False

    def __post_init__(self) -> None:
        for name in ("fixed_ns", "per_gpu_ns"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name}: expected 0 or more, got {getattr(self, name)}")

    def hold_ns(self, gpus: int, restarts: int) -> int:
        """The cost of a start on so many GPUs, after so many earlier ones."""
        return self.fixed_ns + self.per_gpu_ns * gpus if restarts or self.first else 0


@dataclass
class _Running:
    """A job that runs.

    Attributes:
        start: its start.
        allocation: its GPUs by node.
        began_ns: the time of the start.
        hold_ns: the cost of the restart.
        since_ns: from when on `rate` holds; not before the restart is over.
        work: that was left at `since_ns`.
        rate: the work done in a nanosecond.
        end_ns: when the work is done at this rate.
    """

    start: Start[TimedJob]
    allocation: GpusByNode
    began_ns: int
    hold_ns: int
    since_ns: int
    work: Fraction
    rate: Fraction = Fraction(1)
    end_ns: int = 0

    def left(self, now_ns: int) -> Fraction:
        """The work that is left at a time."""
        return max(self.work - self.rate * max(now_ns - self.since_ns, 0), Fraction(0))

    def accelerate(self, now_ns: int, rate: Fraction) -> None:
        """From now on the job has this rate."""
        self.work = self.left(now_ns)
        self.since_ns = max(self.since_ns, now_ns)
        self.rate = rate
        self.end_ns = self.since_ns + math.ceil(self.work / rate)


class RatesExecutor:
    """Runs jobs at the rates of a throughput model; see `Executor`.

    Attributes:
        spans: of all jobs, in the order in which they gave their GPUs back.

    Args:
        cluster: where the jobs run; a server is a node.
        model: gives the rates.
        restart_ns: the cost c of every start of a job but its first.
        start_cost: the costs of starts, in place of `restart_ns`.

    Raises:
        UsageError: the cost is negative.
    """

    def __init__(
        self,
        cluster: Cluster,
        model: ThroughputModel,
        restart_ns: int = 0,
        start_cost: StartCost | None = None,
    ) -> None:
        if restart_ns < 0:
            raise UsageError(f"restart_ns: expected 0 or more, got {restart_ns}")
        self.spans: list[Span] = []
        self._cluster, self._model = cluster, model
        self._start_cost = start_cost or StartCost(restart_ns)
        self._running: dict[str, _Running] = {}
        self._now_ns = 0

    @property
    def now_ns(self) -> int:
        """See `Executor`."""
        return self._now_ns

    def run(self, until_ns: int | None) -> Sequence[JobEnd]:
        """See `Executor`."""
        times = [job.end_ns for job in self._running.values()]
        if until_ns is not None:
            times.append(until_ns)
        self._now_ns = max(self._now_ns, min(times))
        ended = [name for name, job in self._running.items() if job.end_ns <= self._now_ns]
        for name in ended:
            self._free(name)
        if ended:
            self._set_rates([])
        return [JobEnd(name, self._now_ns) for name in ended]

    def start(self, start: Start[TimedJob]) -> None:
        """See `Executor`."""
        hold_ns = self._hold_ns(start)
        begins_ns = self._now_ns + hold_ns
        work = Fraction(start.work)
        self._running[start.job.name] = _Running(
            start,
            tuple(sorted(self._cluster.by_node(start.gpus).items())),
            self._now_ns,
            hold_ns,
            begins_ns,
            work,
        )
        self._set_rates([start.job.name])

    def stop(self, job: str) -> None:
        """See `Executor`; no work is lost."""
        self._free(job)
        self._set_rates([])

    def work_done(self, job: str) -> Fraction:
        """See `Executor`."""
        running = self._running[job]
        return Fraction(running.start.work) - running.left(self._now_ns)

    def ratio(self, job: str) -> float:
        """See `ObservesRatios`."""
        running = self._running[job]
        if not self._model.uses_neighbours:
            return 1.0
        alone = self._model.samples_per_ns(running.start.job.workload, running.allocation)
        workload = running.start.job.workload
        return float(running.rate * workload.batch * running.start.job.workers / alone)

    def decided(self, decision: Decision) -> None:
        """See `Executor`: time shifts make no difference to rates."""

    def _hold_ns(self, start: Start[TimedJob]) -> int:
        """The time for which a start holds its GPUs before the job goes on."""
        return self._start_cost.hold_ns(len(start.gpus), start.restarts)

    def _free(self, name: str) -> None:
        job = self._running.pop(name)
        if self._now_ns > job.began_ns:
            self.spans.append(Span(name, job.start.gpus, job.began_ns, self._now_ns, job.hold_ns))

    def _set_rates(self, started: Sequence[str]) -> None:
        """Set the rates of jobs that were started, and of all others where neighbours count."""
        for name in self._running if self._model.uses_neighbours else started:
            job = self._running[name]
            job.accelerate(self._now_ns, self._rate(name, job))

    def _rate(self, name: str, job: _Running) -> Fraction:
        rate_job = job.start.job
        neighbours = []
        if self._model.uses_neighbours:
            neighbours = [
                Neighbour(other.start.job.workload, other.allocation)
                for key, other in self._running.items()
                if key != name
            ]
        workload = rate_job.workload
        samples = self._model.samples_per_ns(workload, job.allocation, neighbours)
        return samples / (workload.batch * rate_job.workers)


# -- runs --------------------------------------------------------------------------------------------------------------

_NIC_BPS = 48_000_000_000
"""No job has a demand, so the rate of NICs makes no difference."""


def run_rates(
    trace: DeadlineTrace,
    settings: RatesSettings,
    scheduler: Scheduler,
    start_cost: StartCost | None = None,
) -> RatesOutcome:
    """Run a trace to its end.

    Args:
        trace: the jobs.
        settings: the cluster; its `restart_ns` is what the scheduler is told.
        scheduler: decides.
        start_cost: what starts cost; default: every restart `restart_ns`.

    Raises:
        UsageError: a job asks for more GPUs than the cluster has.
        MltcpError: jobs wait that the scheduler never places.
    """
    cluster = settings.cluster()
    check_gpus(trace, len(cluster.gpus))
    executor = RatesExecutor(cluster, settings.model, settings.restart_ns, start_cost)
    policy = SchedulingPolicy(scheduler, most=1)
    ClusterRun(timed_jobs(trace, settings), cluster, _NIC_BPS, policy, executor, settings.restart_ns).run()
    return RatesOutcome.of(trace, scheduler.name, cluster, executor.spans)
