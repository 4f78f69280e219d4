"""The process at the other end of a connection to the daemon."""

from __future__ import annotations

import pwd
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Peer:
    """The credentials of a peer, as the kernel reports them (SO_PEERCRED, socket(7))."""

    pid: int
    uid: int
    gid: int

    @property
    def user(self) -> str:
        """The user's name, or the number of a user without a name."""
        try:
            return pwd.getpwuid(self.uid).pw_name
        except KeyError:
            return str(self.uid)

    @property
    def is_root(self) -> bool:
        """Whether this peer may see and change everything."""
        return self.uid == 0

    def __str__(self) -> str:
        return f"{self.user} (pid {self.pid})"


class Member(Protocol):
    """A member of a job: a :class:`mltcp.daemon.service.server.Connection`, or a registered cgroup."""

    @property
    def peer(self) -> Peer:
        """The process at its other end, or that has registered it."""

    def __hash__(self) -> int: ...
