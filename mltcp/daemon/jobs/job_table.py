"""The jobs of this host, by number, by owner and by connection."""

from __future__ import annotations

from collections.abc import Iterator

from mltcp.core.errors import NotAvailableError, UsageError
from mltcp.daemon.client.protocol import DeniedError
from mltcp.daemon.jobs.job import Job, may_see
from mltcp.daemon.jobs.limits import Limits
from mltcp.daemon.jobs.peer import Member, Peer

FIRST_NUMBER = 16
LAST_NUMBER = 0x3FFF
"""A job's number is also the minor number of its HTB class: those below 16 are reserved for our own classes.

It is a part of its packets' marks, too, in which Kubernetes uses the next two bits to translate and to drop packets.
"""


class JobTable:
    """All jobs, by number and by who registered them.

    Args:
        most_per_user: how many a user other than root may have.
    """

    def __init__(self, most_per_user: int = Limits().jobs) -> None:
        self._most_per_user = most_per_user
        self._by_number: dict[int, Job] = {}
        self._by_identity: dict[tuple[int, str, str], Job] = {}
        self._by_connection: dict[Member, Job] = {}
        self._next = FIRST_NUMBER

    def begin_after(self, number: int) -> None:
        """Assign only numbers above this one: the classes of lower ones still exist."""
        self._next = max(FIRST_NUMBER, number + 1) if number < LAST_NUMBER else FIRST_NUMBER

    def __iter__(self) -> Iterator[Job]:
        return iter(list(self._by_number.values()))

    def __contains__(self, job: Job) -> bool:
        return self._by_number.get(job.number) is job

    def __len__(self) -> int:
        return len(self._by_number)

    def find(self, uid: int, name: str, instance: str) -> Job | None:
        """The job that a user has registered under a name."""
        return self._by_identity.get((uid, name, instance))

    def add(self, job: Job) -> None:
        """Add a job, whose number comes from :meth:`free_number`."""
        self._by_number[job.number] = job
        self._by_identity[(job.uid, job.name, job.instance)] = job

    def remove(self, job: Job) -> None:
        """Remove a job and the membership of its connections."""
        self._by_number.pop(job.number, None)
        self._by_identity.pop((job.uid, job.name, job.instance), None)
        for connection in job.members:
            self._by_connection.pop(connection, None)

    def free_number(self, peer: Peer) -> int:
        """A number for another job of this user.

        Raises:
            NotAvailableError: the user, or the host, has as many jobs as it can have.
        """
        held = sum(job.uid == peer.uid for job in self._by_number.values())
        if held >= self._most_per_user and not peer.is_root:
            raise NotAvailableError(
                f"{peer.user} already has {held} jobs on this host, the limit (limits.jobs)"
            )
        # Not the lowest: packets of the flows of a class's last job may still arrive after the class was removed.
        for _ in range(LAST_NUMBER - FIRST_NUMBER + 1):
            number = self._next
            self._next = FIRST_NUMBER if number == LAST_NUMBER else number + 1
            if number not in self._by_number:
                return number
        raise NotAvailableError(f"this host already has {LAST_NUMBER - FIRST_NUMBER + 1} jobs, the limit")

    def join(self, job: Job, connection: Member, rank: int) -> None:
        """Make a connection a member of a job."""
        job.members[connection] = rank
        self._by_connection[connection] = job

    def leave(self, connection: Member) -> Job | None:
        """Remove a closed connection; returns the job that it was a member of."""
        job = self._by_connection.pop(connection, None)
        if job is not None:
            job.members.pop(connection, None)
        return job

    def of(self, connection: Member) -> Job:
        """The job of a connection.

        Raises:
            UsageError: it has registered none.
        """
        job = self._by_connection.get(connection)
        if job is None:
            raise UsageError("this connection has not registered a job: send `register` first")
        return job

    def member_of(self, connection: Member) -> Job | None:
        """The job of a connection, if it has registered one."""
        return self._by_connection.get(connection)

    def owned(self, number: int, peer: Peer) -> Job:
        """A job that a peer may change.

        Raises:
            DeniedError: it belongs to another user, or does not exist: other users are not told which.
        """
        job = self._by_number.get(number)
        if job is None or not may_see(job, peer):
            raise DeniedError(f"{peer.user} has no job {number}: only its owner or root may change a job")
        return job
