"""The servers of a two-tier lab, for the jobs of a trace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property

from bench.compare.approaches.approach import Approach
from bench.compare.launch import loaded_controls
from bench.compare.results.hosts import HostFacts
from bench.compare.results.runs import Scalar
from bench.compare.trace.trace_hosts import StartedJob, TraceHosts, TraceUse, servers_of
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
            "ecn_by": self.ecn_by,
            "mtu": shape.nic.mtu,
        }

    def check(self, trace: JobSet, approaches: Sequence[Approach]) -> None:
        """Raise UsageError for policies that a daemon paces, and for more jobs than the lab can tell apart."""
        for approach in approaches:
            pacing = approach.policy.pacing
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
