"""Launches the jobs of a trace on its servers: the gate and the service are told, and the ranks are started."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from fractions import Fraction

from bench.compare.approaches.approach import Approach
from bench.compare.coordination.coordination import Coordination
from bench.compare.coordination.coordinator import PlacedDemand
from bench.compare.coordination.service import slot_name
from bench.compare.trace.scale import TraceScale
from bench.compare.trace.trace_hosts import StartedJob, TraceHosts, servers_of, slots_of
from bench.workloads.job import JobSpec
from bench.workloads.phases import on_link
from bench.workloads.rank_pool import PlacedJob, RankPool
from mltcp.core.demand import Demand, Phase
from placement.policies.schedulers.scheduling_policy import links_of
from placement.simulator.executor import Start
from placement.traces.sets import TracedJob


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
        links = tuple(cluster.links[link].name for link in links_of(cluster, start.gpus))
        numbers = slots_of(cluster, start.gpus)
        slots = tuple(map(slot_name, self.servers(start.gpus), numbers))
        self._coordination.placed(PlacedDemand(name, slots, links, demand, spec.iterations))
        self._ranks.launch(number, PlacedJob(spec, places), launcher)

    def _spec(self, name: str, start: Start) -> tuple[JobSpec, Demand]:
        """The program of each rank, and its demand on the links."""
        settings, rate_bps = self._settings, self._hosts.rate_bps
        workers, time = len(start.gpus), settings.scale.time
        demand = Demand(start.job.phases(workers))
        work = on_link(start.job.name, demand, settings.capacity_bps, rate_bps, workers, time)
        iterations = start.iterations(self.share(start.job))
        rate = Fraction(rate_bps, settings.capacity_bps)
        return JobSpec(name, work, workers, iterations), _scaled(demand, time, rate)

    def _pace(self) -> str | None:
        """The value of MLTCP_PACE. Pacing is by socket: a source of hosts refuses any other."""
        pacing = self._approach.policy.pacing
        return None if pacing is None else f"{self._hosts.rate_bps}bit,{pacing.law}"


def _scaled(demand: Demand, time: float, rate: Fraction) -> Demand:
    """The demand with durations and bandwidths multiplied by these factors."""
    return Demand(
        tuple(
            Phase(round(phase.duration_ns * time), round(phase.bandwidth_bps * rate))
            for phase in demand.phases
        )
    )
