"""Turns in a parameter server, first come first served: to apply a gradient, and to send weights."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from statistics import median
from threading import Condition, Lock

from mltcp.pacing.tcp_info import set_unsent_limit, tcp_sockets

MOST_UNSENT_BYTES = 128 << 10
FEWEST_UNSENT_BYTES = 16 << 10
_UNSENT_PARTS = 32

PATIENCE = 2
"""Transfers keep others waiting for no longer than so many times the usual time of one."""

_KEPT = 15
_FEWEST = 3


class QueuedLock:
    """Mutual exclusion, first come first served; a context manager."""

    def __init__(self) -> None:
        self._guard = Lock()
        self._waiting: deque[Lock] = deque()
        self._taken = False

    def __enter__(self) -> None:
        with self._guard:
            if not self._taken:
                self._taken = True
                return
            gate = Lock()
            gate.acquire()
            self._waiting.append(gate)
        gate.acquire()

    def __exit__(self, *_: object) -> None:
        with self._guard:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._taken = False


@dataclass(frozen=True, eq=False)
class _Transfer:
    """Weights for a worker; one that has joined again may still have a transfer on a connection that is lost."""

    worker: int


class SendingTurns:
    """Lets the weights for one worker leave after those for another, instead of all at once.

    Transfers of one size that share the server's link all end when the last one does; one after the other, the first
    worker computes on after a transfer's own time, and none has its weights later (the queueing model's links, first
    come first served: Lin et al., Section III-C, Equation 2). Congestion control does not bring that about at a
    host's own NIC, where the kernel sends a few packets of each connection in turn, whatever its window.

    A transfer keeps others waiting for `PATIENCE` times the median of the last ones at most, since its worker may have
    died, or be behind a slow link. Such a worker's transfers go beside the others until one is as short as theirs.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._queue: deque[_Transfer] = deque()
        """The first one sends, the others wait for their turn."""
        self._began_s = 0.0
        self._took_s: deque[float] = deque(maxlen=_KEPT)
        self._slow: set[int] = set()

    @contextmanager
    def turn(self, worker: int) -> Iterator[None]:
        """Wait for the worker's turn, and have it until the context ends."""
        transfer = _Transfer(worker)
        self._wait(transfer)
        began_s = time.monotonic()
        sent = False
        try:
            yield
            sent = True
        finally:
            self._end(transfer, time.monotonic() - began_s if sent else None)

    @property
    def patience_s(self) -> float:
        """For how long a transfer keeps others waiting; 0 until some have been seen."""
        return PATIENCE * median(self._took_s) if len(self._took_s) >= _FEWEST else 0.0

    def _wait(self, transfer: _Transfer) -> None:
        with self._changed:
            if transfer.worker in self._slow:
                return
            self._queue.append(transfer)
            if self._queue[0] is transfer:
                self._began_s = time.monotonic()
            while transfer in self._queue and self._queue[0] is not transfer:
                left_s = self._began_s + self.patience_s - time.monotonic()
                if left_s > 0:
                    self._changed.wait(left_s)
                else:
                    self._slow.add(self._queue.popleft().worker)
                    self._next()

    def _end(self, transfer: _Transfer, took_s: float | None) -> None:
        with self._changed:
            if took_s is not None:
                if self.patience_s == 0 or took_s <= self.patience_s:
                    self._slow.discard(transfer.worker)
                self._took_s.append(took_s)
            if transfer in self._queue:
                self._queue.remove(transfer)
                self._next()

    def _next(self) -> None:
        """The turn passes to the first of the queue; its time begins, even before its thread runs."""
        self._began_s = time.monotonic()
        self._changed.notify_all()


def limit_unsent(message_bytes: int) -> None:
    """Have each connection of this process hold few bytes that it has not sent.

    So a message that the kernel has accepted is one that has left, but for a small part, and not one that fits the
    connection's buffer.
    """
    limit = min(MOST_UNSENT_BYTES, max(FEWEST_UNSENT_BYTES, message_bytes // _UNSENT_PARTS))
    for descriptor in tcp_sockets():
        with suppress(OSError):  # it is closed meanwhile
            set_unsent_limit(descriptor, limit)
