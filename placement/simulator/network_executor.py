"""The executor that runs jobs of a trace in the network simulation, by shares or in steps, under given controls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from mltcp.core.demand import Demand
from mltcp.core.errors import MltcpError, UsageError
from placement.model.job import Contention
from placement.policies.catalogue import CommunicationPolicy
from placement.policies.gate_state import GateState
from placement.simulator.cluster_run import JobEnd, Start
from placement.simulator.fluid_executor import FluidExecutor, FluidJob, FluidSettings, IteratingJobs
from placement.simulator.network.control_names import ControlMix
from placement.simulator.network.failures import NO_FAILURES, LinkChange, LinkFailures, OutageLog
from placement.simulator.network.network_cluster import NetworkCluster
from placement.simulator.network.parallelism import demand_traffic
from placement.simulator.network.routing import Route, RoutingTable
from placement.simulator.network.shares import ShareSettings
from placement.simulator.network.simulation import shortest_step_ns
from placement.simulator.network.traffic import NetworkJob, Traffic
from placement.simulator.share_run import ShareRun
from placement.simulator.step_run import StepRun
from placement.traces.sets import TracedJob

TRACE_MODES = ("shares", "steps")


@dataclass(frozen=True)
class TrafficControl:
    """What decides about rates in a network.

    Attributes:
        controls: the congestion control of each job.
        gate: the policy that admits what they send, which the mode shares alone has; None: they send when they can.
        mode: shares or steps.
        failures: of links.

    Raises UsageError for a gate in another mode.
    """

    controls: ControlMix
    gate: CommunicationPolicy | None = None
    mode: str = "shares"
    failures: LinkFailures = NO_FAILURES

    def __post_init__(self) -> None:
        if self.mode not in TRACE_MODES:
            raise UsageError(f"mode: expected {' or '.join(TRACE_MODES)} with a trace, got {self.mode}")
        if self.gate is not None and self.mode != "shares":
            raise UsageError(f"gate: expected none in the mode {self.mode}")


class NetworkExecutor(FluidExecutor):
    """Runs jobs in a network: each worker sends what the phases say to the next one in a ring; see `Executor`.

    Args:
        jobs: all jobs that may be started.
        cluster: the network.
        settings: the parameters, of which the cluster and `congestion_loss` have no meaning here.
        control: the congestion control, and the gate.
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
        self._network_cluster, self._control = cluster, control
        self._states = control.failures.states(cluster.network, seed)
        self._next_state = next(self._states, None)
        self._table: RoutingTable | None = None
        self._down: frozenset[int] = frozenset()
        self._running: dict[str, tuple[NetworkJob, tuple[Route, ...]]] = {}
        self._until_ns: int | None = 0
        self.outages = OutageLog(cluster.network)
        super().__init__(jobs, cluster, settings, seed)

    def run(self, until_ns: int | None) -> Sequence[JobEnd]:
        """See `Executor`. On the way, links fail and come back.

        Raises:
            MltcpError: no job will ever end, because links that they need are down for good.
        """
        self._until_ns = until_ns
        ends = super().run(until_ns)
        for end in ends:
            del self._running[end.job]
        return ends

    def stop(self, job: str) -> None:
        """See `Executor`."""
        del self._running[job]
        super().stop(job)

    def _simulated(self, jobs: Sequence[TracedJob]) -> IteratingJobs:
        widest = [(job.name, _traffic(job, job.max_workers)) for job in jobs]
        cluster, control = self._network_cluster, self._control
        laws = control.controls.laws([job.name for job in jobs], self._seed)
        self._network_jobs: ShareRun | StepRun
        if control.mode == "steps":
            step_ns = shortest_step_ns(cluster.network)
            self._network_jobs = StepRun(cluster.network, widest, laws, self._seed, step_ns)
            return self._network_jobs
        gate = None
        if control.gate is not None:
            # As the live gate is told: transfers share links without a loss.
            gate = GateState(
                control.gate, Contention(Fraction(0), Fraction(8 * 10**9, cluster.nic_bps), Fraction(0))
            )
        self._network_jobs = ShareRun(cluster.network, widest, laws, ShareSettings(self._seed), gate)
        return self._network_jobs

    def _begin(self, job: FluidJob, start: Start, hold_ns: float, noise_ns: float) -> None:
        cluster = self._network_cluster
        placed = cluster.placed(start.job.name, _traffic(start.job, len(start.gpus)), start.gpus)
        planned = replace(placed, iterations=job.planned, noise_ns=round(noise_ns))
        silence_ns = Demand(job.phases).silence_ns
        ways = self._routes(placed)
        self._running[start.job.name] = placed, ways
        self._network_jobs.start(job.number, planned, ways, silence_ns=silence_ns, hold_ns=hold_ns)
        self._note(reroutes=True)

    def _next_stop_ns(self, until_ns: int | None) -> int:
        stop_ns = super()._next_stop_ns(until_ns)
        return stop_ns if self._next_state is None else min(stop_ns, self._next_state.at_ns)

    def _correct(self) -> None:
        # After days, picoseconds do not fit into a float any more, and the time is rounded.
        while self._next_state is not None and self._next_state.at_ns <= self.now_ns + 1:
            self._change_links(self._next_state)
            self._next_state = next(self._states, None)
        if self._until_ns is None and self._next_state is None and self._network_jobs.is_still:
            down = ", ".join(self._network_cluster.network.links[link].name for link in sorted(self._down))
            raise MltcpError(f"{', '.join(self._running)}: cannot go on: {down} down, and it is to stay so")
        super()._correct()

    def _change_links(self, state: LinkChange) -> None:
        self._down = state.down
        routes: dict[int, tuple[Route, ...]] = {}
        if state.reroutes:
            network = self._network_cluster.network
            self._table = RoutingTable(network, state.down) if state.down else None
            for name, (job, _) in self._running.items():
                self._running[name] = job, self._routes(job)
                routes[self.jobs[name].number] = self._running[name][1]
        self._network_jobs.change_links(state.down, routes)
        self._note(state.reroutes)

    def _routes(self, job: NetworkJob) -> tuple[Route, ...]:
        usual, table = self._network_cluster.routes_of(job), self._table
        return usual if table is None else table.routes(job, self._network_cluster.seed, usual)

    def _note(self, reroutes: bool) -> None:
        if self._down or self.outages.links:
            ways = {name: of_job for name, (_, of_job) in self._running.items()}
            self.outages.note(self.now_ns, self._down, ways, reroutes)


def _traffic(job: TracedJob, workers: int) -> Traffic:
    return demand_traffic(Demand(job.phases(workers)), workers)
