"""``mltcp-bench compare --trace``: jobs arrive on a two-tier lab, are placed, run, and give their slots back.

The schedulers are the very objects that the simulator runs, and they see the trace's own times: the lab lives through
the same trace faster or slower, since its iterations are longer and fewer. What is measured is real: ranks in
processes, on the servers that the scheduler chose; a job that is moved is ended and started anew with
what it has left to do.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction

from bench.compare.approach import Approach
from bench.compare.contend import Progress, check_control, loaded_controls
from bench.compare.coordination import Coordination, PlacedDemand, Together, from_epoch
from bench.compare.gate import gated
from bench.compare.journal import Keep
from bench.compare.placing import scheduler
from bench.compare.results import ApproachRun, JobRun, Measured
from bench.compare.service import served, slot_name, two_tier_network
from bench.lab.lab import Lab
from bench.lab.network import namespaces
from bench.lab.placing import label_of
from bench.lab.topology import MAX_JOBS
from bench.lab.two_tier import TwoTier, two_tier, two_tier_cluster
from bench.workloads.job import JobResult, JobSpec
from bench.workloads.launch.launch import PlacedJob
from bench.workloads.launch.open_run import Ended, Event, Iterated, open_run
from bench.workloads.phases import on_link, time_scale
from bench.workloads.ranks.place import RankPlace
from mltcp.core.demand import Demand, Phase
from mltcp.core.errors import MltcpError, UsageError
from mltcp.ebpf.congestion_controls import Controls
from mltcp.ebpf.jobs import attached
from placement.model.cluster import Cluster
from placement.policies.schedulers.augmented import Decision, links_of
from placement.policies.schedulers.scheduler import JobView, progress
from placement.simulator.scheduled_job import ACROSS_RACKS
from placement.traces.sets import JobSet, TracedJob

LEAST_ITERATIONS = 5
ISOLATED_ITERATIONS = 10
_LONGEST_WAIT_S = 0.5
_FOREVER_NS = 1 << 62


@dataclass(frozen=True)
class TracePlan:
    """How a trace is compared.

    Attributes:
        approaches: in the order in which they run.
        shape: of the lab.
        iterations: of the job that has most; the others have as many fewer as in the trace.
        repeat: how often everything runs.
        placement: the scheduler of approaches that name none.
        seed: of the schedulers' draws.
        ecn_by: what marks.
    """

    approaches: tuple[Approach, ...]
    shape: TwoTier
    iterations: int
    repeat: int = 1
    placement: str = "first-fit"
    seed: int = 0
    ecn_by: str = "virtual_queue"


@dataclass(frozen=True)
class _Scale:
    """From the trace to the lab: times of an iteration, and numbers of iterations, times these."""

    time: float
    iterations: float

    @property
    def clock(self) -> float:
        """How much lab time a second of the trace takes."""
        return self.time * self.iterations

    def iterations_of(self, job: TracedJob) -> int:
        """How many a job has in the lab."""
        return max(LEAST_ITERATIONS, round(job.iterations * self.iterations))


def compare_trace(trace: JobSet, plan: TracePlan, step: Progress, keep: Keep) -> Measured:
    """Live through the trace under every approach, every repeat.

    What has been measured goes to `keep` whenever an approach has run.

    Raises:
        UsageError: a job that is larger than the lab, or more jobs than it can tell apart.
        NotAvailableError: not root, or the kernel lacks something.
        RankError: a rank failed; the lab is gone by the time this is raised.
    """
    _check(trace, plan)
    namespaces.require_privileges()
    scale = scale_of(trace, plan)
    measured = Measured(trace.name, _setting(plan, scale), ())
    with loaded_controls([approach.policy for approach in plan.approaches]) as controls:
        with Lab(two_tier(plan.shape), ecn_by=plan.ecn_by) as lab:
            for repeat in range(plan.repeat):
                for approach in plan.approaches:
                    run = _TraceRun(trace, plan, scale, approach, repeat, lab, controls, step).run()
                    measured = replace(measured, runs=(*measured.runs, run))
                    keep([measured])
    return measured


def scale_of(trace: JobSet, plan: TracePlan) -> _Scale:
    """Iterations last 0.2 to 0.6 s, and the job that has most has as many as the plan says."""
    times = [job.demand.iteration_ns / 1e9 for job in trace.jobs]
    return _Scale(time_scale(times), plan.iterations / max(job.iterations for job in trace.jobs))


def total_iterations(trace: JobSet, plan: TracePlan) -> int:
    """About how many iterations it comes to: a scheduler that changes the number of workers changes them too."""
    scale = scale_of(trace, plan)
    shared = sum(scale.iterations_of(job) for job in trace.jobs)
    alone = sum(min(ISOLATED_ITERATIONS, scale.iterations_of(job)) for job in trace.jobs)
    return plan.repeat * sum(alone if approach.isolated else shared for approach in plan.approaches)


@dataclass(frozen=True)
class _Times:
    """What schedulers reckon an iteration to take: as profiled, with slower communication across racks."""

    job: TracedJob

    def iteration_ns(self, workers: int, one_rack: bool) -> float:
        """See `placement.policies.schedulers.scheduler.IterationTimes`."""
        factor = 1.0 if one_rack else ACROSS_RACKS
        return sum(
            phase.duration_ns * (factor if phase.bandwidth_bps else 1.0) for phase in self.job.phases(workers)
        )


@dataclass
class _Running:
    """A job of the trace while it waits or runs; `done` counts iterations of the lab with the workers it asked for."""

    job: TracedJob
    total: int
    gpus: tuple[int, ...] = ()
    done: float = 0.0
    worth: float = 1.0
    lease_end_ns: int = 0
    restarts: int = 0
    number: int = -1
    servers: tuple[str, ...] = ()
    iteration_s: list[float] = field(default_factory=list)
    began_s: list[float] = field(default_factory=list)
    result: JobResult | None = None
    ended_s: float = 0.0
    stack: ExitStack = field(default_factory=ExitStack)

    @property
    def name(self) -> str:
        """Another one each time that it is started: to those outside, it is a job of its own."""
        return f"{self.job.name}.{self.restarts}" if self.restarts else self.job.name

    def view(self) -> JobView:
        """As a scheduler sees it."""
        job = self.job
        left = max(0.0, self.total - self.done) / self.total
        return JobView(
            name=job.name,
            arrival_ns=job.arrival_ns,
            gpus_wanted=job.workers,
            gpus_min=job.min_workers,
            gpus_max=job.max_workers,
            iterations=job.iterations,
            iterations_left=job.iterations * left,
            times=_Times(job),
            gpus=self.gpus,
            lease_end_ns=self.lease_end_ns,
            restarts=self.restarts,
            noise_scale=job.noise_scale,
        )


class _TraceRun:
    """One approach, once."""

    def __init__(
        self,
        trace: JobSet,
        plan: TracePlan,
        scale: _Scale,
        approach: Approach,
        repeat: int,
        lab: Lab,
        controls: Controls,
        step: Progress,
    ) -> None:
        self._trace, self._plan, self._scale, self._approach = trace, plan, scale, approach
        self._repeat, self._lab, self._controls, self._step = repeat, lab, controls, step
        self._cluster: Cluster = two_tier_cluster(plan.shape)
        self._policy = scheduler(
            approach.placement or plan.placement, approach.cassini, plan.seed * 1000 + repeat
        )
        self._to_come: list[_Running] = []
        self._active: dict[str, _Running] = {}
        self._ended: list[_Running] = []
        self._decisions_s: list[float] = []
        self._epoch_s = 0.0

    def run(self) -> ApproachRun:
        """Live through the trace."""
        with ExitStack() as stack:
            self._stack = stack
            self._coordination = stack.enter_context(self._coordinated())
            self._open = stack.enter_context(open_run())
            stack.callback(self._take_all_off)
            self._lab.start_measuring()
            self._epoch_s = time.monotonic()
            if self._approach.isolated:
                self._each_alone()
            else:
                self._all_as_they_come()
            use = self._lab.measurement()
            shifts = from_epoch(self._coordination.shifts, self._epoch_s)
            decisions = (*self._decisions_s, *self._coordination.decisions_s)
        jobs = tuple(self._job_run(each) for each in self._in_order())
        return ApproachRun(self._approach.name, self._repeat, jobs, decisions, use.drops, (), shifts)

    # -- what happens ------------------------------------------------------------------------------------------------

    def _all_as_they_come(self) -> None:
        self._to_come = [_Running(job, self._scale.iterations_of(job)) for job in self._trace.jobs]
        while self._to_come or self._active:
            due_ns = self._due_ns()
            ended = self._happened(self._wait_s(due_ns))
            if self._admit() or ended or self._now_ns >= due_ns:
                self._decide()
            self._check_progress()

    def _each_alone(self) -> None:
        """One job after the other, in an empty lab, for as many iterations as a yardstick needs."""
        for job in self._trace.jobs:
            running = _Running(
                replace(job, arrival_ns=self._now_ns),
                min(ISOLATED_ITERATIONS, self._scale.iterations_of(job)),
            )
            self._active[job.name] = running
            self._decide()
            while self._active:
                self._happened(_LONGEST_WAIT_S)

    def _happened(self, timeout_s: float) -> bool:
        """Take note of what happens within the time; whether a job has ended."""
        ended = False
        for event in self._open.events(timeout_s):
            ended |= self._note(event)
        return ended

    def _note(self, event: Event) -> bool:
        running = next(each for each in self._active.values() if each.number == event.job)
        if isinstance(event, Iterated):
            running.done += running.worth
            running.iteration_s.append(event.record.duration_s)
            running.began_s.append(event.record.start_s - self._epoch_s)
            self._step(self._approach.name, self._repeat)
            return False
        assert isinstance(event, Ended)
        if len(running.servers) > 1:
            check_control(event.result, self._approach.policy)
        running.result = event.result
        running.ended_s = event.result.iterations[-1].end_s - self._epoch_s
        self._take_off(running)
        self._ended.append(self._active.pop(running.job.name))
        return True

    def _admit(self) -> bool:
        arrived = False
        while self._to_come and self._to_come[0].job.arrival_ns <= self._now_ns:
            running = self._to_come.pop(0)
            self._active[running.job.name] = running
            arrived = True
        return arrived

    @property
    def _now_ns(self) -> int:
        """The trace's time."""
        return round((time.monotonic() - self._epoch_s) / self._scale.clock * 1e9)

    def _due_ns(self) -> int:
        """When the scheduler is asked at the latest."""
        arrival_ns = self._to_come[0].job.arrival_ns if self._to_come else _FOREVER_NS
        asked_ns = self._policy.scheduler.next_ns(self._now_ns, self._views())
        return min(arrival_ns, _FOREVER_NS if asked_ns is None else asked_ns)

    def _wait_s(self, due_ns: int) -> float:
        return min(_LONGEST_WAIT_S, max(0.0, (due_ns - self._now_ns) / 1e9 * self._scale.clock))

    def _views(self) -> list[JobView]:
        return [each.view() for each in self._active.values()]

    def _check_progress(self) -> None:
        if not self._to_come and self._active and not any(each.gpus for each in self._active.values()):
            waiting = ", ".join(self._active)
            raise MltcpError(f"{self._approach.name}: {waiting} wait, and the scheduler gives them no slots")

    # -- decisions ---------------------------------------------------------------------------------------------------

    def _decide(self) -> None:
        now_ns, views = self._now_ns, self._views()
        decision = self._policy.decide(
            self._cluster, self._trace.capacity_bps, now_ns, views, self._demand_of
        )
        self._decisions_s.append(decision.took_ns / 1e9)
        for view in views:
            running = self._active[view.name]
            if running.gpus and decision.assignment.get(view.name, ()) != running.gpus:
                self._move_off(running)
        for view in views:
            self._place(self._active[view.name], view, decision, now_ns)

    def _demand_of(self, job: str, workers: int) -> Demand | None:
        demand = Demand(self._active[job].job.phases(workers))
        return demand if demand.bits else None

    def _move_off(self, running: _Running) -> None:
        self._open.stop(running.number)
        self._take_off(running)
        running.gpus = ()
        running.restarts += 1

    def _place(self, running: _Running, view: JobView, decision: Decision, now_ns: int) -> None:
        gpus = decision.assignment.get(view.name, ())
        lease_ns = self._policy.scheduler.lease_ns
        if gpus and not view.holds(now_ns):
            running.lease_end_ns = _FOREVER_NS if lease_ns is None else now_ns + lease_ns
        if gpus and gpus != running.gpus:
            running.gpus = gpus
            running.worth = progress(view, len(gpus))
            self._start(running)

    def _start(self, running: _Running) -> None:
        """Start the job's processes on its servers, for what it has left to do."""
        job, workers = running.job, len(running.gpus)
        running.servers = tuple(
            self._cluster.servers[self._cluster.gpus[gpu][0]].name for gpu in running.gpus
        )
        running.number = self._free_number()
        addresses = self._lab.place(running.number, running.servers)
        running.stack = ExitStack()
        demand = Demand(job.phases(workers))
        rate_bps = self._plan.shape.nic.rate_bps
        work = on_link(job.name, demand, self._trace.capacity_bps, rate_bps, workers, self._scale.time)
        iterations = max(1, math.ceil((running.total - running.done) / running.worth - 1e-6))
        places = self._places(running, addresses)
        self._coordination.placed(
            PlacedDemand(
                running.name, self._slots(running), self._links(running), self._scaled(demand), iterations
            )
        )
        self._open.start(running.number, PlacedJob(JobSpec(running.name, work, workers, iterations), places))

    def _places(self, running: _Running, addresses: Sequence[str]) -> tuple[RankPlace, ...]:
        policy = self._approach.policy
        # Gloo binds all ranks of a job on a server to the first of their addresses there.
        bound = [addresses[running.servers.index(server)] for server in running.servers]
        cgroups = {
            server: running.stack.enter_context(
                attached(policy.job(f"{running.name}@{server}"), policy.control, self._controls)
            ).cgroup
            for server in dict.fromkeys(running.servers)
        }
        return tuple(
            RankPlace(
                self._lab.namespace(server),
                label_of(running.number),
                address,
                cgroups[server],
                pace=self._pace(),
                environment=self._coordination.variables,
            )
            for server, address in zip(running.servers, bound, strict=True)
        )

    def _pace(self) -> str | None:
        pacing = self._approach.policy.pacing  # by socket: see _check
        if pacing is None:
            return None
        return f"{self._plan.shape.nic.rate_bps}bit,{pacing.law}"

    def _take_off(self, running: _Running) -> None:
        self._coordination.released(running.name)
        running.stack.close()
        self._lab.unplace(running.number)
        running.number = -1

    def _take_all_off(self) -> None:
        """What an error leaves."""
        self._open.kill()
        for running in self._active.values():
            if running.number >= 0:
                self._take_off(running)

    def _free_number(self) -> int:
        taken = {each.number for each in self._active.values()}
        return next(number for number in range(MAX_JOBS) if number not in taken)

    def _links(self, running: _Running) -> tuple[str, ...]:
        return tuple(self._cluster.links[link].name for link in links_of(self._cluster, running.gpus))

    def _slots(self, running: _Running) -> tuple[str, ...]:
        """Each rank's slot as the service calls it: by its number within the server."""
        first = {server: self._first_gpu(server) for server in running.servers}
        return tuple(
            slot_name(server, gpu - first[server])
            for gpu, server in zip(running.gpus, running.servers, strict=True)
        )

    def _first_gpu(self, server: str) -> int:
        return next(
            gpu
            for gpu, (number, _) in enumerate(self._cluster.gpus)
            if self._cluster.servers[number].name == server
        )

    def _scaled(self, demand: Demand) -> Demand:
        """On the lab's NICs, with the lab's times."""
        share = Fraction(self._plan.shape.nic.rate_bps, self._trace.capacity_bps)
        return Demand(
            tuple(
                Phase(round(phase.duration_ns * self._scale.time), round(phase.bandwidth_bps * share))
                for phase in demand.phases
            )
        )

    @contextmanager
    def _coordinated(self) -> Iterator[Coordination]:
        shape, gate = self._plan.shape, self._approach.gate
        with ExitStack() as stack:
            parts: list[Coordination] = []
            if gate is not None:
                speeds = {link.name: link.speed for link in self._cluster.links}
                parts.append(stack.enter_context(gated(gate, shape.nic.rate_bps, speeds)))
            if self._approach.cassini:
                parts.append(stack.enter_context(served(two_tier_network(shape))))
            yield Together(parts)

    # -- what it comes to --------------------------------------------------------------------------------------------

    def _in_order(self) -> list[_Running]:
        order = {job.name: position for position, job in enumerate(self._trace.jobs)}
        return sorted(self._ended, key=lambda each: order[each.job.name])

    def _job_run(self, running: _Running) -> JobRun:
        assert running.result is not None
        return JobRun(
            job=running.job.name,
            control=self._approach.policy.control,
            iteration_s=tuple(running.iteration_s),
            began_s=tuple(running.began_s),
            arrival_s=running.job.arrival_ns / 1e9 * self._scale.clock,
            ended_s=running.ended_s,
            marks=running.result.delivered_ce_segments,
            retransmits=running.result.retransmits,
            servers=running.servers,
        )


def first_jobs(trace: JobSet, count: int) -> JobSet:
    """The trace cut short."""
    return trace if count >= len(trace.jobs) else replace(trace, jobs=trace.jobs[:count])


def _check(trace: JobSet, plan: TracePlan) -> None:
    slots = plan.shape.racks * plan.shape.servers * plan.shape.slots
    for job in trace.jobs:
        if job.workers > slots:
            raise UsageError(f"{trace.name}: {job.name} wants {job.workers} slots; the lab has {slots}")
    for approach in plan.approaches:
        pacing = approach.policy.pacing
        if pacing is not None and not pacing.by_socket:
            # the lab has shaped the servers' interfaces, and a daemon leaves alone what it has not installed
            raise UsageError(
                f"--policies: {approach.policy.name!r}: no daemon can pace the servers of this lab; "
                f"{approach.policy.name.partition('@')[0]}@by=socket is allowed"
            )
    if (
        slots > MAX_JOBS
        and len(trace.jobs) > MAX_JOBS
        and min(job.workers for job in trace.jobs) * MAX_JOBS < slots
    ):
        raise UsageError(
            f"{trace.name}: more than {MAX_JOBS} jobs may run at a time on {slots} slots; "
            f"{MAX_JOBS} are allowed: fewer slots, or fewer jobs"
        )


def _setting(plan: TracePlan, scale: _Scale) -> Mapping[str, str | int | float | bool | None]:
    shape = plan.shape
    return {
        "topology": "two-tier",
        "racks": shape.racks,
        "servers_per_rack": shape.servers,
        "slots_per_server": shape.slots,
        "nic_bps": shape.nic.rate_bps,
        "uplink_bps": shape.uplink.rate_bps,
        "queue_bytes": shape.nic.queue_bytes,
        "ecn_threshold_bytes": shape.nic.ecn_threshold_bytes,
        "ecn_by": plan.ecn_by,
        "mtu": shape.nic.mtu,
        "iterations": plan.iterations,
        "repeat": plan.repeat,
        "placement": plan.placement,
        "seed": plan.seed,
        "time_scale": round(scale.time, 6),
        "iterations_scale": round(scale.iterations, 6),
    }
