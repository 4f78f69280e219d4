"""Launches jobs on the servers of the two-tier lab: addresses, cgroups, the gate and the service, and the ranks."""

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
from bench.lab.lab import Lab
from bench.lab.placement import label_of
from bench.lab.two_tier import TwoTier, two_tier_cluster
from bench.workloads.job import JobSpec
from bench.workloads.launch.launch import PlacedJob
from bench.workloads.launch.open_run import OpenRun
from bench.workloads.phases import on_link
from bench.workloads.ranks.place import RankPlace
from mltcp.core.demand import Demand, Phase
from mltcp.ebpf.congestion_controls import Controls
from mltcp.ebpf.jobs import attached
from placement.model.cluster import Cluster
from placement.policies.schedulers.scheduling_policy import links_of
from placement.simulator.executor import Start
from placement.traces.sets import TracedJob


@dataclass(frozen=True)
class LiveSettings:
    """The conditions of a run.

    Attributes:
        lab: without jobs.
        shape: of the lab.
        controls: the congestion controls that are loaded.
        capacity_bps: the link rate for which the phases of the trace were made.
        scale: from the trace to the lab.
    """

    lab: Lab
    shape: TwoTier
    controls: Controls
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
        self, settings: LiveSettings, approach: Approach, coordination: Coordination, ranks: OpenRun
    ) -> None:
        self._settings, self._approach = settings, approach
        self._coordination, self._ranks = coordination, ranks
        self._cluster = two_tier_cluster(settings.shape)

    def share(self, job: TracedJob) -> float:
        """The share of the job's iterations in the trace that the lab runs."""
        return self._settings.scale.iterations_of(job, self._approach.isolated) / job.iterations

    def servers(self, gpus: Sequence[int]) -> tuple[str, ...]:
        """The server of each GPU."""
        return tuple(self._cluster.servers[self._cluster.gpus[gpu][0]].name for gpu in gpus)

    def launch(self, start: Start, number: int, resources: ExitStack) -> None:
        """Start the processes of a job.

        Args:
            start: the job, and its GPUs.
            number: of the job in the lab; free.
            resources: receives whatever has to be given back when the job's processes are gone.
        """
        # The service and the gate know each start as a job of its own.
        name = f"{start.job.name}.{start.restarts}" if start.restarts else start.job.name
        servers = self.servers(start.gpus)
        addresses = self._settings.lab.place(number, servers)
        resources.callback(self._settings.lab.unplace, number)
        places = self._places(name, number, servers, addresses, resources)
        spec, demand = self._spec(name, start)
        resources.callback(self._coordination.released, name)
        links = tuple(self._cluster.links[link].name for link in links_of(self._cluster, start.gpus))
        slots = _slots(self._cluster, start.gpus)
        self._coordination.placed(PlacedDemand(name, slots, links, demand, spec.iterations))
        self._ranks.start(number, PlacedJob(spec, places))

    def _spec(self, name: str, start: Start) -> tuple[JobSpec, Demand]:
        """The program of each rank, and its demand on the lab's links."""
        settings, rate_bps = self._settings, self._settings.shape.nic.rate_bps
        workers, time = len(start.gpus), settings.scale.time
        demand = Demand(start.job.phases(workers))
        work = on_link(start.job.name, demand, settings.capacity_bps, rate_bps, workers, time)
        iterations = start.iterations(self.share(start.job))
        rate = Fraction(rate_bps, settings.capacity_bps)
        return JobSpec(name, work, workers, iterations), _scaled(demand, time, rate)

    def _places(
        self,
        name: str,
        number: int,
        servers: Sequence[str],
        addresses: Sequence[str],
        resources: ExitStack,
    ) -> tuple[RankPlace, ...]:
        policy = self._approach.policy
        # Gloo binds all ranks of a job on a server to the first of their addresses there.
        bound = [addresses[servers.index(server)] for server in servers]
        cgroups = {
            server: resources.enter_context(
                attached(policy.job(f"{name}@{server}"), policy.control, self._settings.controls)
            ).cgroup
            for server in dict.fromkeys(servers)
        }
        return tuple(
            RankPlace(
                self._settings.lab.namespace(server),
                label_of(number),
                address,
                cgroups[server],
                pace=self._pace(),
                environment=self._coordination.variables,
            )
            for server, address in zip(servers, bound, strict=True)
        )

    def _pace(self) -> str | None:
        """The value of MLTCP_PACE. Pacing is by socket: `compare_trace` refuses any other."""
        pacing = self._approach.policy.pacing
        return None if pacing is None else f"{self._settings.shape.nic.rate_bps}bit,{pacing.law}"


def _slots(cluster: Cluster, gpus: Sequence[int]) -> tuple[str, ...]:
    """The service's name of each GPU: its server, and its number within the server."""
    owners = [server for server, _ in cluster.gpus]
    return tuple(
        slot_name(cluster.servers[owners[gpu]].name, gpu - owners.index(owners[gpu])) for gpu in gpus
    )


def _scaled(demand: Demand, time: float, rate: Fraction) -> Demand:
    """The demand with durations and bandwidths multiplied by these factors."""
    return Demand(
        tuple(
            Phase(round(phase.duration_ns * time), round(phase.bandwidth_bps * rate))
            for phase in demand.phases
        )
    )
