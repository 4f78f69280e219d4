"""The process at the other end of a connection to the daemon."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from mltcp.core.accounts import account_name


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
