"""The servers on which the jobs of a trace run: those of a two-tier lab, or by their interface real hosts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from bench.compare.approach import Approach, Policy
from bench.compare.launch import loaded_controls
from bench.compare.provider import LoadMeter
from bench.compare.results.runs import HostFacts, HostUse, Scalar
from bench.lab.lab import Lab
from bench.lab.network import namespaces
from bench.lab.placement import label_of
from bench.lab.processors import OtherPrograms
from bench.lab.topology import MAX_JOBS
from bench.lab.two_tier import TwoTier, two_tier, two_tier_cluster
from bench.workloads.launched_rank import RankLauncher, launch_rank
from bench.workloads.place import RankPlace
from mltcp.core.errors import UsageError
from mltcp.ebpf.congestion_controls import Controls
from mltcp.ebpf.jobs import attached
from placement.model.cluster import Cluster
from placement.traces.sets import JobSet


@dataclass(frozen=True)
class TraceUse:
    """What was counted during a run: the packets dropped at full queues, and the counters of real hosts."""

    drops: int
    hosts: tuple[HostUse, ...] = ()


@dataclass(frozen=True)
class StartedJob:
    """One start of a job.

    Attributes:
        name: of the start, for the kernel's map of jobs.
        number: free among the jobs that run.
        gpus: of the cluster, one for each rank.
        policy: its congestion control.
        pace: the value of ``MLTCP_PACE``; None: its connections are not paced.
        variables: further environment variables of its ranks, as `Coordination.variables`.
    """

    name: str
    number: int
    gpus: tuple[int, ...]
    policy: Policy
    pace: str | None
    variables: tuple[tuple[str, str], ...]


class TraceHosts(Protocol):
    """Servers that can run ranks."""

    @property
    def cluster(self) -> Cluster:
        """The servers, whose slots are GPUs, and the links between them."""

    @property
    def rate_bps(self) -> int:
        """The rate of a link of speed 1."""

    @property
    def facts(self) -> tuple[HostFacts, ...]:
        """The facts of real hosts; empty in a lab."""

    @property
    def directory(self) -> Path | None:
        """The directory of this machine for the coordinators' sockets; None: any."""

    def load_meter(self) -> LoadMeter:
        """Start to measure the load of other programs."""

    def begin(self) -> None:
        """Prepare a run, and count from now on."""

    def counted(self) -> TraceUse:
        """The counters since `begin`."""

    def place(self, job: StartedJob, resources: ExitStack) -> tuple[tuple[RankPlace, ...], RankLauncher]:
        """The place of each rank of a job that starts, and what launches them.

        Args:
            job: the start.
            resources: receives whatever has to be given back when the job's processes are gone.
        """

    def failures_blamed(self) -> AbstractContextManager[None]:
        """A context in which the loss of a host is reported in place of the failures of ranks that follow from it."""


class TraceSource(Protocol):
    """A kind of servers for traces."""

    @property
    def cluster(self) -> Cluster:
        """The servers, whose slots are GPUs, and the links between them."""

    @property
    def setting(self) -> Mapping[str, Scalar]:
        """The conditions that a document tells."""

    def check(self, trace: JobSet, approaches: Sequence[Approach]) -> None:
        """Raise UsageError for a trace or an approach that cannot run there, before anything is prepared."""

    def opened(self, approaches: Sequence[Approach]) -> AbstractContextManager[TraceHosts]:
        """Prepare the servers for these approaches; everything is undone at the end of the context.

        Raises:
            MltcpError: they cannot be had.
        """


def servers_of(cluster: Cluster, gpus: Sequence[int]) -> tuple[str, ...]:
    """The name of the server of each GPU."""
    return tuple(cluster.servers[cluster.gpus[gpu][0]].name for gpu in gpus)


def slots_of(cluster: Cluster, gpus: Sequence[int]) -> tuple[int, ...]:
    """The number of each GPU within its server."""
    owners = [server for server, _ in cluster.gpus]
    return tuple(gpu - owners.index(owners[gpu]) for gpu in gpus)


class LabTraceHosts:
    """The servers of a lab."""

    facts: tuple[HostFacts, ...] = ()
    directory = None

    def __init__(self, lab: Lab, shape: TwoTier, controls: Controls) -> None:
        self._lab, self._controls = lab, controls
        self.cluster, self.rate_bps = two_tier_cluster(shape), shape.nic.rate_bps

    def load_meter(self) -> OtherPrograms:
        """Start to measure the load of other programs on this machine."""
        return OtherPrograms()

    def begin(self) -> None:
        """Count from now on."""
        self._lab.start_measuring()

    def counted(self) -> TraceUse:
        """The counters since `begin`."""
        return TraceUse(self._lab.measurement().drops)

    def place(self, job: StartedJob, resources: ExitStack) -> tuple[tuple[RankPlace, ...], RankLauncher]:
        """See `TraceHosts`: the ranks have addresses of their own on each server, and share a cgroup there."""
        servers = servers_of(self.cluster, job.gpus)
        addresses = self._lab.place(job.number, servers)
        resources.callback(self._lab.unplace, job.number)
        # Gloo binds all ranks of a job on a server to the first of their addresses there.
        bound = [addresses[servers.index(server)] for server in servers]
        cgroups = {
            server: resources.enter_context(
                attached(job.policy.job(f"{job.name}@{server}"), job.policy.control, self._controls)
            ).cgroup
            for server in dict.fromkeys(servers)
        }
        places = tuple(
            RankPlace(
                self._lab.namespace(server),
                label_of(job.number),
                address,
                cgroups[server],
                pace=job.pace,
                environment=job.variables,
            )
            for server, address in zip(servers, bound, strict=True)
        )
        return places, launch_rank

    def failures_blamed(self) -> AbstractContextManager[None]:
        """See `TraceHosts`: a lab loses no host."""
        return nullcontext()


@dataclass(frozen=True)
class LabTraceSource:
    """Builds a two-tier lab.

    Attributes:
        shape: of it.
        ecn_by: the mechanism that sets ECN marks at the bottlenecks.
    """

    shape: TwoTier
    ecn_by: str = "virtual_queue"

    @cached_property
    def cluster(self) -> Cluster:
        """The lab as a cluster."""
        return two_tier_cluster(self.shape)

    @property
    def setting(self) -> Mapping[str, Scalar]:
        """The shape of the lab."""
        shape = self.shape
        return {
            "topology": "two-tier",
            "racks": shape.racks,
            "servers_per_rack": shape.servers,
            "slots_per_server": shape.slots,
            "nic_bps": shape.nic.rate_bps,
            "uplink_bps": shape.uplink.rate_bps,
            "queue_bytes": shape.nic.queue_bytes,
            "ecn_threshold_bytes": shape.nic.ecn_threshold_bytes,
            **shape.nic.ramp,
            "ecn_by": self.ecn_by,
            "mtu": shape.nic.mtu,
        }

    def check(self, trace: JobSet, approaches: Sequence[Approach]) -> None:
        """Raise UsageError for policies that a daemon paces, and for more jobs than the lab can tell apart."""
        for approach in approaches:
            pacing = approach.policy.pacing
            if approach.policy.models is not None:
                raise UsageError(
                    f"--policies: expected one policy for all jobs of a trace, got {approach.name}"
                )
            if pacing is not None and not pacing.by_socket:
                # A daemon leaves alone any qdisc that it has not installed, and the lab has installed its own.
                expected = f"{approach.policy.name.partition('@')[0]}@by=socket"
                raise UsageError(
                    f"--policies: expected {expected}, since no daemon can pace the servers of this lab, "
                    f"got {approach.policy.name}"
                )
        slots = len(self.cluster.gpus)
        if (
            slots > MAX_JOBS
            and len(trace.jobs) > MAX_JOBS
            and min(job.workers for job in trace.jobs) * MAX_JOBS < slots
        ):
            raise UsageError(
                f"{trace.name}: jobs: expected at most {MAX_JOBS}, since more could run at a time on {slots} slots, "
                f"got {len(trace.jobs)}"
            )

    @contextmanager
    def opened(self, approaches: Sequence[Approach]) -> Iterator[TraceHosts]:
        """Load the congestion controls that the approaches need, and build the lab.

        Raises:
            NotAvailableError: not root, or the kernel lacks something.
        """
        namespaces.require_privileges()
        with (
            loaded_controls([approach.policy for approach in approaches]) as controls,
            Lab(two_tier(self.shape), ecn_by=self.ecn_by) as lab,
        ):
            yield LabTraceHosts(lab, self.shape, controls)
