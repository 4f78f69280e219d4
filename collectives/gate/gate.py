"""The client of the all-reduce gate: requests a pass before each large operation, and returns it afterwards.

The thread that calls the operation blocks until the pass is granted, also for an asynchronous operation. If the gate
dies, or does not answer within the timeout, operations proceed without passes until it is back.
"""

from __future__ import annotations

import hashlib
import json
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from struct import Struct
from typing import Any
from weakref import WeakSet

from collectives.core.notices import rank_on_host, warn_once
from collectives.core.settings import GateSettings
from collectives.recording.operation import InFlightOperation
from mltcp.core.errors import MltcpError
from mltcp.core.trusted_directory import UnsafeDirectoryError, check_trusted_directory

VERSION = 1
HELLO, ASK, DONE = 1, 2, 3
WELCOME, GO, WAIT, REFUSED = 129, 130, 131, 132

_HEADER = Struct("<BxxxI")
_ASK = Struct("<BxxxIQQQII")
_DONE = Struct("<BxxxIQQ")
_OPERATION = Struct("<QQ")
_MOST_BYTES = 65536


class GateRefusedError(MltcpError):
    """The gate refused this rank or its message."""


class GateChannel:
    """A connection for use by one thread; every failure is an OSError or GateRefusedError.

    Args:
        address: ``unix:/path`` or ``host:port``.
        hello: fields that identify this rank to the gate.
        timeout_s: of every wait for the gate.
        socket_owner: number of the account that runs the gate at a Unix socket, if it is neither this one nor root.
    """

    def __init__(
        self, address: str, hello: Mapping[str, Any], timeout_s: float, socket_owner: int | None = None
    ) -> None:
        self._socket = _connected(address, timeout_s, socket_owner)
        self._received = b""
        try:
            body = json.dumps({"version": VERSION, **hello}).encode()
            self._socket.sendall(_HEADER.pack(HELLO, len(body)) + body)
            while self._take()[0] != WELCOME:
                pass
        except BaseException:
            self.close()
            raise

    def ask(self, group: int, number: int, nbytes: int, size: int, iterations: int) -> None:
        """Request a pass; returns when it is granted."""
        self._socket.sendall(
            _ASK.pack(ASK, _ASK.size - _HEADER.size, group, number, nbytes, size, iterations)
        )
        while True:
            kind, body = self._take()
            if kind == GO and _OPERATION.unpack(body) == (group, number):
                return

    def tell_done(self, group: int, number: int) -> None:
        """Return the pass: the operation has ended on this rank."""
        self._socket.sendall(_DONE.pack(DONE, _OPERATION.size, group, number))

    def shut(self) -> None:
        """End the connection, from any thread; a thread that waits for an answer gets an error."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close this process's descriptor; the parent of a forked process may keep its own open."""
        self._socket.close()

    def _take(self) -> tuple[int, bytes]:
        """Receive the next message: its kind and body."""
        while True:
            received = self._received
            if len(received) >= _HEADER.size:
                kind, length = _HEADER.unpack_from(received)
                if length > _MOST_BYTES:
                    raise ConnectionError(f"malformed message of {length} bytes")
                end = _HEADER.size + length
                if len(received) >= end:
                    self._received = received[end:]
                    return _checked(kind, received[_HEADER.size : end])
            more = self._socket.recv(4096)
            if not more:
                raise ConnectionResetError("closed the connection")
            self._received = received + more


def _checked(kind: int, body: bytes) -> tuple[int, bytes]:
    if kind == REFUSED:
        raise GateRefusedError(body.decode(errors="replace")[:300])
    if kind == GO and len(body) != _OPERATION.size:
        raise ConnectionError(f"malformed answer of {len(body)} bytes")
    return kind, body


def _check_directory(path: str, socket_owner: int | None) -> None:
    """Check that nobody else could put a socket of his own in place of the gate's, before anything is sent."""
    try:
        check_trusted_directory(Path(path).parent, socket_owner)
    except UnsafeDirectoryError as error:
        raise GateRefusedError(
            f"{error}; another account that runs the gate: MLTCP_GATE_SOCKET_OWNER"
        ) from None
    except MltcpError as error:
        raise ConnectionError(str(error)) from None


def _connected(address: str, timeout_s: float, socket_owner: int | None) -> socket.socket:
    if address.startswith("unix:"):
        _check_directory(address.removeprefix("unix:"), socket_owner)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(timeout_s)
            connection.connect(address.removeprefix("unix:"))
        except BaseException:
            connection.close()
            raise
        return connection
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host.strip("[]"), int(port)), timeout_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


# -- the gate -----------------------------------------------------------------------------------


_log = logging.getLogger("mltcp")

RETRY_S = 2.0
"""Interval between attempts to reach a gate that is down."""

GATED = frozenset({"all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter"})
"""The operations that need a pass: their payload is the same on all ranks, so that all ranks request one or none."""

Counter = Callable[[], int]


class Gate:
    """This rank's client of the gate. Each thread that requests or returns passes has a connection of its own.

    A pass belongs to a round: all connections that were made between two failures of the gate. Passes of an earlier
    round are void, and are not returned.

    Args:
        settings: the gate's address, and when to ask it.
        job: the job's name.
        instance: identifies this run of the job.
        rank: this process's.
        iterations: returns the number of finished iterations, for gates that know how many the job has.
    """

    def __init__(
        self, settings: GateSettings, job: str, instance: str, rank: int, iterations: Counter = lambda: 0
    ) -> None:
        self.settings = settings
        self._hello = {"job": job, "instance": instance, "rank": rank, "token": settings.token}
        self._rank = rank
        self._iterations = iterations
        self._lock = threading.Lock()
        self._own = threading.local()
        self._channels: WeakSet[GateChannel] = WeakSet()
        self._passes: dict[InFlightOperation, int] = {}
        self._round = 0
        self._open = False
        self._closing = threading.Event()
        try:
            self._channel()
        except (OSError, GateRefusedError) as error:
            self._fail(error, self._round)

    @property
    def is_open(self) -> bool:
        """Whether operations proceed without passes, since no gate answers."""
        return self._open

    def enter(self, operation: InFlightOperation) -> None:
        """Request a pass for a numbered operation that needs one, and block until it is granted."""
        group, nbytes = operation.group, operation.bytes
        if (
            self._open
            or nbytes < self.settings.threshold_bytes
            or group.size < 2
            or operation.name not in GATED
        ):
            return
        assert operation.number is not None
        round_ = self._round
        try:
            self._return_completed()
            self._channel().ask(_key_of(group.name), operation.number, nbytes, group.size, self._iterations())
        except (OSError, GateRefusedError) as error:
            self._fail(error, round_)
            return
        except BaseException:
            # Interrupted while waiting: the answer is still to come, and would be taken for that to a later request.
            # Interrupted while connecting, a thread may have no channel yet.
            channel = getattr(self._own, "channel", None)
            if channel is not None:
                channel.shut()
            self._own.round = None
            raise
        self._passes[operation] = round_
        operation.return_pass = self.return_pass

    def return_pass(self, operation: InFlightOperation) -> None:
        """Tell the gate, once, that the operation has ended on this rank."""
        operation.work = None
        if operation not in self._passes:
            return
        # Two threads may notice the end at the same time.
        with self._lock:
            round_ = self._passes.pop(operation, None)
        if round_ is None or self._open or round_ != self._round:
            return
        assert operation.number is not None
        try:
            self._channel().tell_done(_key_of(operation.group.name), operation.number)
        except (OSError, GateRefusedError) as error:
            self._fail(error, round_)

    @property
    def unreturned(self) -> int:
        """Number of passes that have not been returned."""
        return len(self._passes)

    def close(self) -> None:
        """Request no more passes; the gate notices that this rank has left."""
        with self._lock:
            self._open = True
            self._round += 1
        self._closing.set()
        self._shut()

    def forget(self) -> None:
        """In a forked child: close the connections inherited from the parent, which they would keep alive."""
        for channel in list(self._channels):
            channel.close()

    def _shut(self) -> None:
        with self._lock:
            channels = list(self._channels)
            self._channels.clear()
        for channel in channels:
            channel.shut()

    def _return_completed(self) -> None:
        """Return the passes of completed operations; the next request would else count as part of their transfer."""
        for operation in list(self._passes):
            work = operation.work  # another thread may drop it meanwhile
            if work is not None and work.is_completed():
                self.return_pass(operation)

    # -- connections ---------------------------------------------------------------------------------------------------

    def _channel(self) -> GateChannel:
        """The connection of the calling thread."""
        if getattr(self._own, "round", None) != self._round:
            round_ = self._round
            channel = self._new_channel()
            with self._lock:
                self._channels.add(channel)
            self._own.channel, self._own.round = channel, round_
        found: GateChannel = self._own.channel
        return found

    def _new_channel(self) -> GateChannel:
        settings = self.settings
        return GateChannel(settings.address, self._hello, settings.timeout_s, settings.socket_owner)

    def _fail(self, error: Exception, round_: int) -> None:
        """Proceed without passes from now on, on all threads, and start to look for the gate."""
        with self._lock:
            if self._open or round_ != self._round:
                return
            self._open = True
            self._round += 1
            self._passes.clear()
        self._shut()
        reason = "timed out" if isinstance(error, TimeoutError) else str(error) or "connection lost"
        warn_once(
            "gate",
            f"mltcp: the gate at {self.settings.address} does not answer ({reason}); operations proceed without it",
            rank_on_host(self._rank),
        )
        if not isinstance(error, GateRefusedError):
            threading.Thread(target=self._await_return, name="mltcp-gate", daemon=True).start()

    def _await_return(self) -> None:
        """Wait until the gate is back; runs on a thread of its own."""
        while not self._closing.wait(RETRY_S):
            try:
                self._new_channel().close()
            except OSError:
                continue
            except GateRefusedError as error:
                _log.warning("mltcp: the gate refuses this rank: %s", error)
                return
            with self._lock:
                self._open = self._closing.is_set()
            _log.info("mltcp: the gate is back")
            return


@lru_cache(maxsize=1024)
def _key_of(group: str) -> int:
    """The 64-bit key of a process group's name, the same on all of its ranks."""
    return int.from_bytes(hashlib.blake2b(group.encode(), digest_size=8).digest(), "little")
