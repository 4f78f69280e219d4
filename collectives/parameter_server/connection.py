"""The connection between a worker and a server: a process group of these two, and how they find each other."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, ProcessGroup, Store

from collectives.group.backend import NAME
from collectives.group.group_factory import make_group
from collectives.group.inner_group import Membership, build_inner
from mltcp.core.address import Address
from mltcp.core.errors import MltcpError, UsageError


class ServerLostError(UsageError):
    """A server has died, or nobody listens where it was said to be. `server` is its number."""

    def __init__(self, server: int, cause: str) -> None:
        super().__init__(f"server {server} is gone: {cause}")
        self.server = server


class Channel(Protocol):
    """Sends tensors to one peer, and receives tensors from it, in order.

    Operations raise RuntimeError once the connection is closed, as Gloo does.

    Attributes:
        timeout: for the wait() of the operations; zero stands for the group's own.
    """

    timeout: timedelta

    def receive(self, tensor: Tensor) -> dist.Work:
        """Begin to receive into a tensor."""

    def send(self, tensor: Tensor) -> dist.Work:
        """Begin to send a tensor."""

    def close(self) -> None:
        """Close the connection."""


SERVER_RANK, WORKER_RANK = 0, 1

_READY = "worker-ready"
_BUILDING = threading.Lock()
"""A group finds its connections by the listeners that its process opens meanwhile: one group at a time is made."""

_MAKING = timedelta(seconds=10)
"""For which a worker that dies while its group is made keeps others from joining."""

_MEETING = timedelta(seconds=30)
"""How long a server waits for a worker that has announced itself, and a worker for an answer."""


class PairGroup:
    """The group of a server and one worker; a `Channel` to the other of the two.

    Args:
        group: of two ranks.
        peer: the rank of the other one.
        timeout: as of `Channel`.
        at_end: called when the connection has been closed.
    """

    def __init__(
        self, group: ProcessGroup, peer: int, timeout: timedelta, at_end: Callable[[], None] = lambda: None
    ) -> None:
        self._group, self._peer, self._at_end = group, peer, at_end
        self.timeout = timeout

    def receive(self, tensor: Tensor) -> dist.Work:
        """See `Channel`."""
        return self._group.recv([tensor], self._peer, 0)

    def send(self, tensor: Tensor) -> dist.Work:
        """See `Channel`."""
        return self._group.send([tensor], self._peer, 0)

    def close(self) -> None:
        """Close the connection, and end the group's threads with the last reference to it."""
        self._group.shutdown()
        self._at_end()


def connect(
    store: Store,
    rank: int,
    name: str,
    backend: str,
    timeout: timedelta,
    at_end: Callable[[], None] = lambda: None,
) -> PairGroup:
    """Make the group of a server and a worker, which both call this.

    The server waits for the worker before it takes the lock under which groups are made, so that a worker that never
    comes keeps no other from joining.

    Args:
        store: at which the two meet; they alone use it.
        rank: SERVER_RANK or WORKER_RANK.
        name: of the group, unique in the process.
        backend: ``mltcp`` or ``gloo``.
        timeout: of sends and receives.
        at_end: as of `PairGroup`.

    Raises:
        RuntimeError: the other one does not come in time.
    """
    if rank == WORKER_RANK:
        store.set(_READY, "")
    else:
        store.wait([_READY], _MEETING)
    member = Membership(PrefixStore("pair", store), rank, 2, _MAKING, name, (0, 1))
    with _BUILDING:
        group: ProcessGroup | None = build_inner(member) if backend != NAME else None
        if group is None:
            group = make_group(lambda _: build_inner(member), _MAKING, NAME)
        assert group is not None
        group._set_group_name(name)  # type: ignore[arg-type]  # a type of its own since torch 2.10
    return PairGroup(group, 1 - rank, timeout, at_end)


# -- how workers find a server ------------------------------------------------------------------


_LOOPBACK = "127.0.0.1"
_JOINS = "joins"


@dataclass(frozen=True)
class Introduction:
    """What a worker says of itself before it is let in.

    Attributes:
        worker: its number, which no other worker of the job has.
        server: the number of the server that it believes to have reached.
        servers: how many it was told of.
        model: what it trains, as `identity_of` has it.
    """

    worker: int
    server: int
    servers: int
    model: Mapping[str, str]


class MeetingPlace:
    """The server's side of the address at which workers join: a store of torch.distributed.

    Args:
        address: at whose port it listens, on all interfaces.
        timeout: of the connections that are made.
        backend: of these, ``mltcp`` or ``gloo``.

    Raises:
        MltcpError: nobody can listen there.
    """

    def __init__(self, address: Address, timeout: timedelta, backend: str) -> None:
        self._timeout, self._backend, self._port = timeout, backend, address.port
        try:
            self._store = dist.TCPStore(
                _LOOPBACK, self._port, is_master=True, wait_for_workers=False, timeout=_MEETING
            )
        except RuntimeError as error:
            raise MltcpError(f"cannot listen at port {self._port}: {first_line(error)}") from None
        self._known = 0
        self._announced: set[int] = set()

    def introductions(self) -> list[tuple[int, Introduction]]:
        """Those that have come since the last call, each with the number of the join."""
        latest = self._store.add(_JOINS, 0)
        self._announced |= {*range(self._known + 1, latest + 1)}
        self._known = latest
        # A worker may have died between its two messages, so that its introduction never comes.
        there = [join for join in sorted(self._announced) if self._store.check([_introduction(join)])]
        self._announced -= {*there}
        return [(join, _read_introduction(self._store.get(_introduction(join)))) for join in there]

    def answer(self, join: int, refusal: str | None) -> None:
        """Tell a worker that it may join, or why it may not."""
        self._store.set(_answer(join), json.dumps(refusal))

    def connect(self, join: int) -> PairGroup:
        """Make the group with a worker that was told that it may join, on any thread.

        Raises:
            RuntimeError: the worker does not come in time.
        """
        # A client that waits serves no other thread.
        client = dist.TCPStore(_LOOPBACK, self._port, is_master=False, timeout=_MEETING)
        return connect(
            PrefixStore(f"join/{join}", client), SERVER_RANK, f"join/{join}", self._backend, self._timeout
        )


def meet(address: Address, hello: Introduction, timeout: timedelta, backend: str) -> PairGroup:
    """Join a server, as a worker.

    Raises:
        ServerLostError: nobody answers there.
        UsageError: the server does not let this worker in: it has another model, or is another server.
    """
    try:
        store = dist.TCPStore(address.host, address.port, is_master=False, timeout=_MEETING)
        join = store.add(_JOINS, 1)
        store.set(_introduction(join), json.dumps(vars(hello)))
        store.wait([_answer(join)], _MEETING)
        refusal = json.loads(store.get(_answer(join)))
        if refusal is None:
            name = f"server/{hello.server}/{join}/{time.monotonic_ns()}"
            return connect(PrefixStore(f"join/{join}", store), WORKER_RANK, name, backend, timeout)
    except RuntimeError as error:  # torch's: of the store, or of Gloo
        raise ServerLostError(hello.server, f"{address}: {first_line(error)}") from None
    raise UsageError(f"server {hello.server} at {address}: {refusal}")


def answers(address: Address) -> bool:
    """Whether somebody listens there, asked without torch's store, which keeps trying and warns meanwhile."""
    try:
        socket.create_connection((address.host, address.port), timeout=_MEETING.total_seconds()).close()
    except OSError:
        return False
    return True


def parse_addresses(text: str) -> tuple[Address, ...]:
    """The addresses of servers, ``host:port,host:port``. Raises UsageError unless they are such."""
    found = tuple(Address.parse(each.strip(), "servers") for each in text.split(","))
    if any(each.path is not None or each.port == 0 for each in found) or len({*found}) < len(found):
        raise UsageError(f"servers: expected host:port,host:port, each of another server, got {text!r}")
    return found


def first_line(error: BaseException) -> str:
    """The first line of torch's message."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def _read_introduction(document: bytes) -> Introduction:
    """What a worker has said; of a stranger, which has said something else, no server lets the result in."""
    try:
        found = Introduction(**json.loads(document))
    except (ValueError, TypeError):
        return Introduction(-1, -1, -1, {})
    return (
        found if type(found.worker) is int and isinstance(found.model, dict) else Introduction(-1, -1, -1, {})
    )


def _introduction(join: int) -> str:
    return f"introduction/{join}"


def _answer(join: int) -> str:
    return f"answer/{join}"
