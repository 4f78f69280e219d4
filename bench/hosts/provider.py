"""Real hosts as a provider of hosts for comparisons."""

from __future__ import annotations

import tempfile
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from bench.compare.approach import Approach, Policy
from bench.compare.contest import Contest
from bench.compare.coordination import sockets_of
from bench.compare.launch import check_control, job_spec, socket_pace
from bench.compare.provider import Environment, GroupOutcome, HostProvider, Provide, ProvidedHost
from bench.compare.results.runs import HostFacts, HostUse
from bench.hosts.connection import connected
from bench.hosts.hosts_file import HostsFile, RemoteHost
from bench.hosts.messages import Measurement, StartMeasuring, StopMeasuring
from bench.hosts.placement import sides, two_sided
from bench.hosts.session import Session
from bench.hosts.shared_directory import SharedDirectory
from bench.lab.bottleneck import DirectionUse, LinkUse
from bench.workloads.job import IterationRecord, JobSpec
from bench.workloads.rank_pool import PlacedJob, launched
from mltcp.core.errors import UsageError

# -- the use of the link between two groups of hosts -------------------------------------------------------------------

BIN_NS = 20_000_000
_FRAME_BYTES = 14  # the Ethernet header
_HEADER_BYTES = 52  # of IPv4 and of TCP with time stamps


@dataclass(frozen=True)
class SideMeasurement:
    """The measurement of a host on one side, and how far its CLOCK_MONOTONIC is ahead of the launcher's."""

    measurement: Measurement
    ahead_s: float


def link_use(
    left: Sequence[SideMeasurement],
    right: Sequence[SideMeasurement],
    jobs: Sequence[int],
    *,
    epoch_ns: int,
    duration_ns: int,
    rate_bps: int,
    mtu: int,
) -> LinkUse:
    """The use of the link in both directions.

    Args:
        left, right: the hosts of each side.
        jobs: the index of each job, by the number under which the agents counted it.
        epoch_ns, duration_ns: of the measurement, on the launcher's CLOCK_MONOTONIC.
        rate_bps: of the link.
        mtu: of the hosts; acknowledged bytes count with the headers of full frames.
    """
    bins = duration_ns // BIN_NS + 1
    scale = (mtu + _FRAME_BYTES) / (mtu - _HEADER_BYTES)
    return LinkUse(
        epoch_ns,
        duration_ns,
        BIN_NS,
        tuple(
            _direction(names, side, jobs, epoch_ns, bins, scale, rate_bps)
            for names, side in ((("left", "right"), left), (("right", "left"), right))
        ),
    )


def _direction(
    names: tuple[str, str],
    side: Sequence[SideMeasurement],
    jobs: Sequence[int],
    epoch_ns: int,
    bins: int,
    scale: float,
    rate_bps: int,
) -> DirectionUse:
    filled = {index: [0.0] * bins for index in jobs}
    for each in side:
        for position, number in enumerate(each.measurement.jobs):
            samples = [
                (at_ns - round(each.ahead_s * 1e9) - epoch_ns, counts[position] * scale)
                for at_ns, counts in each.measurement.samples
            ]
            spread(samples, filled[jobs[number]])
    by_job = {index: array("Q", map(round, values)) for index, values in filled.items()}
    measurements = [each.measurement for each in side]
    return DirectionUse(
        trunk="hosts",
        source=names[0],
        target=names[1],
        rate_bps=rate_bps,
        bytes_by_job=by_job,
        packets=sum(each.packets for each in measurements),
        bytes=sum(map(sum, by_job.values())),
        unbinned_bytes=0,
        # A packet that arrives marked was marked on its way: in the other direction.
        marks=sum(each.ce_packets for each in measurements),
        drops=sum(each.drops for each in measurements),
    )


def spread(samples: Sequence[tuple[int, float]], bins: list[float]) -> None:
    """Add the bytes between successive samples to the bins that they span, evenly; times are from the first bin on."""
    for (begin_ns, before), (end_ns, after) in pairwise(samples):
        if after <= before or end_ns <= begin_ns:
            continue
        density = (after - before) / (end_ns - begin_ns)
        at_ns = begin_ns
        while at_ns < end_ns:
            to_ns = min(end_ns, (at_ns // BIN_NS + 1) * BIN_NS)
            position = min(max(at_ns // BIN_NS, 0), len(bins) - 1)
            bins[position] += density * (to_ns - at_ns)
            at_ns = to_ns


# -- the provider ------------------------------------------------------------------------------------------------------


class RemoteHosts:
    """The hosts of a contest, reached by ssh."""

    def __init__(self, contest: Contest, hosts: HostsFile, session: Session, directory: Path) -> None:
        self.directory = directory
        self._contest, self._session = contest, session
        self._placed = two_sided(hosts.hosts, contest.job_ranks)
        self._left, self._right = sides(hosts.hosts)
        self._loads: list[float] = []

    @property
    def facts(self) -> tuple[HostFacts, ...]:
        """The facts of all hosts."""
        return self._session.facts

    def hosts_of(self, index: int) -> tuple[ProvidedHost, ...]:
        """The host of each rank of a job, in order; one with several slots is told apart by their numbers."""
        before = [host for job in self._placed[:index] for host in job]
        found = []
        for host in self._placed[index]:
            name = host.name if host.slots == 1 else f"{host.name}.{before.count(host)}"
            found.append(ProvidedHost(name, "left" if host in self._left else "right"))
            before.append(host)
        return tuple(found)

    def load_meter(self) -> HighestLoad:
        """Start to measure the load of other programs, of which the busiest host counts."""
        self._loads = []
        return HighestLoad(self._loads)

    def run_group(
        self,
        policy: Policy,
        group: Sequence[int],
        step: Callable[[], None],
        *,
        offsets_s: Sequence[float],
        environment: Environment,
    ) -> GroupOutcome:
        """Run some of the contest's jobs side by side under a policy, as `HostProvider.run_group` says."""

        def on_iteration(spec: JobSpec, iteration: int, record: IterationRecord) -> None:
            step()

        session = self._session
        session.compare_clocks()
        launcher = session.launcher([self._placed[index] for index in group], policy.control, policy.job)
        session.start_load()
        jobs = [self._job(policy, index, environment) for index in group]
        with session.lost_hosts_blamed(), launched(jobs, launcher) as running:
            epoch_ns = self._start_measuring()
            running.begin(offsets_s)
            results = running.results(on_iteration)
            found = session.on_all(StopMeasuring())
            duration_ns = time.monotonic_ns() - epoch_ns
        for result in results:
            check_control(result, policy)
        for job in jobs:
            for host, place in zip(self._placed[job.spec.index], job.places, strict=True):
                session.take_files(host, place.environment)
        loads = session.loads()
        self._loads += loads.values()
        return GroupOutcome(
            results, self._link_use(found, group, epoch_ns, duration_ns), host_uses(found, loads)
        )

    def _job(self, policy: Policy, index: int, environment: Environment) -> PlacedJob:
        contest = self._contest
        name, _ = contest.jobs[index]

        def variables(rank: int) -> tuple[tuple[str, str], ...]:
            if policy.pacing is None:
                return environment(name, rank)
            return (("MLTCP_PACE", socket_pace(contest, policy.pacing)), *environment(name, rank))

        places = self._session.place(self._placed[index], variables)
        return PlacedJob(job_spec(contest, policy, index), places)

    def _start_measuring(self) -> int:
        session, epoch_ns = self._session, time.monotonic_ns()
        asked = []
        for side, other in ((self._left, self._right), (self._right, self._left)):
            peers = tuple(host.address for host in other)
            asked += [(session.agent(host), session.agent(host).ask(StartMeasuring(peers))) for host in side]
        for agent, future in asked:
            agent.answer(future)
        return epoch_ns

    def _link_use(
        self, found: dict[str, Measurement], group: Sequence[int], epoch_ns: int, duration_ns: int
    ) -> LinkUse:
        def side(hosts: Sequence[RemoteHost]) -> list[SideMeasurement]:
            agents = [self._session.agent(host) for host in hosts]
            return [SideMeasurement(found[each.host.name], each.offset.monotonic_s) for each in agents]

        # Every job of the contest has bins, as in the lab; agents number those that run.
        silent = [index for index in range(len(self._contest.jobs)) if index not in group]
        return link_use(
            side(self._left),
            side(self._right),
            [*group, *silent],
            epoch_ns=epoch_ns,
            duration_ns=duration_ns,
            rate_bps=self._contest.link.rate_bps,
            mtu=min(each.mtu for each in self.facts),
        )


class HighestLoad:
    """The load of other programs on the busiest host, of the runs since it was made."""

    def __init__(self, loads: list[float]) -> None:
        self._loads = loads

    def share(self) -> float:
        """The largest share of a host's processors that other programs used in a run."""
        return max(self._loads, default=0.0)


class RemoteSource:
    """Provides the hosts of a hosts file for each contest."""

    def __init__(self, hosts: HostsFile) -> None:
        self._hosts = hosts

    def check(self, contests: Sequence[Contest]) -> None:
        """Raise UsageError if these contests cannot run on the hosts, before any of them is reached."""
        for contest in contests:
            two_sided(self._hosts.hosts, contest.job_ranks)
            for approach in contest.approaches:
                check_pacing(approach.policy)

    @contextmanager
    def opened(self, approaches: Sequence[Approach]) -> Iterator[Provide]:
        """Start the agents of all hosts; see `connected_session`."""
        with connected_session(self._hosts, approaches) as (session, shared):

            @contextmanager
            def provide(contest: Contest) -> Iterator[HostProvider]:
                yield RemoteHosts(contest, self._hosts, session, shared.here)

            yield provide


@contextmanager
def connected_session(
    hosts: HostsFile, approaches: Sequence[Approach]
) -> Iterator[tuple[Session, SharedDirectory]]:
    """The agents of all hosts, which must have the congestion controls of the approaches; they end with the context.

    The gate and the placement service run here, in the directory; sshd forwards their sockets to all hosts.

    Raises:
        HostError: a host cannot be used, lacks a congestion control, or its sshd forwards no socket.
    """
    sockets = dict.fromkeys(name for approach in approaches for name in sockets_of(approach))
    with tempfile.TemporaryDirectory(prefix="mltcp-hosts-") as directory:
        shared = SharedDirectory(Path(directory), tuple(sockets))
        with connected(hosts, shared) as agents:
            session = Session(agents, shared)
            session.check_controls(list(dict.fromkeys(each.policy.control for each in approaches)))
            session.check_sockets()
            yield session, shared


def check_pacing(policy: Policy) -> None:
    """Raise UsageError for a policy that a daemon paces, and for one for each model."""
    if policy.models is not None:
        raise UsageError(f"--policies: expected one policy for all jobs with --hosts, got {policy.name!r}")
    if policy.pacing is not None and not policy.pacing.by_socket:
        raise UsageError(
            f"--policies: expected {policy.name}@by=socket with --hosts, got {policy.name!r}, whose daemon runs "
            "in the lab only"
        )


def host_uses(found: Mapping[str, Measurement], other_loads: Mapping[str, float]) -> tuple[HostUse, ...]:
    """The counters of all hosts, from what their agents have measured, by name."""
    return tuple(
        HostUse(
            name,
            each.sent_bytes,
            each.received_bytes,
            each.drops,
            each.ce_packets,
            each.retransmits,
            other_loads[name],
        )
        for name, each in found.items()
    )
