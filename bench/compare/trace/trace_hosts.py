"""The interface of the servers on which the jobs of a trace run: those of a lab, or real hosts that ssh reaches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bench.compare.approaches.approach import Approach
from bench.compare.approaches.policy import Policy
from bench.compare.results.hosts import HostFacts, HostUse
from bench.compare.results.runs import Scalar
from bench.compare.turns import LoadMeter
from bench.workloads.launched_rank import RankLauncher
from bench.workloads.place import RankPlace
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
