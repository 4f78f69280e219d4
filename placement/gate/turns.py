"""The turns of users at a gate."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mltcp.core.accounts import share_of

MOST_KEPT = 10_000
"""Most users and shares whose time is kept; the oldest is dropped."""


@dataclass(frozen=True, slots=True)
class GateUser:
    """The user of a run.

    Attributes:
        name: the uid of its ranks at the Unix socket, or their address.
        share: what takes turns with others: the user, or all uids that no account of the host has.
    """

    name: str
    share: str

    @classmethod
    def of_uid(cls, uid: int) -> GateUser:
        """The user of a process of this host."""
        return cls(f"uid {uid}", share_of(uid))

    @classmethod
    def at_address(cls, host: str) -> GateUser:
        """The user of a peer over TCP; all of a host are one."""
        return cls(host, host)


class HeldTimes:
    """For how long users, and shares of several, have held links, relative to each other."""

    def __init__(self) -> None:
        self._held_ns: dict[str, int] = {}

    def order(self, user: GateUser) -> tuple[int, int]:
        """The order in which users take turns: the least first."""
        return self._held_ns.get(user.share, 0), self._held_ns.get(_own(user), 0)

    def charge(self, user: GateUser, held_ns: int) -> None:
        """Add time that a transfer of a user has run."""
        for name in (user.share, _own(user)):
            self._held_ns[name] = self._held_ns.pop(name, 0) + held_ns
        while len(self._held_ns) > MOST_KEPT:
            del self._held_ns[next(iter(self._held_ns))]

    def begin(self, user: GateUser, active: Iterable[GateUser]) -> None:
        """A user who was inactive asks: time in which others used the gate is no credit for him."""
        others = [each for each in active if each != user]
        self._raise(user.share, [each.share for each in others])
        self._raise(_own(user), [_own(each) for each in others if each.share == user.share])

    def _raise(self, name: str, others: list[str]) -> None:
        if others and name not in others:
            least = min(self._held_ns.get(each, 0) for each in others)
            self._held_ns[name] = max(self._held_ns.pop(name, 0), least)


def _own(user: GateUser) -> str:
    """The key of a user within a share; equal to the share's only where the user is all of it."""
    return f"of {user.name}"
