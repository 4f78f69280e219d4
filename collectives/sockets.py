"""The TCP connections of a Gloo group among all the sockets of its process, each with its peer's rank.

Gloo connects every pair of ranks of a group once. Each group has a listening socket of its own, made while the group is
built: a connection belongs to the group if one of its ends is the listener of one of the group's ranks. The ranks
tell each other their listeners, and the connections that they opened, through the group's store.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta

from torch.distributed import PrefixStore, Store

from mltcp.tcp_info import Address, addresses, tcp_info, tcp_sockets

_KEYS = "mltcp/sockets"


@dataclass(frozen=True)
class GroupSocket:
    """A connection of a group: this process's descriptor, both addresses, and who is at the other end."""

    descriptor: int
    local: Address
    peer: Address
    peer_rank: int


@dataclass
class Listeners:
    """Listening TCP sockets."""

    addresses: frozenset[Address] = frozenset()


@contextmanager
def new_listeners() -> Iterator[Listeners]:
    """The TCP listeners of this process that appear in the block; known after it."""
    before = _listening()
    found = Listeners()
    yield found
    found.addresses = frozenset(address for inode, address in _listening().items() if inode not in before)


def _listening() -> dict[int, Address]:
    """The address of every listening TCP socket of this process, by inode."""
    found = {}
    for descriptor, view in tcp_sockets():
        if view.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            name = view.getsockname()
            found[os.fstat(descriptor).st_ino] = (str(name[0]), int(name[1]))
    return found


@dataclass
class Mesh:
    """The connections of this rank in one group.

    Making it exchanges the listeners with the other ranks, and so waits for them, as making the group did. With
    TORCH_GLOO_LAZY_INIT=1 the connections come with the first operation, and are looked for until they are there.
    Raises what the store raises when a rank does not come within `timeout`.
    """

    store: Store
    rank: int
    size: int
    listeners: Listeners
    timeout: timedelta
    _found: dict[int, tuple[Address, Address]] = field(default_factory=dict)
    _ranks_by_listener: dict[Address, int] = field(default_factory=dict)
    _sockets: tuple[GroupSocket, ...] | None = None
    _waiting: list[Callable[[], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = PrefixStore(_KEYS, self.store)
        own = sorted(self.listeners.addresses)
        for rank, theirs in self._exchanged("listeners", own).items():
            self._ranks_by_listener |= dict.fromkeys(theirs, rank)
        self._find()

    @property
    def complete(self) -> bool:
        """Whether all connections have been found."""
        return len(self._found) >= self.size - 1

    def when_complete(self, act: Callable[[], None]) -> None:
        """Do something with the connections once they are there: now, or when they are next asked for."""
        if self.complete:
            act()
        else:
            self._waiting.append(act)

    def descriptors(self) -> tuple[int, ...]:
        """The descriptors of the connections that are there."""
        if not self.complete:
            self._find()
        return tuple(self._found)

    def acked_bytes(self) -> int | None:
        """What the peers have acknowledged on all connections since they were opened; None if that is not known."""
        total = 0
        for descriptor in self.descriptors():
            info = tcp_info(descriptor)
            if info is None or info.acked_bytes is None:
                return None
            total += info.acked_bytes
        return total if self.complete else None

    def sockets(self) -> tuple[GroupSocket, ...]:
        """The connections with their peers' ranks; every rank of the group must ask, as each knows half of them."""
        if self._sockets is None:
            found = self._identified() if self.descriptors() else ()
            if not self.complete:
                return found
            self._sockets = found
        return self._sockets

    def _find(self) -> None:
        mine, theirs = self.listeners.addresses, self._ranks_by_listener
        for descriptor, view in tcp_sockets():
            with suppress(OSError):
                local, peer = addresses(view)
                if local in mine or theirs.get(peer, self.rank) != self.rank:
                    self._found[descriptor] = (local, peer)
        if self.complete:
            while self._waiting:
                self._waiting.pop()()
            self._publish_opened()

    def _publish_opened(self) -> None:
        opened = [local for local, _ in self._found.values() if local not in self.listeners.addresses]
        self.store.set(f"opened/{self.rank}", json.dumps(opened))

    def _identified(self) -> tuple[GroupSocket, ...]:
        """Connections that this rank opened lead to a listener; those it accepted were opened by some other rank."""
        ranks = dict(self._ranks_by_listener)
        if self.complete:
            for rank, opened in self._read("opened").items():
                ranks |= dict.fromkeys(opened, rank)
        return tuple(
            GroupSocket(descriptor, local, peer, ranks[peer])
            for descriptor, (local, peer) in self._found.items()
            if peer in ranks
        )

    def _exchanged(self, key: str, value: list[Address]) -> dict[int, list[Address]]:
        self.store.set(f"{key}/{self.rank}", json.dumps(value))
        return self._read(key)

    def _read(self, key: str) -> dict[int, list[Address]]:
        """What each rank has published under `key`."""
        keys = [f"{key}/{rank}" for rank in range(self.size)]
        self.store.wait(keys, self.timeout)
        documents = [json.loads(value) for value in self.store.multi_get(keys)]
        return {rank: [(host, port) for host, port in each] for rank, each in enumerate(documents)}
