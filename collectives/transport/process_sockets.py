"""The TCP sockets of this process: those that were there at some time, those that listen, those that are connected."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

from mltcp.pacing.tcp_info import (
    Address,
    addresses,
    inode,
    is_listening,
    local_address,
    tcp_info,
    tcp_sockets,
)

_WILDCARDS = ("0.0.0.0", "::")
_MAPPED = "::ffff:"

OnFound = Callable[[tuple[int, ...]], None]
"""Is called with the descriptors of connections."""


class Connections(Protocol):
    """Connections of a group that are found one after the other."""

    def when_found(self, callback: OnFound) -> None:
        """Call `callback` with the descriptors of all connections, of each as soon as it is found."""


@dataclass(frozen=True)
class GroupSocket:
    """A connection of a group: this process's descriptor, both addresses, and the rank at the other end."""

    descriptor: int
    local: Address
    peer: Address
    peer_rank: int


@dataclass(frozen=True)
class ProcessSockets:
    """The TCP sockets of this process at some time: the inodes of all, and the addresses of those that listen."""

    inodes: frozenset[int] = frozenset()
    listeners: frozenset[Address] = frozenset()

    @classmethod
    def now(cls) -> ProcessSockets:
        """Those that this process holds now."""
        inodes, listeners = set(), set()
        for descriptor in tcp_sockets():
            with suppress(OSError):
                inodes.add(inode(descriptor))
                if is_listening(descriptor):
                    listeners.add(plain(local_address(descriptor)))
        return cls(frozenset(inodes), frozenset(listeners))

    def accept_at(self, address: Address) -> bool:
        """Whether one of them accepts connections at this address of the process."""
        host, port = plain(address)
        return (host, port) in self.listeners or any((each, port) in self.listeners for each in _WILDCARDS)


def plain(address: Address) -> Address:
    """An address in the form that is the same for sockets of IPv4 and for those of IPv6 that carry IPv4."""
    host, port = address
    return host.removeprefix(_MAPPED), port


@dataclass
class Listeners:
    """Addresses of listening TCP sockets that were opened after `before`.

    `mixed`: another thread has opened some meanwhile, so that nothing tells which were; there are no addresses then.
    """

    addresses: frozenset[Address] = frozenset()
    before: ProcessSockets = ProcessSockets()
    mixed: bool = False


_looking: list[Listeners] = []
_lock = threading.Lock()


@contextmanager
def new_listeners() -> Iterator[Listeners]:
    """The TCP listeners that this process opens in the ``with`` block; known after it."""
    found = Listeners(before=ProcessSockets.now())
    with _lock:
        _looking.append(found)
        for each in _looking if len(_looking) > 1 else ():
            each.mixed = True
    try:
        yield found
        if not found.mixed:
            opened = {
                address for number, address in _listening().items() if number not in found.before.inodes
            }
            found.addresses = frozenset() if found.mixed else frozenset(opened)
    finally:
        with _lock:
            _looking[:] = [each for each in _looking if each is not found]


def _listening() -> dict[int, Address]:
    """The address of every listening TCP socket of this process, by inode."""
    found = {}
    for descriptor in tcp_sockets():
        with suppress(OSError):
            if is_listening(descriptor):
                found[inode(descriptor)] = local_address(descriptor)
    return found


@dataclass(frozen=True)
class Connection:
    """A connection of this process, identified by its inode, since its descriptor may be reused once it is closed."""

    descriptor: int
    inode: int
    local: Address
    peer: Address

    @property
    def is_open(self) -> bool:
        """Whether the descriptor is still this connection's."""
        with suppress(OSError):
            return inode(self.descriptor) == self.inode
        return False

    def acked_bytes(self) -> int | None:
        """Bytes acknowledged by the peer; None if it is closed, or the kernel does not say."""
        info = tcp_info(self.descriptor) if self.is_open else None
        return None if info is None else info.acked_bytes


def open_connections() -> Iterator[Connection]:
    """Every TCP connection of this process."""
    for descriptor in tcp_sockets():
        with suppress(OSError):
            yield Connection(descriptor, inode(descriptor), *addresses(descriptor))
