"""The executor that runs jobs of a trace in the network simulation, under a congestion control."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from mltcp.core.demand import Demand
from mltcp.core.errors import UsageError, shown
from placement.model.job import Contention
from placement.policies.catalogue import CommunicationPolicy
from placement.policies.gate_state import GateState
from placement.simulator.cluster_run import Start
from placement.simulator.fluid_executor import FluidExecutor, FluidJob, FluidSettings, IteratingJobs
from placement.simulator.network.laws.network_law import NetworkLaw
from placement.simulator.network.network_cluster import NetworkCluster
from placement.simulator.network.parallelism import demand_traffic, traffic_of
from placement.simulator.network.shares import ShareSettings
from placement.simulator.network.traffic import Traffic
from placement.simulator.share_run import ShareRun
from placement.simulator.step_run import StepRun
from placement.traces.sets import TracedJob

TRACE_MODES = ("shares", "steps")


@dataclass(frozen=True)
class TrafficControl:
    """What decides about rates in a network.

    Attributes:
        law: the congestion control of all jobs.
        gate: the policy that admits what they send; None: they send when they can. The mode `steps` has none.
        mode: `shares`, or `steps`.
        step_ns: of the mode `steps`; None: see `StepRun`.

    Raises:
        UsageError: a gate in the mode `steps`, or a mode that there is not.
    """

    law: NetworkLaw
    gate: CommunicationPolicy | None = None
    mode: str = "shares"
    step_ns: int | None = None

    def __post_init__(self) -> None:
        if self.mode not in TRACE_MODES:
            raise UsageError(f"mode: expected {' or '.join(TRACE_MODES)} of a trace, got {shown(self.mode)}")
        if self.gate is not None and self.mode != TRACE_MODES[0]:
            raise UsageError(f"gate: expected in the mode {TRACE_MODES[0]} only, got {self.mode}")


class NetworkExecutor(FluidExecutor):
    """Runs jobs in a network; see `Executor`.

    A job with a description of its parallelism sends what follows from that; of another each worker sends what the
    phases say to the next one in a ring.

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
        super().__init__(jobs, cluster, settings, seed)

    def _simulated(self, jobs: Sequence[TracedJob]) -> IteratingJobs:
        widest = [(job.name, job_traffic(job, job.max_workers)) for job in jobs]
        cluster, control, gate = self._network_cluster, self._control, None
        if control.gate is not None:
            # As the live gate is told: transfers share links without a loss.
            gate = GateState(
                control.gate, Contention(Fraction(0), Fraction(8 * 10**9, cluster.nic_bps), Fraction(0))
            )
        self._run: ShareRun | StepRun
        if control.mode == "steps":
            self._run = StepRun(cluster.network, self._seed, control.step_ns)
        else:
            self._run = ShareRun(cluster.network, widest, control.law, ShareSettings(self._seed), gate)
        return self._run

    def _begin(self, job: FluidJob, start: Start, hold_ns: float, noise_ns: float) -> None:
        cluster = self._network_cluster
        placed = cluster.placed(start.job.name, job_traffic(start.job, len(start.gpus)), start.gpus)
        planned = replace(placed, iterations=job.planned, noise_ns=round(noise_ns), law=self._control.law)
        silence_ns = Demand(job.phases).silence_ns
        self._run.start(
            job.number, planned, cluster.routes_of(placed), silence_ns=silence_ns, hold_ns=hold_ns
        )


def job_traffic(job: TracedJob, workers: int) -> Traffic:
    """What a job with so many workers sends: what follows from its parallelism, or what its phases say.

    Raises:
        UsageError: no workers, or a wrong description.
    """
    if job.parallelism:
        return traffic_of(job.parallelism)
    return demand_traffic(Demand(job.phases(workers)), workers)
