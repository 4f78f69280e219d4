"""The executor that runs jobs of a trace in the network simulation, by shares or in steps, under given controls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from mltcp.core.demand import Demand
from mltcp.core.errors import MltcpError, UsageError, shown
from placement.model.job import Contention
from placement.policies.catalogue import CommunicationPolicy
from placement.policies.gate_state import GateState
from placement.policies.schedulers.scheduling_policy import Decision
from placement.simulator.auto_run import AutoRun
from placement.simulator.cluster_run import JobEnd, Start
from placement.simulator.fluid_executor import FluidExecutor, FluidJob, FluidSettings, IteratingJobs
from placement.simulator.network.control_names import ControlMix, ModelControls
from placement.simulator.network.failures import NO_FAILURES, LinkChange, LinkFailures, OutageLog
from placement.simulator.network.laws.network_law import NetworkLaw
from placement.simulator.network.network_cluster import NetworkCluster
from placement.simulator.network.parallelism import demand_traffic, traffic_of
from placement.simulator.network.routing import Route, RoutingTable
from placement.simulator.network.shares import ShareSettings
from placement.simulator.network.simulation import shortest_step_ns
from placement.simulator.network.traffic import IterationStep, Message, NetworkJob, Traffic
from placement.simulator.rivals.rival import Rival, SteeredJob
from placement.simulator.share_run import ShareRun
from placement.simulator.step_run import StepRun
from placement.traces.sets import TracedJob

TRACE_MODES = ("shares", "steps", "auto")

STATE_BYTES = 7
"""Of a worker, over its gradients' of 2 bytes a parameter: 2 for the parameter, 4 each for its copy and both moments of
Adam in mixed precision (Rajbhandari et al., ZeRO, SC 2020)."""


@dataclass(frozen=True)
class TrafficControl:
    """What decides about rates in a network.

    Attributes:
        controls: the congestion control of each job.
        gate: the policy that admits what they send; None: they send when they can.
        mode: one of `TRACE_MODES`; only `shares` has gates and rivals.
        step_ns: of the modes `steps` and `auto`; None: by the network.
        rival: decides about routes, traffic classes and moves; None: ECMP, one class, and the scheduler. A network
            whose links fail has none.
        failures: of links.
        attributes: whether lost time is attributed to links and neighbours.

    Raises:
        UsageError: what the mode does not have, a rival where links fail, or a mode that there is not.
    """

    controls: ControlMix | ModelControls
    gate: CommunicationPolicy | None = None
    mode: str = "shares"
    step_ns: int | None = None
    rival: Rival | None = None
    failures: LinkFailures = NO_FAILURES
    attributes: bool = False

    def __post_init__(self) -> None:
        if self.mode not in TRACE_MODES:
            raise UsageError(f"mode: expected one of {', '.join(TRACE_MODES)}, got {shown(self.mode)}")
        for field, value in (("gate", self.gate), ("rival", self.rival)):
            if value is not None and self.mode != TRACE_MODES[0]:
                raise UsageError(f"{field}: expected in the mode {TRACE_MODES[0]} only, got {self.mode}")
        if self.rival is not None and self.failures != NO_FAILURES:
            raise UsageError("rival: expected links that do not fail, since it decides about routes")


class NetworkExecutor(FluidExecutor):
    """Runs jobs in a network; see `Executor`.

    A job with a description of its parallelism sends what follows from that; of another each worker sends what the
    phases say to the next one in a ring.

    Args:
        jobs: all jobs that may be started.
        cluster: the network.
        settings: the parameters, of which the cluster and `congestion_loss` have no meaning here.
        control: the congestion control, the gate and the rival.
        seed: see `FluidExecutor`.
    """

    def __init__(
        self,
        jobs: Sequence[TracedJob],
        cluster: NetworkCluster,
        settings: FluidSettings,
        control: TrafficControl,
        seed: int,
    ) -> None:
        prioritised = control.rival is not None and control.rival.prioritises
        self._network_cluster = cluster.with_priorities() if prioritised else cluster
        self._control = control
        self._placed: dict[int, NetworkJob] = {}
        self._classes: dict[str, int] = {}
        self._moving: dict[int, tuple[FluidJob, Start, float, float]] = {}
        self._states = control.failures.states(cluster.network, seed)
        self._next_state = next(self._states, None)
        self._table: RoutingTable | None = None
        self._down: frozenset[int] = frozenset()
        self._ways: dict[str, tuple[Route, ...]] = {}
        self._until_ns: int | None = 0
        self._steers_ns: float | None = None
        self.outages = OutageLog(cluster.network)
        super().__init__(jobs, cluster, settings, seed)

    def run(self, until_ns: int | None) -> Sequence[JobEnd]:
        """See `Executor`. On the way, links fail and come back.

        Raises:
            MltcpError: no job will ever end, because links that they need are down for good.
        """
        self._until_ns = until_ns
        return super().run(until_ns)

    def start(self, start: Start) -> None:
        """See `Executor`. A job that a rival moves first sends the state of its workers there."""
        former = self.jobs[start.job.name].start
        self._former_gpus = () if former is None else former.gpus
        super().start(start)

    def stop(self, job: str) -> None:
        """See `Executor`."""
        super().stop(job)
        self._moving.pop(self.jobs[job].number, None)
        self._placed.pop(self.jobs[job].number, None)
        self._ways.pop(job, None)

    def work_done(self, job: str) -> float:
        """See `Executor`."""
        return 0.0 if self.jobs[job].number in self._moving else super().work_done(job)

    def decided(self, decision: Decision) -> None:
        """See `Executor`: the rival steers the jobs that run from now on."""
        super().decided(decision)
        self._steer()

    @property
    def losses(self) -> dict[str, Any]:
        """``lost`` and ``lost_by_job`` (`LostTime`), as JSON has them; None unless lost time is attributed."""
        lost = self._run.lost_time
        if lost is None:
            return {"lost": None, "lost_by_job": None}
        links = [link.name for link in self._network_cluster.network.links]
        return {"lost": lost.entries(self._names, links), "lost_by_job": lost.totals(self._names)}

    def _simulated(self, jobs: Sequence[TracedJob]) -> IteratingJobs:
        widest = [(job.name, self._traffic(job, job.max_workers)) for job in jobs]
        network, control = self._network_cluster.network, self._control
        laws = control.controls.laws([job.name for job in jobs], self._seed)
        self._host_laws = control.controls.host_laws(network.hosts, self._seed)
        self._run: ShareRun | StepRun | AutoRun
        if control.mode == "shares":
            self._run = self._shares(widest, laws)
        else:
            step_ns = control.step_ns or shortest_step_ns(network)
            steps = StepRun(network, widest, laws, self._seed, step_ns, control.attributes)
            is_auto = control.mode == "auto"
            self._run = AutoRun(network, self._shares(widest, laws), steps) if is_auto else steps
        return self._run

    def _shares(self, widest: Sequence[tuple[str, Traffic]], laws: Sequence[NetworkLaw]) -> ShareRun:
        cluster, control, gate = self._network_cluster, self._control, None
        if control.gate is not None:
            # As the live gate is told: transfers share links without a loss.
            gate = GateState(
                control.gate, Contention(Fraction(0), Fraction(8 * 10**9, cluster.nic_bps), Fraction(0))
            )
        rival, traffic_class = control.rival, None
        if rival is not None and rival.prioritises:
            traffic_class = rival.remaining or 0
        settings = ShareSettings(self._seed, attributes=control.attributes)
        return ShareRun(cluster.network, widest, laws, settings, gate, traffic_class)

    def _begin(self, job: FluidJob, start: Start, hold_ns: float, noise_ns: float) -> None:
        rival = self._control.rival
        move = self._move(start) if rival is not None and rival.moves and self._former_gpus else None
        if move is None:
            self._train(job, start, hold_ns, noise_ns)
            return
        self._moving[job.number] = job, start, hold_ns, noise_ns
        self._run.start(job.number, move, self._network_cluster.routes_of(move))

    def _train(self, job: FluidJob, start: Start, hold_ns: float, noise_ns: float) -> None:
        cluster = self._network_cluster
        placed = cluster.placed(start.job.name, self._traffic(start.job, len(start.gpus)), start.gpus)
        self._placed[job.number] = placed
        hosts = cluster.network.hosts
        worker_laws = tuple(self._host_laws[hosts[host]] for host in placed.hosts) if self._host_laws else ()
        planned = replace(placed, iterations=job.planned, noise_ns=round(noise_ns), worker_laws=worker_laws)
        silence_ns = Demand(job.phases).silence_ns
        ways = self._routes(placed)
        self._ways[start.job.name] = ways
        self._run.start(job.number, planned, ways, silence_ns=silence_ns, hold_ns=hold_ns)
        self._note(reroutes=True)

    def _next_stop_ns(self, until_ns: int | None) -> int:
        stop_ns = super()._next_stop_ns(until_ns)
        if self._steers_ns is not None:
            stop_ns = min(stop_ns, round(self._steers_ns))
        return stop_ns if self._next_state is None else min(stop_ns, self._next_state.at_ns)

    def _correct(self) -> None:
        # After days, picoseconds do not fit into a float any more, and the time is rounded.
        while self._next_state is not None and self._next_state.at_ns <= self.now_ns + 1:
            self._change_links(self._next_state)
            self._next_state = next(self._states, None)
        if self._until_ns is None and self._next_state is None and self._run.is_still:
            down = ", ".join(self._network_cluster.network.links[link].name for link in sorted(self._down))
            raise MltcpError(f"{', '.join(self._ways)}: cannot go on: {down} down, and it is to stay so")
        if self._steers_ns is not None and self.now_ns + 1 >= self._steers_ns:
            self._steer()
        super()._correct()

    def _change_links(self, state: LinkChange) -> None:
        self._down = state.down
        routes: dict[int, tuple[Route, ...]] = {}
        if state.reroutes:
            network = self._network_cluster.network
            self._table = RoutingTable(network, state.down) if state.down else None
            for number, job in self._placed.items():
                self._ways[job.name] = routes[number] = self._routes(job)
        self._run.change_links(state.down, routes)
        self._note(state.reroutes)

    def _routes(self, job: NetworkJob) -> tuple[Route, ...]:
        usual, table = self._network_cluster.routes_of(job), self._table
        return usual if table is None else table.routes(job, self._network_cluster.seed, usual)

    def _note(self, reroutes: bool) -> None:
        if self._down or self.outages.links:
            self.outages.note(self.now_ns, self._down, dict(self._ways), reroutes)

    def _move(self, start: Start) -> NetworkJob | None:
        """One iteration in which the workers on new GPUs get their state from the former ones; None without any."""
        former = [gpu for gpu in self._former_gpus if gpu not in start.gpus]
        new = [gpu for gpu in start.gpus if gpu not in self._former_gpus]
        workers = len(start.gpus)
        sent_bits = sum(phase.duration_ns * phase.bandwidth_bps / 1e9 for phase in start.job.phases(workers))
        pairs = list(zip(former, new, strict=False))
        if not pairs or not sent_bits:
            return None
        # A ring sends 2 (n-1)/n of the gradients.
        state_bytes = STATE_BYTES * sent_bits / 8 * workers / (2 * (workers - 1))
        messages = tuple(Message(each, len(pairs) + each, state_bytes) for each in range(len(pairs)))
        gpus = [gpu for pair in zip(*pairs, strict=True) for gpu in pair]
        traffic = Traffic(len(gpus), (IterationStep(0, messages),))
        return self._network_cluster.placed(start.job.name, traffic, gpus)

    def _done(self, ended: tuple[int, ...]) -> tuple[int, ...]:
        moved = [number for number in ended if number in self._moving]
        if moved:
            self._collect(without=moved)
            for number in moved:
                self._train(*self._moving.pop(number))
            self._steer()
        done = tuple(number for number in ended if number not in moved)
        for number in done:
            self._ways.pop(self._placed.pop(number).name)
        return done

    def _steer(self) -> None:
        rival, cluster = self._control.rival, self._network_cluster
        if rival is None:
            return
        jobs = [self._steered(number, placed) for number, placed in self._placed.items()]
        steering = rival.steer(cluster, jobs)
        self._classes = dict(steering.classes)
        run = self._share_run
        for number, job in zip(self._placed, jobs, strict=True):
            run.steer(number, steering.routes.get(job.name), steering.classes.get(job.name, 0))
            if job.name in steering.sends_ns:
                run.plan_sends(number, [run.now_ns + each for each in steering.sends_ns[job.name]])
        self._steers_ns = run.now_ns + steering.holds_ns if steering.holds_ns else None

    def _steered(self, number: int, placed: NetworkJob) -> SteeredJob:
        job = self.jobs[placed.name]
        routes = self._network_cluster.routes_of(placed)
        run, silence_ns = self._share_run, Demand(job.phases).silence_ns
        sent_ns = run.sending_since_ns(number)
        if sent_ns is None:
            ready_ns, sending_ns = run.began_ns(number) + silence_ns - run.now_ns, 0.0
        else:
            ready_ns = sent_ns + job.alone_ns - run.now_ns
            sending_ns = ready_ns - silence_ns
        return SteeredJob(
            placed,
            routes,
            job.alone_ns,
            job.compute_ns,
            run.iterations_left(number),
            self._classes.get(placed.name),
            silence_ns,
            run.done(number),
            max(ready_ns, 0.0),
            max(sending_ns, 0.0),
        )

    def _traffic(self, job: TracedJob, workers: int) -> Traffic:
        rings = self._network_cluster.rings_of(workers)
        return job_traffic(job, workers, rings)

    @property
    def _share_run(self) -> ShareRun:
        assert isinstance(self._run, ShareRun), "rivals decide in the mode shares only"
        return self._run


def job_traffic(job: TracedJob, workers: int, rings: int = 1) -> Traffic:
    """What a job with so many workers sends: what follows from its parallelism, or what its phases say.

    Raises:
        UsageError: no workers, or a wrong description.
    """
    if job.parallelism:
        return traffic_of(job.parallelism)
    return demand_traffic(Demand(job.phases(workers)), workers, rings=rings)
