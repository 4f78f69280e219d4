"""Finds NCCL's TCP connections among all sockets of its process, each with its peer's rank.

NCCL opens its connections itself: those of its bootstrap when a communicator is made, those of its data with the first
operation that needs them (a peer, an algorithm). Their listeners are closed right away, so that, unlike Gloo's, they
cannot be exchanged. A connection is taken for a communicator's if all of this is so:

* It was opened while NCCL worked: when the group was made, or during the first operation of a kind.
* Both its ends are held by ranks of the communicator, which tell each other what they have found, through the store.
* Neither end is at a listener that was there before, or that stays: the store's, RPC's, Gloo's, a data loader's. The
  connections of NCCL's bootstrap, whose listener stays too, are left out with them: they carry no data.

No rank ever waits for another here: what has no counterpart yet is looked for again, for half a minute.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Hashable

from torch.distributed import PrefixStore, Store

from collectives.transport.process_sockets import (
    Connection,
    GroupSocket,
    OnFound,
    ProcessSockets,
    open_connections,
    plain,
)
from mltcp.pacing.tcp_info import Address

_KEYS = "mltcp/nccl"

RETRIES_S = (0.05, 0.2, 1.0, 5.0, 30.0)
"""When connections without a counterpart are looked for again, after they were found here."""

_Ends = tuple[Address, Address]


class NcclConnections:
    """The connections of this rank in one communicator.

    Args:
        store: the group's own; a copy is used, since a rank may wait in the original for a long time.
        rank: this process's in the group.
        size: number of ranks.
        before: the sockets of this process before the group was made.
    """

    def __init__(self, store: Store, rank: int, size: int, before: ProcessSockets) -> None:
        earlier = ProcessSockets.now().inodes
        clone: Store = store.clone()  # type: ignore[attr-defined] # in no stubs before torch 2.14
        # An earlier group of this name may have left its keys in the store: they do not apply to this one.
        copy = PrefixStore(_KEYS, clone)
        self._store = PrefixStore(str(copy.add(f"turn/{rank}", 1)), copy)
        self._rank, self._size = rank, size
        self._before = before
        self._working = 1
        self._kinds: set[Hashable] = set()
        self._seen = set(ProcessSockets.now().inodes - earlier)
        self._unmatched: dict[_Ends, Connection] = {}
        self._ranks_by_ends: dict[_Ends, int] = {}
        self._read = dict.fromkeys(range(size), 0)
        self._told = 0
        self._found: dict[int, tuple[Connection, int]] = {}
        self._callbacks: list[OnFound] = []
        self._retries: list[float] = []
        self._lock = threading.RLock()

    def when_found(self, callback: OnFound) -> None:
        """Call `callback` with the descriptors of all connections, of each as soon as it is found."""
        with self._lock:
            self._callbacks.append(callback)
            if self._found:
                callback(tuple(each.descriptor for each, _ in self._found.values()))

    def sockets(self) -> tuple[GroupSocket, ...]:
        """The open connections found so far, with their peers' ranks."""
        with self._lock:
            found = list(self._found.values())
        return tuple(
            GroupSocket(each.descriptor, each.local, each.peer, rank) for each, rank in found if each.is_open
        )

    def acked_bytes(self) -> int:
        """Bytes acknowledged by the peers on the open connections found so far, since they were opened."""
        with self._lock:
            found = [each for each, _ in self._found.values()]
        return sum(each.acked_bytes() or 0 for each in found)

    @property
    def unmatched(self) -> int:
        """Number of connections that no other rank has told of yet."""
        return len(self._unmatched)

    # -- when NCCL may open connections --------------------------------------------------------------------------------

    def before(self, kind: Hashable) -> bool:
        """NCCL is about to be given an operation; whether it is the first of its kind, so that `after` must follow."""
        if kind in self._kinds:
            return False
        with self._lock:
            self._kinds.add(kind)
            if self._working == 0:
                self._before = ProcessSockets.now()
            self._working += 1
        return True

    def after(self) -> None:
        """That operation is complete, or the group is made: look for new connections."""
        with self._lock:
            now = ProcessSockets.now()
            fresh = [each for each in open_connections() if self._may_be_nccls(each, now)]
            self._working -= 1
            self._seen.update(each.inode for each in fresh)
            self._unmatched |= {_ends(each.local, each.peer): each for each in fresh}
            if fresh:
                self._tell([_ends(each.local, each.peer) for each in fresh])
                now_s = time.monotonic()
                self._retries = [now_s + delay_s for delay_s in RETRIES_S]
            self._match()

    @property
    def is_due(self) -> bool:
        """Whether connections without a counterpart are to be looked for again."""
        return bool(self._unmatched) and bool(self._retries) and time.monotonic() >= self._retries[0]

    def look_again(self) -> None:
        """Look for counterparts that other ranks have told since; after the last time, give up."""
        with self._lock:
            self._match()
            now_s = time.monotonic()
            self._retries = [at_s for at_s in self._retries if at_s > now_s]
            if not self._retries:
                self._unmatched.clear()

    def _may_be_nccls(self, connection: Connection, now: ProcessSockets) -> bool:
        known = connection.inode in self._before.inodes or connection.inode in self._seen
        return not known and not any(there.accept_at(connection.local) for there in (self._before, now))

    # -- what the ranks tell each other --------------------------------------------------------------------------------

    def _tell(self, connections: list[_Ends]) -> None:
        self._store.set(f"{self._rank}/{self._told}", json.dumps(connections))
        self._told += 1

    def _match(self) -> None:
        """Take the connections whose other end some rank has told."""
        if not self._unmatched:
            return
        for rank in range(self._size):
            if rank != self._rank:
                self._hear(rank)
        matched = [ends for ends in self._unmatched if (ends[1], ends[0]) in self._ranks_by_ends]
        fresh = []
        for ends in matched:
            connection = self._unmatched.pop(ends)
            fresh.append(connection)
            self._found[connection.inode] = connection, self._ranks_by_ends.pop((ends[1], ends[0]))
        if fresh:
            for callback in self._callbacks:
                callback(tuple(each.descriptor for each in fresh))

    def _hear(self, rank: int) -> None:
        while self._store.check([key := f"{rank}/{self._read[rank]}"]):
            for local, peer in json.loads(self._store.get(key)):
                self._ranks_by_ends[_ends(local, peer)] = rank
            self._read[rank] += 1


def _ends(local: Address, peer: Address) -> _Ends:
    """Both addresses of a connection, in the one form that both its ends agree on."""
    return plain(local), plain(peer)
