"""The jobs of this host, who is in them, and whose they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from mltcp.control.aggressiveness import Aggressiveness
from mltcp.core.errors import NotAvailableError, UsageError
from mltcp.daemon.client.protocol import DeniedError
from mltcp.daemon.client.status import JobStatus
from mltcp.daemon.jobs.iteration_times import IterationTimes
from mltcp.daemon.service.server import Connection, Peer
from mltcp.pacing.sock_diag import FlowKey, Sample

FIRST_NUMBER = 16
LAST_NUMBER = 65535
"""A job's number is that of its class, too: below 16 is the tree's own."""

MOST_JOBS_PER_USER = 256
MOST_FLOWS_PER_JOB = 8192

KERNEL, TC, NONE = "kernel", "tc", "none"


@dataclass
class Job:
    """One job on this host.

    Attributes:
        how: what controls it: ``kernel``, ``tc`` or ``none``.
        control: the congestion control for its flows; ``none``: they keep theirs.
        seen_controls: what its flows were last seen under, where theirs are kept.
        kernel_number: of its entry in the kernel's map, once it has one.
        members: its processes' connections, each with its rank.
        flows: by key, with the counters when they were last read.
        cgroups: of members that asked to be attached.
    """

    number: int
    name: str
    instance: str
    uid: int
    user: str
    how: str
    control: str
    aggressiveness: Aggressiveness
    total_bytes: int = 0
    gap_s: float = 0.0
    ranks: int = 1
    kernel_number: int | None = None
    members: dict[Connection, int] = field(default_factory=dict)
    flows: dict[FlowKey, Connection | None] = field(default_factory=dict)
    counters: dict[FlowKey, Sample] = field(default_factory=dict)
    seen_controls: set[str] = field(default_factory=set)
    times: IterationTimes = field(default_factory=IterationTimes)
    retransmits: int = 0
    marks: int = 0
    acked_bytes: int = 0
    bytes_per_s: float = 0.0

    def __str__(self) -> str:
        return f"job {self.number} ({self.name} of {self.user})"


class Jobs:
    """All jobs, by number and by who made them."""

    def __init__(self) -> None:
        self._by_number: dict[int, Job] = {}
        self._by_identity: dict[tuple[int, str, str], Job] = {}
        self._by_connection: dict[Connection, Job] = {}
        self._next = FIRST_NUMBER

    def begin_after(self, number: int) -> None:
        """Give numbers only from behind this one: the lower ones' classes are still there."""
        self._next = max(FIRST_NUMBER, number + 1) if number < LAST_NUMBER else FIRST_NUMBER

    def __iter__(self) -> Iterator[Job]:
        return iter(list(self._by_number.values()))

    def __len__(self) -> int:
        return len(self._by_number)

    def find(self, uid: int, name: str, instance: str) -> Job | None:
        """The job that a user has made under a name."""
        return self._by_identity.get((uid, name, instance))

    def add(self, job: Job) -> None:
        """A new job, whose number is :meth:`free_number`'s."""
        self._by_number[job.number] = job
        self._by_identity[(job.uid, job.name, job.instance)] = job

    def remove(self, job: Job) -> None:
        """A job is over."""
        self._by_number.pop(job.number, None)
        self._by_identity.pop((job.uid, job.name, job.instance), None)
        for connection in job.members:
            self._by_connection.pop(connection, None)

    def free_number(self, peer: Peer) -> int:
        """A number for another job of this user.

        Raises:
            NotAvailableError: there are too many jobs.
        """
        if sum(job.uid == peer.uid for job in self._by_number.values()) >= MOST_JOBS_PER_USER:
            raise NotAvailableError(
                f"{peer.user} has {MOST_JOBS_PER_USER} jobs on this host, which is the most"
            )
        # Not the lowest: a class that has just gone may have packets of its last job's flows coming yet.
        for _ in range(LAST_NUMBER - FIRST_NUMBER + 1):
            number = self._next
            self._next = FIRST_NUMBER if number == LAST_NUMBER else number + 1
            if number not in self._by_number:
                return number
        raise NotAvailableError("there are 65520 jobs on this host, which is the most")

    def join(self, job: Job, connection: Connection, rank: int) -> None:
        """Make a connection a member of a job."""
        job.members[connection] = rank
        self._by_connection[connection] = job

    def leave(self, connection: Connection) -> Job | None:
        """A connection is gone; returns the job that it was a member of."""
        job = self._by_connection.pop(connection, None)
        if job is not None:
            job.members.pop(connection, None)
        return job

    def of(self, connection: Connection) -> Job:
        """The job of a connection.

        Raises:
            UsageError: it has registered none.
        """
        job = self._by_connection.get(connection)
        if job is None:
            raise UsageError("this connection has registered no job: `register` comes first")
        return job

    def member_of(self, connection: Connection) -> Job | None:
        """The job of a connection, if it has registered one."""
        return self._by_connection.get(connection)

    def owned(self, number: int, peer: Peer) -> Job:
        """A job that a peer may change.

        Raises:
            DeniedError: it is somebody else's, or there is none: a stranger is not told which.
        """
        job = self._by_number.get(number)
        if job is None or not may_see(job, peer):
            raise DeniedError(f"{peer.user} has no job {number}: only its owner or root may change a job")
        return job

    def by_number(self, number: int) -> Job | None:
        """The job with this number."""
        return self._by_number.get(number)


def may_see(job: Job | JobStatus, peer: Peer) -> bool:
    """Whether a peer may see a job in detail, change it and stop it: its owner and root."""
    return peer.is_root or peer.uid == job.uid
