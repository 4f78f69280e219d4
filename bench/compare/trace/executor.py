"""The executor that runs the jobs of a trace as real processes, on the servers of a lab or on real hosts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import count

from bench.compare.approach import Approach
from bench.compare.coordination import Coordination, PlacedDemand, cluster_network, coordinated, slot_name
from bench.compare.launch import check_control
from bench.compare.results.runs import JobRun, Shift
from bench.compare.trace.hosts import StartedJob, TraceHosts, servers_of, slots_of
from bench.workloads.job import JobResult, JobSpec
from bench.workloads.phases import PhasedWork, on_link, time_scale
from bench.workloads.rank_pool import Event, Iterated, PlacedJob, RankPool, rank_pool
from mltcp.core.demand import Demand, Phase
from placement.policies.schedulers.scheduling_policy import Decision
from placement.simulator.cluster_run import JobEnd, Start
from placement.traces.sets import JobSet, TracedJob

LEAST_ITERATIONS = 5
ISOLATED_ITERATIONS = 10


@dataclass(frozen=True)
class TraceScale:
    """The factors from the trace to the lab.

    Attributes:
        time: of the time of an iteration.
        iterations: of the number of iterations of a job.
    """

    time: float
    iterations: float

    @property
    def clock(self) -> float:
        """The lab time that a second of the trace takes."""
        return self.time * self.iterations

    def iterations_of(self, job: TracedJob, isolated: bool) -> int:
        """The iterations that a job runs in the lab; isolated, no more than a mean needs."""
        shared = max(LEAST_ITERATIONS, round(job.iterations * self.iterations))
        return min(ISOLATED_ITERATIONS, shared) if isolated else shared


def scale_of(trace: JobSet, iterations: int, dilation: float = 1.0) -> TraceScale:
    """The scale at which iterations last 0.2 to 0.6 s, times the dilation, and the longest job has so many of them."""
    times_s = [job.demand.iteration_ns / 1e9 for job in trace.jobs]
    scale = dilation * time_scale(times_s)
    return TraceScale(scale, iterations / max(job.iterations for job in trace.jobs))


@dataclass(frozen=True)
class LiveSettings:
    """The conditions of a run.

    Attributes:
        hosts: without jobs.
        capacity_bps: the link rate for which the phases of the trace were made.
        scale: from the trace to the hosts.
    """

    hosts: TraceHosts
    capacity_bps: int
    scale: TraceScale


class LiveLauncher:
    """Launches jobs under one approach.

    Args:
        settings: the conditions.
        approach: decides the congestion control and pacing.
        coordination: is told of each job.
        ranks: the processes.
    """

    def __init__(
        self, settings: LiveSettings, approach: Approach, coordination: Coordination, ranks: RankPool
    ) -> None:
        self._settings, self._approach = settings, approach
        self._coordination, self._ranks = coordination, ranks
        self._hosts = settings.hosts

    def share(self, job: TracedJob) -> float:
        """The share of the job's iterations in the trace that run here."""
        return self._settings.scale.iterations_of(job, self._approach.isolated) / job.iterations

    def servers(self, gpus: Sequence[int]) -> tuple[str, ...]:
        """The server of each GPU."""
        return servers_of(self._hosts.cluster, gpus)

    def launch(self, start: Start, number: int, resources: ExitStack) -> None:
        """Start the processes of a job.

        Args:
            start: the job, and its GPUs.
            number: free among the jobs that run.
            resources: receives whatever has to be given back when the job's processes are gone.
        """
        # The service and the gate know each start as a job of its own.
        name = f"{start.job.name}.{start.restarts}" if start.restarts else start.job.name
        cluster, variables = self._hosts.cluster, self._coordination.variables
        started = StartedJob(name, number, tuple(start.gpus), self._approach.policy, self._pace(), variables)
        places, launcher = self._hosts.place(started, resources)
        spec, demand = self._spec(name, start)
        resources.callback(self._coordination.released, name)
        links = tuple(cluster.links[link].name for link in cluster.links_of(name, start.gpus))
        numbers = slots_of(cluster, start.gpus)
        slots = tuple(map(slot_name, self.servers(start.gpus), numbers))
        self._coordination.placed(PlacedDemand(name, slots, links, demand, spec.iterations))
        self._ranks.launch(number, PlacedJob(spec, places), launcher)

    def _spec(self, name: str, start: Start) -> tuple[JobSpec, Demand]:
        """The program of each rank, and its demand on the links."""
        iterations = start.iterations(self.share(start.job))
        rate = Fraction(self._hosts.rate_bps, self._settings.capacity_bps)
        spec = JobSpec(name, self._work(start), len(start.gpus), iterations)
        return spec, _scaled(_demand(start), self._settings.scale.time, rate)

    def _work(self, start: Start) -> PhasedWork:
        capacity_bps, time = self._settings.capacity_bps, self._settings.scale.time
        rate_bps, workers = self._hosts.rate_bps, len(start.gpus)
        return on_link(start.job.name, _demand(start), capacity_bps, rate_bps, workers, time)

    def ideal_s(self, start: Start) -> float:
        """An iteration's time with these GPUs, alone, if links and hosts were ideal."""
        return self._work(start).isolated_iteration_s(self._hosts.rate_bps, len(start.gpus))

    def _pace(self) -> str | None:
        """The value of MLTCP_PACE. Pacing is by socket: a source of hosts refuses any other."""
        pacing = self._approach.policy.pacing
        return None if pacing is None else f"{self._hosts.rate_bps}bit,{pacing.law}"


def _demand(start: Start) -> Demand:
    """In the trace, with the workers of this start."""
    return Demand(start.job.phases(len(start.gpus)))


def _scaled(demand: Demand, time: float, rate: Fraction) -> Demand:
    """The demand with durations and bandwidths multiplied by these factors."""
    return Demand(
        tuple(
            Phase(round(phase.duration_ns * time), round(phase.bandwidth_bps * rate))
            for phase in demand.phases
        )
    )


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
            ideal_s=self._launcher.ideal_s(live.start),
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
