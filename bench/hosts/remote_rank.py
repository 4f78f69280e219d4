"""A rank on another host, as the launcher sees it: its connection and its process."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from bench.workloads.rank import RankLost

_END_S = 15.0
_END = object()


class RemoteRank:
    """The messages of a rank on another host, in the order of their arrival, and its end.

    It stands for both the connection and the process of a `LaunchedRank`.

    Args:
        say: sends a message to the rank.
        stop: has its agent kill it.
    """

    pid: int | None = None

    def __init__(self, say: Callable[[Any], None], stop: Callable[[], None]) -> None:
        self._say, self._stop = say, stop
        self._messages: deque[Any] = deque()
        # Counts the messages, so that the descriptor is readable as long as there are any.
        self._ready = os.eventfd(0, os.EFD_SEMAPHORE | os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._status: int | None = None

    # -- the connection ----------------------------------------------------------------------------------------------

    def fileno(self) -> int:
        """The descriptor that is readable when there is a message."""
        return self._ready

    def send(self, message: Any) -> None:
        """Send a message to the rank."""
        self._say(message)

    def recv(self) -> Any:
        """The next message of the rank. Raises EOFError at its end."""
        os.eventfd_read(self._ready)
        message = self._messages.popleft()
        if message is _END:
            self._deliver(_END)
            raise EOFError
        return message

    def close(self) -> None:
        """Close the descriptor."""
        with self._lock:
            descriptor, self._ready = self._ready, -1
        with suppress(OSError):
            os.close(descriptor)

    # -- the process -------------------------------------------------------------------------------------------------

    @property
    def exitcode(self) -> int | None:
        """The exit status, or the negative number of the signal that killed it; None while it runs or is lost."""
        return self._status

    def kill(self) -> None:
        """Have it killed, unless it has ended."""
        if not self._ended.is_set():
            self._stop()

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended and all that was made for it is removed, for no longer than the time."""
        self._ended.wait(_END_S if timeout is None else timeout)

    # -- the agent's connection --------------------------------------------------------------------------------------

    def said(self, message: Any) -> None:
        """Take a message of the rank; called by the reader of its agent's connection."""
        self._deliver(message)

    def ended(self, status: int) -> None:
        """Take its end."""
        self._status = status
        self._ended.set()
        self._deliver(_END)

    def lost(self, cause: str) -> None:
        """Take the loss of its host."""
        self._ended.set()
        self._deliver(RankLost(cause))

    def _deliver(self, message: Any) -> None:
        with self._lock:
            if self._ready >= 0:
                self._messages.append(message)
                os.eventfd_write(self._ready, 1)
