"""The lab of malleable jobs: hosts with slots for workers, and a parameter server with a limited link for each job."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.async_sgd.star import SWITCH, server_name
from bench.compare.approaches.policy import parse_policy
from bench.lab.lab import Lab
from bench.lab.link import Link
from bench.lab.topology import INTERFACE, MAX_JOBS, LabHost, LabServer, LabSwitch, Topology, Trunk
from bench.workloads.ranks.place import RankPlace
from mltcp.core.errors import UsageError
from mltcp.ebpf.jobs import attached
from placement.model.cluster import Cluster
from placement.model.throughput import WorkerTable
from placement.simulator.rates.timed_job import RatesSettings

HOSTS, SLOTS = 4, 4
MOST_SERVERS = 60
_MOST_SLOTS = 64


@dataclass(frozen=True)
class ClusterShape:
    """The hosts of workers, and the parameter servers, which take no slot.

    Attributes:
        link: at the port of each parameter server, both ways; hosts have no limit.
        hosts: of workers.
        slots: of a host, each for one worker.
        control: the congestion control of all connections, one of the kernel's own.

    Raises:
        UsageError: a number is out of range.
    """

    link: Link
    hosts: int = HOSTS
    slots: int = SLOTS
    control: str = "cubic"

    def __post_init__(self) -> None:
        for name, most in (("hosts", MAX_JOBS), ("slots", _MOST_SLOTS)):
            if not 1 <= getattr(self, name) <= most:
                raise UsageError(f"--{name}: expected 1 to {most}, got {getattr(self, name)}")

    @property
    def gpus(self) -> int:
        """W, the slots of all hosts."""
        return self.hosts * self.slots

    def cluster(self) -> Cluster:
        """The same as a scheduler sees it."""
        return RatesSettings(WorkerTable(()), self.hosts, self.slots).cluster()

    def topology(self, servers: int) -> Topology:
        """Hosts ``h0`` ... and parameter servers ``ps0`` ... on one switch.

        Raises:
            UsageError: too many servers, or none.
        """
        if not 1 <= servers <= MOST_SERVERS:
            raise UsageError(f"jobs: expected 1 to {MOST_SERVERS}, got {servers}")
        names = [server_name(number) for number in range(servers)]
        return Topology(
            hosts=tuple(LabHost(host_name(number), SWITCH, number, 0) for number in range(self.hosts)),
            switches=(LabSwitch(SWITCH),),
            trunks=tuple(Trunk(name, name, SWITCH, self.link) for name in names),
            servers=tuple(LabServer(name, number) for number, name in enumerate(names)),
        )


class ClusterLab:
    """A running lab, and the places of workers and servers there; made by `cluster_lab`."""

    def __init__(self, shape: ClusterShape, lab: Lab, cgroup: Path) -> None:
        self._shape, self._lab, self._cgroup = shape, lab, cgroup

    def worker_place(self, gpu: int) -> RankPlace:
        """The place of the worker on a GPU."""
        return self._place(self._lab.topology.hosts[gpu // self._shape.slots])

    def server_places(self) -> tuple[RankPlace, ...]:
        """The places of the parameter servers."""
        return tuple(self._place(server) for server in self._lab.topology.servers)

    def _place(self, machine: LabHost | LabServer) -> RankPlace:
        return RankPlace(self._lab.namespace(machine.name), INTERFACE, machine.address, self._cgroup)


@contextmanager
def cluster_lab(shape: ClusterShape, servers: int) -> Iterator[ClusterLab]:
    """The lab with so many parameter servers; removed at the end.

    Raises:
        NotAvailableError: not root, or the kernel lacks something.
        UsageError: too many servers, or none, or an unknown congestion control.
    """
    topology = shape.topology(servers)
    job = parse_policy(shape.control, shape.control).job("async-jobs")
    with attached(job, shape.control) as host, Lab(topology, sysctls={"net.ipv4.tcp_ecn": 0}) as lab:
        yield ClusterLab(shape, lab, host.cgroup)


def host_name(number: int) -> str:
    """The name of a host of workers in the lab."""
    return f"h{number}"
