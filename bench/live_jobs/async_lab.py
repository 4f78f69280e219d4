"""Asynchronous jobs at the size of the lab: kinds, traces, and hosts with slots and a server for each job."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from bench.async_sgd.lab import SWITCH, server_name
from bench.compare.approach import parse_policy
from bench.lab.lab import Lab
from bench.lab.link import ETHERNET_HEADER_BYTES, Link
from bench.lab.topology import INTERFACE, MAX_JOBS, LabHost, LabServer, LabSwitch, Topology, Trunk
from bench.workloads.parameter_server.job import ELEMENT_BYTES, ReplayWork
from bench.workloads.place import RankPlace
from mltcp.core.errors import UsageError, shown
from mltcp.core.quantities import NS_PER_S
from mltcp.ebpf.jobs import attached
from placement.model.cluster import Cluster
from placement.model.queueing import throughput
from placement.model.service_times import ServiceTimes
from placement.model.table_reader import MOST
from placement.model.throughput import WorkerTable, Workload
from placement.simulator.rates.timed_job import RatesSettings
from placement.traces.async_sgd import AsyncTrace
from placement.traces.deadlines import DeadlineJob, DeadlineTrace

LINK = Link(40_000_000, 60_000, None)
"""At the port of each parameter server."""

_IP_TCP_BYTES = 52


@dataclass(frozen=True)
class JobKind:
    """A model that jobs train, by sleeping workers.

    Attributes:
        name: of the model.
        size_bytes: of a gradient, and of the weights.
        worker_s: S^W.
        server_s: S^S.
        batches_an_epoch: mini-batches.
        epochs: the mean of its jobs.
    """

    name: str
    size_bytes: int
    worker_s: float
    server_s: float
    batches_an_epoch: float
    epochs: int

    def work(self, seed: int) -> ReplayWork:
        """The work of workers and server; sleeps vary by 5 %."""
        return ReplayWork(self.size_bytes, self.worker_s, self.server_s, seed=seed)

    def workload(self, batches: int | None = None) -> Workload:
        """The training of so many mini-batches, or of a mean job."""
        mean = max(1, round(self.batches_an_epoch * self.epochs))
        parameters = self.size_bytes // ELEMENT_BYTES
        return Workload(self.name, parameters, 1, round(self.worker_s * 1e9), batches or mean, 1)

    def nominal(self, link: Link) -> ServiceTimes:
        """The service times by the rate of the link; arrivals are drawn for these, so that they are always the same."""
        payload = (link.mtu - _IP_TCP_BYTES) / (link.mtu + ETHERNET_HEADER_BYTES)
        link_s = 8 * self.size_bytes / (payload * link.rate_bps)
        return ServiceTimes(self.worker_s, link_s, self.server_s, link_s)


KINDS = (
    JobKind("NiN", 50_000, 0.24, 0.002, 0.2, 200),
    JobKind("GoogLeNet", 60_000, 0.23, 0.002, 1.0, 200),
    JobKind("AlexNet", 250_000, 0.15, 0.002, 2.0, 90),
    JobKind("VGG19", 60_000, 0.27, 0.002, 5.0, 74),
)


_MOST_SCALE = 1000
_PARTS = 1000


def models() -> tuple[Workload, ...]:
    """The models that traces name; an epoch is a number of thousandths of mini-batches."""
    return tuple(
        Workload(
            kind.name,
            kind.workload().parameters,
            _PARTS,
            kind.workload().compute_ns,
            round(kind.batches_an_epoch * _PARTS),
            kind.epochs,
        )
        for kind in KINDS
    )


def lab_trace(trace: AsyncTrace, link: Link, gpus: int, load: float, scale: float) -> DeadlineTrace:
    """The jobs as executors run them, on the lab's clock.

    The rate of arrivals is lambda = load W / E[S(1)], where E[S(1)] is the mean over all kinds by nominal service
    times: it does not depend on what is measured.

    Args:
        trace: names the models of `models`.
        link: at the parameter servers.
        gpus: W.
        load: x.
        scale: factor for the mini-batches of every job, and so for all times.

    Raises:
        UsageError: load or scale is out of range.
    """
    if not 0 < load <= 1:
        raise UsageError(f"--load: expected more than 0 and up to 1, got {shown(load)}")
    if not 0 < scale <= _MOST_SCALE:
        raise UsageError(f"--scale: expected more than 0 and up to {_MOST_SCALE}, got {shown(scale)}")
    alone_s = fmean(scale * _alone_s(kind, link) for kind in KINDS)
    between_s = alone_s / (load * gpus)
    rows = zip(trace.arrival_units.tolist(), trace.model.tolist(), trace.batches().tolist(), strict=True)
    jobs = tuple(
        DeadlineJob(
            f"j{number}",
            round(units * between_s * NS_PER_S),
            KINDS[model].workload(max(1, round(scale * batches))),
            MOST,
        )
        for number, (units, model, batches) in enumerate(rows)
    )
    return DeadlineTrace(trace.name, jobs, seed=trace.seed)


def _alone_s(kind: JobKind, link: Link) -> float:
    """S(1) of a mean job."""
    return kind.batches_an_epoch * kind.epochs / throughput(kind.nominal(link), 1)


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

    def settings(self, model: WorkerTable) -> RatesSettings:
        """The lab as a simulated cluster with this throughput model."""
        return RatesSettings(model, self.hosts, self.slots)

    def cluster(self) -> Cluster:
        """The same as a scheduler sees it."""
        return self.settings(WorkerTable(())).cluster()

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
