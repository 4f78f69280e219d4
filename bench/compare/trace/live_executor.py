"""The executor that runs the jobs of a trace as real processes, on the servers of a lab or on real hosts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count

from bench.compare.approaches.approach import Approach
from bench.compare.coordination.coordination import Coordination, coordinated
from bench.compare.coordination.service import cluster_network
from bench.compare.launch import check_control
from bench.compare.results.runs import JobRun, Shift
from bench.compare.trace.live_launch import LiveLauncher, LiveSettings
from bench.workloads.job import JobResult
from bench.workloads.rank_pool import Event, Iterated, RankPool, rank_pool
from placement.policies.schedulers.scheduling_policy import Decision
from placement.simulator.executor import JobEnd, Start
from placement.traces.sets import TracedJob

_LONGEST_WAIT_S = 0.5


@dataclass
class LiveJob:
    """One start of a job, and the iterations of all of its starts.

    Attributes:
        start: the GPUs, and the work that was left.
        number: of the job among those that run.
        iterations_done: since this start.
        iteration_s: the duration of each iteration, over all starts.
        began_s: when each of them began, from the beginning of the run.
        result: None until the job has ended.
        resources: what the job holds while it runs.
    """

    start: Start
    number: int
    iterations_done: int = 0
    iteration_s: list[float] = field(default_factory=list)
    began_s: list[float] = field(default_factory=list)
    result: JobResult | None = None
    resources: ExitStack = field(default_factory=ExitStack)


@contextmanager
def live_executor(
    settings: LiveSettings, approach: Approach, on_iteration: Callable[[], None]
) -> Iterator[LiveExecutor]:
    """An executor whose time begins now; jobs that still run at the end of the block are killed.

    Args:
        settings: the conditions.
        approach: decides the congestion control, the gate, and whether jobs are shifted in time.
        on_iteration: called after every iteration of a job.

    Raises:
        MltcpError: the gate or the placement service did not start.
    """
    with ExitStack() as stack:
        hosts = settings.hosts
        speeds = {link.name: link.speed for link in hosts.cluster.links}
        network = cluster_network(hosts.cluster, hosts.rate_bps)
        coordination = stack.enter_context(
            coordinated(approach, network, hosts.rate_bps, speeds, hosts.directory)
        )
        ranks = stack.enter_context(rank_pool())
        executor = LiveExecutor(settings, approach, coordination, ranks, on_iteration)
        stack.callback(executor.close)
        yield executor


class LiveExecutor:
    """Runs jobs as processes; see `Executor`. Made by `live_executor`. Its time is the wall clock, scaled to the trace.

    A job that is stopped is killed, and its next start has the iterations that are left.
    """

    def __init__(
        self,
        settings: LiveSettings,
        approach: Approach,
        coordination: Coordination,
        ranks: RankPool,
        on_iteration: Callable[[], None],
    ) -> None:
        self._clock, self._policy = settings.scale.clock, approach.policy
        self._coordination, self._ranks, self._on_iteration = coordination, ranks, on_iteration
        self._launcher = LiveLauncher(settings, approach, coordination, ranks)
        self._jobs: dict[str, LiveJob] = {}
        self._running: dict[int, LiveJob] = {}
        self._epoch_s = time.monotonic()

    @property
    def now_ns(self) -> int:
        """See `Executor`."""
        return round(self._trace_ns(time.monotonic()))

    @property
    def decisions_s(self) -> tuple[float, ...]:
        """The time that each decision of the placement service took."""
        return self._coordination.decisions_s

    @property
    def shifts(self) -> tuple[Shift, ...]:
        """The time shifts that were applied, with times from the beginning of the run."""
        return self._coordination.shifts(self._epoch_s)

    def run(self, until_ns: int | None) -> Sequence[JobEnd]:
        """See `Executor`.

        Raises:
            RankError: a rank raised or died.
            MltcpError: a job did not use the congestion control of the approach.
        """
        while True:
            events = self._ranks.events(self._wait_s(until_ns))
            ends = [end for event in events if (end := self._note(event)) is not None]
            if ends or (until_ns is not None and self.now_ns >= until_ns):
                return ends

    def start(self, start: Start) -> None:
        """See `Executor`."""
        number = next(number for number in count() if number not in self._running)
        job = LiveJob(start, number)
        if (before := self._jobs.get(start.job.name)) is not None:
            job.iteration_s, job.began_s = before.iteration_s, before.began_s
        self._jobs[start.job.name] = self._running[number] = job
        self._launcher.launch(start, number, job.resources)

    def stop(self, job: str) -> None:
        """See `Executor`."""
        running = self._jobs[job]
        self._ranks.stop(running.number)
        self._free(running)

    def work_done(self, job: str) -> float:
        """See `Executor`."""
        running = self._jobs[job]
        return running.iterations_done * running.start.progress / self._launcher.share(running.start.job)

    def decided(self, decision: Decision) -> None:
        """See `Executor`: nothing to apply, since the placement service works out the time shifts."""

    def job_run(self, job: TracedJob) -> JobRun:
        """The measurements of a job that has ended; `job` says when it arrived."""
        live = self._jobs[job.name]
        assert live.result is not None
        return JobRun(
            job=job.name,
            control=self._policy.control,
            iteration_s=tuple(live.iteration_s),
            began_s=tuple(live.began_s),
            arrival_s=job.arrival_ns / 1e9 * self._clock,
            ended_s=live.result.iterations[-1].end_s - self._epoch_s,
            marks=live.result.delivered_ce_segments,
            retransmits=live.result.retransmits,
            servers=self._launcher.servers(live.start.gpus),
        )

    def close(self) -> None:
        """Kill all jobs, and free what they hold."""
        self._ranks.kill()
        for job in list(self._running.values()):
            self._free(job)

    def _trace_ns(self, monotonic_s: float) -> float:
        return (monotonic_s - self._epoch_s) / self._clock * 1e9

    def _wait_s(self, until_ns: int | None) -> float:
        if until_ns is None:
            return _LONGEST_WAIT_S
        return min(_LONGEST_WAIT_S, max(0.0, (until_ns - self.now_ns) / 1e9 * self._clock))

    def _note(self, event: Event) -> JobEnd | None:
        job = self._running[event.job]
        if isinstance(event, Iterated):
            job.iterations_done += 1
            job.iteration_s.append(event.record.duration_s)
            job.began_s.append(event.record.start_s - self._epoch_s)
            self._on_iteration()
            return None
        if len(job.start.gpus) > 1:
            check_control(event.result, self._policy)
        job.result = event.result
        self._free(job)
        return JobEnd(job.start.job.name, self._trace_ns(event.result.iterations[-1].end_s))

    def _free(self, job: LiveJob) -> None:
        job.resources.close()
        del self._running[job.number]
