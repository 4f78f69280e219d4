"""Real hosts for the jobs of a trace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cached_property
from pathlib import Path

from bench.compare.approach import Approach
from bench.compare.results.runs import HostFacts, Scalar
from bench.compare.trace.hosts import StartedJob, TraceHosts, TraceUse, servers_of, slots_of
from bench.hosts.hosts_file import HostsFile
from bench.hosts.messages import StartMeasuring, StopMeasuring
from bench.hosts.placement import cluster_of
from bench.hosts.provider import HighestLoad, check_pacing, connected_session, host_uses
from bench.hosts.session import Session
from bench.workloads.launched_rank import RankLauncher
from bench.workloads.place import RankPlace
from placement.model.cluster import Cluster
from placement.traces.sets import JobSet


class RemoteTraceHosts:
    """The hosts of a file, reached by ssh."""

    def __init__(
        self, hosts: HostsFile, cluster: Cluster, rate_bps: int, session: Session, directory: Path
    ) -> None:
        self.cluster, self.rate_bps, self.directory = cluster, rate_bps, directory
        self._hosts, self._session = {host.name: host for host in hosts.hosts}, session
        self._loads: list[float] = []

    @property
    def facts(self) -> tuple[HostFacts, ...]:
        """The facts of all hosts."""
        return self._session.facts

    def load_meter(self) -> HighestLoad:
        """Start to measure the load of other programs, of which the busiest host counts."""
        self._loads = []
        return HighestLoad(self._loads)

    def begin(self) -> None:
        """Compare the clocks, and count from now on."""
        self._session.compare_clocks()
        self._session.start_load()
        self._session.on_all(StartMeasuring(()))

    def counted(self) -> TraceUse:
        """The counters since `begin`."""
        found, loads = self._session.on_all(StopMeasuring()), self._session.loads()
        self._loads += loads.values()
        uses = host_uses(found, loads)
        return TraceUse(sum(each.drops for each in uses), uses)

    def place(self, job: StartedJob, resources: ExitStack) -> tuple[tuple[RankPlace, ...], RankLauncher]:
        """See `TraceHosts`: each rank has a cgroup of its own, which its host's agent removes with it."""
        hosts = [self._hosts[name] for name in servers_of(self.cluster, job.gpus)]
        pace = () if job.pace is None else (("MLTCP_PACE", job.pace),)
        places = self._session.place(
            hosts, lambda rank: (*pace, *job.variables), slots_of(self.cluster, job.gpus)
        )
        return places, self._session.launcher({job.number: hosts}, job.policy.control, job.policy.job)

    def failures_blamed(self) -> AbstractContextManager[None]:
        """See `TraceHosts`."""
        return self._session.lost_hosts_blamed()


class RemoteTraceSource:
    """Starts the agents of the hosts of a file.

    Args:
        hosts: of the file.
        rate_bps: of the link of each host.

    Raises:
        UsageError: the hosts are no cluster.
    """

    def __init__(self, hosts: HostsFile, rate_bps: int) -> None:
        self._hosts, self._rate_bps = hosts, rate_bps
        self.cluster = cluster_of(hosts, rate_bps)

    @cached_property
    def setting(self) -> Mapping[str, Scalar]:
        """The links, as the file and the command line tell them."""
        uplinks = {f"uplink_{name}_bps": rate_bps for name, rate_bps in self._hosts.uplinks_bps.items()}
        return {"topology": "hosts", "nic_bps": self._rate_bps, **uplinks}

    def check(self, trace: JobSet, approaches: Sequence[Approach]) -> None:
        """Raise UsageError for policies that a daemon paces."""
        for approach in approaches:
            check_pacing(approach.policy)

    @contextmanager
    def opened(self, approaches: Sequence[Approach]) -> Iterator[TraceHosts]:
        """Start the agents of all hosts, which must have the congestion controls of the approaches.

        Raises:
            HostError: a host cannot be used, lacks a congestion control, or its sshd forwards no socket.
        """
        with connected_session(self._hosts, approaches) as (session, shared):
            yield RemoteTraceHosts(self._hosts, self.cluster, self._rate_bps, session, shared.here)
