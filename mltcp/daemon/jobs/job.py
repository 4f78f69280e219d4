"""A job on this host: the processes that belong to it, its flows and iteration times, and what controls it."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from mltcp.control.aggressiveness import Aggressiveness, Shape
from mltcp.control.iteration import matches
from mltcp.control.link_use import SendReading
from mltcp.core.accounts import account_name
from mltcp.daemon.client.status import JobStatus
from mltcp.daemon.jobs.flows import FlowSettings, FoundFlow
from mltcp.ebpf.jobs import SocketSettings
from mltcp.pacing.sock_diag import FlowKey, Sample


@dataclass(frozen=True)
class Peer:
    """The credentials of a peer, as the kernel reports them (SO_PEERCRED, socket(7))."""

    pid: int
    uid: int
    gid: int

    @property
    def user(self) -> str:
        """The user's name, or the number of a user without a name."""
        return account_name(self.uid) or str(self.uid)

    @property
    def is_root(self) -> bool:
        """Whether this peer may see and change everything."""
        return self.uid == 0

    @property
    def is_nameless(self) -> bool:
        """Whether no account of this host has the uid, as those of a range in /etc/subuid, of which a user has many."""
        return account_name(self.uid) is None

    def part_of(self, most: int, held: int) -> int:
        """How many of what all users have in common may be held for this one to get another.

        Uids that no account has get half of it, and accounts all but an eighth, which is root's.

        Args:
            most: there are in all.
            held: by all users now.
        """
        if self.is_root or held < most // 2:
            return most
        return most // 2 if self.is_nameless else most - most // 8

    def __str__(self) -> str:
        return f"{self.user} (pid {self.pid})"


class Member(Protocol):
    """A member of a job: a :class:`mltcp.daemon.service.server.Connection`, or a registered cgroup."""

    @property
    def peer(self) -> Peer:
        """The process at its other end, or that has registered it."""

    def __hash__(self) -> int: ...


# -- iteration times ----------------------------------------------------------------------------


TYPICAL_OF = 15
BEST_OF = 5


@dataclass
class IterationTimes:
    """The times of the last iterations, and the best one.

    Reports of the job's program replace times from acknowledgements, which are estimates. Of these, typical and best
    are of iterations that sent what the job sends in one: not of a part, nor of the small exchanges of a start. When
    that amount changes, they begin anew. The best time is the smallest median of five consecutive ones, so that a
    single short iteration (a skipped one) does not count.
    """

    count: int = 0
    last_s: float | None = None
    best_s: float | None = None
    reported: bool = False
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=TYPICAL_OF))
    _previous: FinishedIteration | None = None
    _bytes: int = 0  # of the iterations in `_recent`, if they are recognised by acknowledgements

    @property
    def typical_s(self) -> float | None:
        """The median of the last fifteen iteration times."""
        return statistics.median(self._recent) if self._recent else None

    @property
    def slowdown(self) -> float | None:
        """The typical time over the best one."""
        typical = self.typical_s
        return None if typical is None or not self.best_s else typical / self.best_s

    def seen(self, finished: FinishedIteration) -> float | None:
        """Note an iteration, recognised by acknowledgements; returns the time of the one before it.

        Times are from start to start, since acknowledgements do not show the end of the compute phase.
        """
        before, self._previous = self._previous, finished
        if self.reported:
            return None
        self.count = finished.number + 1
        if before is None or finished.start_ns <= before.start_ns:
            return None
        self.last_s = (finished.start_ns - before.start_ns) / 1e9
        if matches(before.sent_bytes, before.total_bytes):
            if not matches(before.sent_bytes, self._bytes):
                self._begin(before.sent_bytes)
            self._note(self.last_s)
        return self.last_s

    def report(self, number: int, duration_s: float) -> None:
        """Note that the program has reported its iteration `number` (from 0)."""
        if not self.reported:
            self.reported = True
            self._begin()
            self.count = 0
        self.count = max(self.count, number + 1)
        self.last_s = duration_s
        self._note(duration_s)

    def _begin(self, sent_bytes: int = 0) -> None:
        """Forget the times: what follows is of iterations of another kind."""
        self._recent.clear()
        self.best_s, self._bytes = None, sent_bytes

    def _note(self, duration_s: float) -> None:
        self._recent.append(duration_s)
        if len(self._recent) >= BEST_OF:
            median_s = statistics.median(list(self._recent)[-BEST_OF:])
            self.best_s = median_s if self.best_s is None else min(self.best_s, median_s)


# -- jobs ---------------------------------------------------------------------------------------


NO_CONTROL = "none"
"""The congestion control of a job whose flows keep theirs."""

UNCONTROLLED = "none"
"""The name of the mechanism that lets jobs send as they do."""


Pauses = Iterator[None] | None
"""What takes long with many flows yields where requests may be handled meanwhile; None: it is done."""

PAUSE_FLOWS = 128
"""The most flows that are looked at between two pauses."""


@dataclass
class Job:
    """One job on this host.

    Attributes:
        mechanism: controls how fast its flows send.
        control: the congestion control for its flows; ``none``: they keep theirs.
        members: the connections of its processes, each with its rank.
        flows: those that were passed.
        counters: of each of these, when they were last read through sock_diag.
        seen_controls: the congestion controls that its flows had when they were passed.
        retransmits, marks, acked_bytes: sums over all flows, closed ones included.
        setting: the number of requests whose settings are on their way to flows.
        left_alone: the number of flows that another program has given other settings.
        former_entry: the number that it had in the kernel under a former daemon; 0: none.
        label: shown beside its name.
        aside: why it stands aside: the jobs on its link ask for too much (contention.py); empty: it does not.
        cgroup_addresses: the local addresses of flows that were not passed.
    """

    number: int
    name: str
    instance: str
    uid: int
    user: str
    mechanism: Mechanism
    control: str
    aggressiveness: Aggressiveness
    total_bytes: int = 0
    gap_s: float = 0.0
    ranks: int = 1
    members: dict[Member, int] = field(default_factory=dict)
    flows: dict[FlowKey, None] = field(default_factory=dict)
    counters: dict[FlowKey, Sample] = field(default_factory=dict)
    seen_controls: set[str] = field(default_factory=set)
    times: IterationTimes = field(default_factory=IterationTimes)
    retransmits: int = 0
    marks: int = 0
    acked_bytes: int = 0
    bytes_per_s: float = 0.0
    setting: int = 0
    left_alone: int = 0
    former_entry: int = 0
    label: str = ""
    aside: str = ""
    cgroup_addresses: frozenset[str] = frozenset()

    @property
    def law(self) -> Aggressiveness:
        """F as it acts: 1 while the job stands aside."""
        return Aggressiveness.of_shape(Shape.ONE) if self.aside else self.aggressiveness

    @property
    def addresses(self) -> set[str]:
        """The local addresses of its flows."""
        return {flow.local[0] for flow in self.flows} | self.cgroup_addresses

    @property
    def gap_ns(self) -> int:
        """The silence that ends an iteration, in nanoseconds; 0: to be learned."""
        return round(self.gap_s * 1e9)

    def __str__(self) -> str:
        return f"job {self.number} ({self.name} of {self.user})"


@dataclass(frozen=True)
class FinishedIteration:
    """An iteration as its mechanism saw it finish: its number, its start and the bytes acknowledged in it.

    `total_bytes` is what the job sends in an iteration, as far as that is known then; 0: it is not.
    """

    number: int
    start_ns: int
    sent_bytes: int
    total_bytes: int = 0


@dataclass(frozen=True)
class ControlState:
    """The state of a job's control now; the fields are those of JobStatus."""

    factor: float = 1.0
    bytes_ratio: float = 0.0
    rate_bps: float | None = None
    total_bytes: int = 0
    gap_s: float = 0.0


class Mechanism(Protocol):
    """One kind of control of a job's sending; all jobs of that kind share an instance."""

    name: str
    """The name in the daemon's protocol and in status documents."""

    default_control: str
    """The congestion control of a job that asks for none in particular."""

    poll_period_s: float | None
    """The period at which `poll` is called; None: never."""

    def accepts(self, control: str) -> bool:
        """Whether it can control a job that asks for this congestion control."""

    def describe(self, job: Job) -> str:
        """The control of a job in words, for the log."""

    # -- a job's life --------------------------------------------------------------------------------------------------

    def add_job(self, job: Job) -> None:
        """Start to control a job.

        Raises:
            MltcpError: the host refuses.
        """

    def remove_job(self, job: Job) -> None:
        """Stop to control a job; its flows run on without."""

    def change_job(self, job: Job) -> None:
        """Apply the job's law, which has changed, as it does when the job begins or ceases to stand aside."""

    def flow_settings(self, job: Job, flow: FoundFlow) -> FlowSettings:
        """The settings that make a connection, passed by a process of the job, a flow of the job.

        Raises:
            UsageError: the connection cannot be controlled.
        """

    def add_flow(self, job: Job, flow: FoundFlow) -> None:
        """Control a connection that has these settings now."""

    def socket_settings(self, job: Job) -> SocketSettings:
        """The settings that make a new socket in a cgroup a flow of the job."""

    def mark(self, job: Job) -> int:
        """The mark by which the job's packets are classified; 0: none."""

    # -- observation ---------------------------------------------------------------------------------------------------

    def poll(self) -> list[tuple[Job, FinishedIteration]]:
        """Run one period of control; the iterations that have finished since the last call."""

    def maintain(self) -> Pauses:
        """Once a second: find flows that were not passed, and repair what others have changed on the host."""

    def update_counters(self, job: Job) -> Pauses:
        """Bring the job's counters up to date, and forget flows that are closed."""

    def flow_count(self, job: Job) -> int:
        """The number of the job's open connections."""

    def state(self, job: Job) -> ControlState:
        """The state of the job's control now."""

    def reading(self, job: Job) -> SendReading:
        """Whether the job has data in flight now, and its acknowledged bytes since any fixed time."""

    def close(self) -> None:
        """Give back what the mechanism holds open."""


def may_see(job: Job | JobStatus, peer: Peer) -> bool:
    """Whether a peer may see a job in detail, change it and stop it: its owner and root."""
    return peer.is_root or peer.uid == job.uid
