"""The TCP connections of a Gloo group among all the sockets of its process, each with its peer's rank.

Gloo connects every pair of ranks of a group once (once for each of its network interfaces). Each group has listening
sockets of its own, made while the group is built: a connection belongs to the group if one of its ends is the listener
of one of the group's ranks. The ranks tell each other their listeners, and which of them opened a connection, through
the group's store.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta

from torch.distributed import PrefixStore, Store

from mltcp.pacing.tcp_info import (
    Address,
    addresses,
    inode,
    is_listening,
    local_address,
    tcp_info,
    tcp_sockets,
)

_KEYS = "mltcp/sockets"

Act = Callable[[tuple[int, ...]], None]


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
    found.addresses = frozenset(address for number, address in _listening().items() if number not in before)


def _listening() -> dict[int, Address]:
    """The address of every listening TCP socket of this process, by inode."""
    found = {}
    for descriptor in tcp_sockets():
        with suppress(OSError):
            if is_listening(descriptor):
                found[inode(descriptor)] = local_address(descriptor)
    return found


@dataclass(frozen=True)
class _Connection:
    """A connection, known by its inode: its descriptor may be another's once it is closed."""

    descriptor: int
    inode: int
    local: Address
    peer: Address

    @property
    def is_open(self) -> bool:
        with suppress(OSError):
            return inode(self.descriptor) == self.inode
        return False

    def acked_bytes(self) -> int | None:
        info = tcp_info(self.descriptor) if self.is_open else None
        return None if info is None else info.acked_bytes


def _connections() -> Iterator[_Connection]:
    """Every TCP connection of this process."""
    for descriptor in tcp_sockets():
        with suppress(OSError):
            yield _Connection(descriptor, inode(descriptor), *addresses(descriptor))


@dataclass
class Mesh:
    """The connections of this rank in one group.

    Making it exchanges the listeners with the other ranks, and so waits for them, as making the group did. With
    TORCH_GLOO_LAZY_INIT=1 a connection comes with the first operation that needs it: until all are there, each
    question looks for further ones. Raises what the store raises when a rank does not come within `timeout`.

    Args:
        store: the group's own; every rank must have made the same number of meshes at it before.
        rank: this process's in the group.
        size: the number of ranks.
        listeners: those that appeared while the group was made.
        timeout: how long to wait for other ranks.
    """

    store: Store
    rank: int
    size: int
    listeners: Listeners
    timeout: timedelta
    _found: dict[int, _Connection] = field(default_factory=dict)
    _ranks_by_listener: dict[Address, int] = field(default_factory=dict)
    _peer_ranks: dict[int, int] = field(default_factory=dict)
    _acts: list[Act] = field(default_factory=list)

    def __post_init__(self) -> None:
        # A store may have been the meeting place of an earlier group of this name: that one's keys say nothing.
        turn = PrefixStore(_KEYS, self.store).add(f"meshes/{self.rank}", 1)
        self.store = PrefixStore(f"{_KEYS}/{turn}", self.store)
        self._exchange_listeners()
        self._find()
        self.store.set(f"looked/{self.rank}", "")

    @property
    def complete(self) -> bool:
        """Whether all connections have been found: one to each other rank for each listener of this one's."""
        return len(self._found) >= (self.size - 1) * len(self.listeners.addresses)

    def when_found(self, act: Act) -> None:
        """Do something with the descriptors of all connections, with each as soon as it is found."""
        self._acts.append(act)
        if self._found:
            act(tuple(each.descriptor for each in self._found.values()))

    def acked_bytes(self) -> int | None:
        """What the peers have acknowledged on all connections since they were opened.

        None if that cannot be known: one of them is closed, the kernel does not say, or the transport is not TCP.
        """
        if not self.listeners.addresses:
            return None
        total = 0
        for each in self._all():
            acked_bytes = each.acked_bytes()
            if acked_bytes is None:
                return None
            total += acked_bytes
        return total

    def sockets(self) -> tuple[GroupSocket, ...]:
        """The connections that are open, with their peers' ranks.

        With TORCH_GLOO_LAZY_INIT=1 one that this rank accepted is missing until the rank that opened it has asked as
        well: to wait for that would lock up with an operation in which that rank waits for this one.
        """
        connections = [each for each in self._all() if each.is_open]
        self._identify([each for each in connections if each.inode not in self._peer_ranks])
        return tuple(
            GroupSocket(each.descriptor, each.local, each.peer, self._peer_ranks[each.inode])
            for each in connections
            if each.inode in self._peer_ranks
        )

    # -- which they are ------------------------------------------------------------------------------------------------

    def _exchange_listeners(self) -> None:
        self.store.set(f"listeners/{self.rank}", json.dumps(sorted(self.listeners.addresses)))
        keys = self._keys_of_all("listeners")
        self.store.wait(keys, self.timeout)
        for rank, document in enumerate(self.store.multi_get(keys)):
            for host, port in json.loads(document) if rank != self.rank else ():
                self._ranks_by_listener[host, port] = rank

    def _all(self) -> tuple[_Connection, ...]:
        if not self.complete:
            self._find()
        return tuple(self._found.values())

    def _find(self) -> None:
        fresh = [each for each in _connections() if each.inode not in self._found and self._belongs(each)]
        for each in fresh:
            if each.local not in self.listeners.addresses:
                self._peer_ranks[each.inode] = self._ranks_by_listener[each.peer]
                self.store.set(_opened(each.local), str(self.rank))
        self._found |= {each.inode: each for each in fresh}
        if fresh:
            for act in self._acts:
                act(tuple(each.descriptor for each in fresh))

    def _belongs(self, connection: _Connection) -> bool:
        return connection.local in self.listeners.addresses or connection.peer in self._ranks_by_listener

    # -- whose they are ------------------------------------------------------------------------------------------------

    def _identify(self, accepted: Sequence[_Connection]) -> None:
        """Learn who opened connections; others than the group's ranks may have, and then nobody tells."""
        if not accepted:
            return
        self.store.wait(self._keys_of_all("looked"), self.timeout)
        for each in accepted:
            key = _opened(each.peer)
            if self.store.check([key]):
                self._peer_ranks[each.inode] = int(self.store.get(key))

    def _keys_of_all(self, name: str) -> list[str]:
        return [f"{name}/{rank}" for rank in range(self.size)]


def _opened(local: Address) -> str:
    """The key under which a rank says that it opened the connection from this address."""
    return f"opened/{local[0]}/{local[1]}"
