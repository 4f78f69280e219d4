"""The jobs of this host, by number, by owner and by connection."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from mltcp.control.aggressiveness import Aggressiveness, Shape
from mltcp.core.errors import NotAvailableError, UsageError
from mltcp.daemon.client.protocol import DeniedError
from mltcp.daemon.jobs.job import Job, Member, Peer, may_see
from mltcp.ebpf.congestion_controls import MLTCP_CONTROLS, allowed


@dataclass(frozen=True)
class Limits:
    """The limits of a user.

    Attributes:
        factor: the largest F that the user may choose. With the default no job takes more than twice the share of one
            under the paper's F, whose largest value it is.
        controls: the congestion controls that the user may choose; None: those that the kernel lets every user choose
            (tcp_allowed_congestion_control), and MLTCP's.
        jobs: at a time.
        attached: processes that are put into their job's cgroup, at a time.
        connections: to the daemon's socket; None: half of all that it can have.
        seconds: of the daemon's processor time, in each second. Later requests wait.
        workers: processes that take descriptors, of all users; each has one at a time.
    """

    factor: float = 2.0
    controls: tuple[str, ...] | None = None
    jobs: int = 256
    attached: int = 64
    connections: int | None = None
    seconds: float = 0.2
    workers: int = 16

    def check_function(self, peer: Peer, function: Aggressiveness, default: Aggressiveness) -> None:
        """Check an F that a user has chosen; the daemon's default is everybody's.

        Raises:
            UsageError: it is too large.
        """
        if peer.is_root or function in (default, Aggressiveness()):
            return
        # A job whose bytes_ratio is 1 for ever has this all the time: no mean bounds what it takes.
        largest = 1.0 if function.shape is Shape.ONE else function.slope + function.intercept
        if largest > self.factor:
            raise UsageError(
                f"slope + intercept: expected at most {self.factor:g}, the limit for users (limits.factor), "
                f"got {largest:g}"
            )

    def check_control(self, peer: Peer, control: str) -> None:
        """Check a congestion control that a user has chosen by name.

        Raises:
            DeniedError: the user may not choose it.
        """
        if peer.is_root:
            return
        choice = self.controls if self.controls is not None else (*allowed(), *MLTCP_CONTROLS)
        if control not in choice:
            raise DeniedError(
                f"control: expected one of {', '.join(dict.fromkeys(choice))}, which users may choose "
                f"(limits.controls), got {control!r}"
            )


# -- the table of jobs --------------------------------------------------------------------------


FIRST_NUMBER = 16
LAST_NUMBER = 0x3FFF
"""A job's number is also the minor number of its HTB class: those below 16 are reserved for our own classes.

It is a part of its packets' marks, too, in which Kubernetes uses the next two bits to translate and to drop packets.
"""

MOST_JOBS = 4096
"""Jobs of all users, as many as have entries in the kernel."""

CLASS_STEP = 16
"""Numbers that are classes are multiples of this: the lower four bits of a packet's priority are the same for all jobs.

They select its band in pfifo_fast and prio, also on a device below the paced one. 0 is that of other traffic, too.
"""


_NOBODY = -1
_LOOK_S = 0.25
"""If no job has ended since, sockets are not listed again before: that takes milliseconds, and a user may ask often."""


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
        self._numbers = range(FIRST_NUMBER, LAST_NUMBER + 1)
        self._next = 0
        self._carried: Callable[[], Collection[int]] | None = None
        self._used: dict[int, int] = {}
        self._has_ended, self._looked_s = False, -_LOOK_S

    def number_classes(self, carried: Callable[[], Collection[int]]) -> None:
        """Assign numbers that are classes, and never one that a socket still carries, such as of a job that has ended.

        Args:
            carried: lists the numbers that sockets carry.

        Raises:
            MltcpError: they cannot be listed.
        """
        self._numbers = range(FIRST_NUMBER, LAST_NUMBER + 1, CLASS_STEP)
        self._carried = carried
        self._find_carried()

    def _find_carried(self) -> None:
        """Forget the numbers of ended jobs that no socket carries any more."""
        now_s = time.monotonic()
        is_due = self._has_ended or now_s - self._looked_s >= _LOOK_S
        if self._carried is not None and is_due:
            found = [number for number in self._carried() if number not in self._by_number]
            self._has_ended, self._looked_s = False, now_s
            # Those of an earlier daemon's jobs count to no user's limit: their users are about to register again.
            self._used = {
                number: self._used.get(number, _NOBODY) for number in found if number in self._numbers
            }

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
        if self._carried is not None:
            self._used[job.number] = job.uid
            self._has_ended = True
        self._by_identity.pop((job.uid, job.name, job.instance), None)
        for connection in job.members:
            self._by_connection.pop(connection, None)

    def free_number(self, peer: Peer) -> int:
        """A number for another job of this user.

        Raises:
            NotAvailableError: the user, or the host, has as many jobs as it can have.
            MltcpError: the sockets of this host cannot be listed.
        """
        if not self._may_have_another(peer) or self._taken >= self._part_of(peer):
            self._find_carried()
        if not self._may_have_another(peer):
            held, left = self._held(peer)
            also = f" and {left} ended ones, whose connections are open or just were," if left else ""
            raise NotAvailableError(
                f"{peer.user} already has {held} jobs{also} on this host, the limit (limits.jobs)"
            )
        part = self._part_of(peer)
        if self._taken >= part:
            also = "; ended ones count while connections of theirs are open" if self._used else ""
            raise NotAvailableError(f"this host already has {part} jobs, the limit{also}")
        # Not the lowest: packets of the flows of a class's last job may still arrive after the class was removed.
        for _ in self._numbers:
            number = self._numbers[self._next]
            self._next = (self._next + 1) % len(self._numbers)
            if number not in self._by_number and number not in self._used:
                return number
        raise NotAvailableError(f"this host already has {len(self._numbers)} jobs, the limit")

    @property
    def _taken(self) -> int:
        """How many numbers are a job's, or are carried."""
        return len(self._by_number) + len(self._used)

    def _part_of(self, peer: Peer) -> int:
        return peer.part_of(min(MOST_JOBS, len(self._numbers)), self._taken)

    def _held(self, peer: Peer) -> tuple[int, int]:
        """The number of jobs that a user has, and of ended ones whose numbers may still be carried."""
        jobs = sum(job.uid == peer.uid for job in self._by_number.values())
        return jobs, sum(uid == peer.uid for uid in self._used.values())

    def _may_have_another(self, peer: Peer) -> bool:
        return peer.is_root or sum(self._held(peer)) < self._most_per_user

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
