"""Finds the TCP connections of a Gloo group among all sockets of its process, each with its peer's rank.

Gloo connects every pair of ranks of a group once (once per network interface). Each group has its own listening
sockets, created while the group is built: a connection belongs to the group if one of its ends is the listener of one
of the group's ranks. The ranks exchange their listeners, and which of them opened a connection, through the group's
store.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from torch.distributed import PrefixStore, Store

from collectives.transport.process_sockets import (
    Connection,
    GroupSocket,
    Listeners,
    OnFound,
    open_connections,
)
from mltcp.pacing.tcp_info import Address

_KEYS = "mltcp/sockets"
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.0005, 0.02


@dataclass
class Mesh:
    """The connections of this rank in one group.

    The constructor exchanges the listeners with the other ranks, and so waits for them, as creating the group did; the
    store's errors, such as a timeout, are passed on. With TORCH_GLOO_LAZY_INIT=1 a connection is opened by the first
    operation that needs it: every query searches for further connections until all are found.

    Args:
        store: the group's own; every rank must have made the same number of meshes with it before.
        rank: this process's in the group.
        size: number of ranks.
        listeners: those that were opened while the group was made.
        timeout: of waiting for other ranks.
    """

    store: Store
    rank: int
    size: int
    listeners: Listeners
    timeout: timedelta
    _found: dict[int, Connection] = field(default_factory=dict)
    _ranks_by_listener: dict[Address, int] = field(default_factory=dict)
    _peer_ranks: dict[int, int] = field(default_factory=dict)
    _callbacks: list[OnFound] = field(default_factory=list)

    def __post_init__(self) -> None:
        # An earlier group of this name may have left its keys in the store: they do not apply to this one.
        turn = PrefixStore(_KEYS, self.store).add(f"meshes/{self.rank}", 1)
        self.store = PrefixStore(f"{_KEYS}/{turn}", self.store)
        self._exchange_listeners()
        self._find()
        self.store.set(f"looked/{self.rank}", "")

    @property
    def complete(self) -> bool:
        """Whether all connections have been found: one to each other rank per listener of this rank."""
        return len(self._found) >= (self.size - 1) * len(self.listeners.addresses)

    def when_found(self, callback: OnFound) -> None:
        """Call `callback` with the descriptors of all connections, of each as soon as it is found."""
        self._callbacks.append(callback)
        if self._found:
            callback(tuple(each.descriptor for each in self._found.values()))

    def acked_bytes(self) -> int | None:
        """Bytes acknowledged by the peers on all connections since they were opened.

        None if it is not known: a connection is closed, the kernel does not provide it, or the transport is not TCP.
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
        """The open connections with their peers' ranks.

        With TORCH_GLOO_LAZY_INIT=1 a connection that this rank accepted is missing until the rank that opened it has
        made a query as well: waiting for that would deadlock with an operation in which that rank waits for this one.
        """
        connections = [each for each in self._all() if each.is_open]
        self._identify([each for each in connections if each.inode not in self._peer_ranks])
        return tuple(
            GroupSocket(each.descriptor, each.local, each.peer, self._peer_ranks[each.inode])
            for each in connections
            if each.inode in self._peer_ranks
        )

    # -- finding connections -------------------------------------------------------------------------------------------

    def _exchange_listeners(self) -> None:
        self.store.set(f"listeners/{self.rank}", json.dumps(sorted(self.listeners.addresses)))
        keys = self._keys_of_all("listeners")
        self._wait(keys)
        found = [json.loads(document) for document in self.store.multi_get(keys)]
        if not all(found):
            # A rank does not know its own: the connections of none are known.
            self.listeners = Listeners(before=self.listeners.before, mixed=self.listeners.mixed)
            return
        for rank, addresses in enumerate(found):
            for host, port in addresses if rank != self.rank else ():
                self._ranks_by_listener[host, port] = rank

    def _wait(self, keys: list[str]) -> None:
        """Wait for keys. A store that is waiting serves no other thread, which may be what another rank waits for."""
        until_s, pause_s = time.monotonic() + self.timeout.total_seconds(), _FIRST_PAUSE_S
        while not self.store.check(keys):
            if time.monotonic() >= until_s:
                self.store.wait(keys, timedelta(milliseconds=1))  # its own error
                return
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _all(self) -> tuple[Connection, ...]:
        if not self.complete:
            self._find()
        return tuple(self._found.values())

    def _find(self) -> None:
        fresh = [each for each in open_connections() if each.inode not in self._found and self._belongs(each)]
        for each in fresh:
            if each.local not in self.listeners.addresses:
                self._peer_ranks[each.inode] = self._ranks_by_listener[each.peer]
                self.store.set(_opened(each.local, each.peer), str(self.rank))
        self._found |= {each.inode: each for each in fresh}
        if fresh:
            for callback in self._callbacks:
                callback(tuple(each.descriptor for each in fresh))

    def _belongs(self, connection: Connection) -> bool:
        return connection.local in self.listeners.addresses or connection.peer in self._ranks_by_listener

    # -- identifying peers ---------------------------------------------------------------------------------------------

    def _identify(self, accepted: Sequence[Connection]) -> None:
        """Find the ranks that opened these connections; one opened by a stranger has no key in the store."""
        if not accepted:
            return
        self._wait(self._keys_of_all("looked"))
        for each in accepted:
            key = _opened(each.peer, each.local)
            if self.store.check([key]):
                self._peer_ranks[each.inode] = int(self.store.get(key))

    def _keys_of_all(self, name: str) -> list[str]:
        return [f"{name}/{rank}" for rank in range(self.size)]


def _opened(opener: Address, listener: Address) -> str:
    """The key at which a rank announces that it opened a connection.

    Both ends are named: connections to different listeners may be opened from the same port.
    """
    return f"opened/{opener[0]}/{opener[1]}/{listener[0]}/{listener[1]}"
