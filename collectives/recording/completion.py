"""Notes when asynchronous operations complete, on a thread that waits for them in turn.

The completion of a Gloo operation is signalled only to threads that wait for it. A callback on its future would run
before these are woken, and so delay every operation. An operation that completes while the thread sleeps is noticed up
to `LINGER_S` late, and one that completes before one that was added earlier up to `SLICE_S` late.
"""

from __future__ import annotations

import ctypes
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

_RELAXED = 2  # cudaStreamCaptureModeRelaxed
_RUNTIME = "libcudart.so"


def relax_capture_mode() -> None:
    """Make calls of this thread harmless to captures on other threads, for as long as it lives.

    While a graph is captured in CUDA's default mode, asking on any thread whether an event has occurred would fail, and
    would end the capture with an error (cudaThreadExchangeStreamCaptureMode in CUDA's documentation). Has no effect
    where this process has no CUDA runtime.
    """
    path = _loaded_runtime()
    if path is not None:
        with suppress(OSError, AttributeError):
            ctypes.CDLL(path).cudaThreadExchangeStreamCaptureMode(ctypes.byref(ctypes.c_int(_RELAXED)))


def _loaded_runtime() -> str | None:
    """The file of the CUDA runtime that torch has loaded; another copy of it would not know torch's threads."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            path = line.rstrip("\n").partition("/")
            if path[1] and _RUNTIME in path[2].rpartition("/")[2]:
                return path[1] + path[2]
    return None


# -- completion ---------------------------------------------------------------------------------


_log = logging.getLogger("mltcp")

LINGER_S = 0.0005
"""The idle thread polls at this interval before it blocks, because waking it costs the caller microseconds."""

SLICE_S = 0.1
"""The longest wait for one work, after which the others are looked at."""

_LINGERS = 8
_POLL_S = 0.001
_CLOSE_S = 2.0
_LONGEST_TASK_S = 5.0
_SLICE = timedelta(seconds=SLICE_S)


class AnyWork(Protocol):
    """The part of torch's Work that is used here."""

    def wait(self, timeout: timedelta = ...) -> bool:
        """Block until the operation is complete; raises its error, or one if the time is over."""

    def is_completed(self) -> bool:
        """Whether the operation is complete."""


Done = Callable[[int | None], None]
Task = Callable[[], None]


@dataclass(frozen=True, slots=True)
class _Watched:
    """A work, and what is called with the time of its completion.

    Attributes:
        by_polling: its wait() does not block until it is complete.
    """

    work: AnyWork
    done: Done
    by_polling: bool

    def completes_soon(self) -> bool:
        """Wait for its completion, for at most `SLICE_S`; whether it is complete, which has then been noted."""
        began_s = time.monotonic()
        if not self.by_polling:
            try:
                self.work.wait(_SLICE)
            except Exception:
                # Its error, or the end of the slice: only a complete work tells which.
                pass
            else:
                self.done(time.monotonic_ns())
                return True
        if self.is_complete():
            return True
        if time.monotonic() - began_s < _POLL_S:
            time.sleep(_POLL_S)
        return False

    def is_complete(self) -> bool:
        """Whether it is complete, which has then been noted."""
        if not self.work.is_completed():
            return False
        now_ns: int | None = time.monotonic_ns()
        if not self.by_polling:
            try:
                self.work.wait()
            except Exception:
                # The caller of the operation gets this error from its own wait().
                now_ns = None
        self.done(now_ns)
        return True


class CompletionThread:
    """Waits for works in the order in which they were added, and runs small tasks between them.

    A work that takes long does not hold up those behind it, nor keep their tensors alive. A task waits for all works
    before it. The thread is a daemon and starts with the first item; the owner must call `close` before the interpreter
    ends.
    """

    def __init__(self) -> None:
        self._items: deque[_Watched | Task | None] = deque()
        self._thread: threading.Thread | None = None
        self._start = threading.Lock()
        self._asleep = False
        self._wake = threading.Semaphore(0)
        self._ends_s = float("inf")
        self._polls_cuda = False

    def watch(self, work: AnyWork, done: Done, by_polling: bool = False) -> None:
        """Call `done` with the time of completion, or None if the work failed.

        `by_polling` is for works whose wait() does not block until they are complete (NCCL's).
        """
        self._items.append(_Watched(work, done, by_polling))
        if self._asleep or self._thread is None:
            self._wake_up()

    def run(self, task: Task) -> None:
        """Run `task` when all works added so far are complete; its errors are logged."""
        self._items.append(task)
        if self._asleep or self._thread is None:
            self._wake_up()

    def drain(self, timeout_s: float) -> bool:
        """Wait until all items added so far are done; False if that takes longer than `timeout_s`."""
        if self._thread is None:
            return True
        reached = threading.Event()
        self.run(reached.set)
        return reached.wait(timeout_s)

    def is_current_thread(self) -> bool:
        """Whether the caller runs on this thread, which cannot wait for itself."""
        return threading.current_thread() is self._thread

    def close(self) -> None:
        """Finish the pending items, for at most two seconds, and end the thread; it starts again with the next item.

        Works that are not complete by then never will be: a rank that they need has failed.
        """
        thread = self._thread
        if thread is not None and thread.is_alive():
            self._ends_s = time.monotonic() + _CLOSE_S
            self._items.append(None)
            self._wake.release()
            thread.join(_CLOSE_S + _LONGEST_TASK_S)
            self._ends_s = float("inf")
        self._thread = None

    def forget(self) -> None:
        """In a forked child, which has no such thread: drop the parent's items."""
        self._thread = None
        self._items = deque()

    def _wake_up(self) -> None:
        self._asleep = False
        self._wake.release()
        with self._start:
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="mltcp-completion", daemon=True)
                self._thread.start()

    # -- on the thread -------------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        pending: deque[_Watched | Task | None] = deque()
        self._polls_cuda = False
        while True:
            if not pending:
                if not self._items:
                    self._pause()
                    continue
                pending.append(self._next())
            if pending[0] is None or time.monotonic() > self._ends_s:
                return
            if _settles(pending[0], _Watched.completes_soon):
                pending.popleft()
            else:
                self._look_at_others(pending)

    def _next(self) -> _Watched | Task | None:
        item = self._items.popleft()
        if isinstance(item, _Watched) and item.by_polling and not self._polls_cuda:
            self._polls_cuda = True
            relax_capture_mode()
        return item

    def _look_at_others(self, pending: deque[_Watched | Task | None]) -> None:
        """Remove the works that have completed before the first one, and the tasks that wait for none of the rest."""
        while self._items:
            pending.append(self._next())
        left: deque[_Watched | Task | None] = deque()
        while pending:
            item = pending.popleft()
            if item is None or (left and not isinstance(item, _Watched)):
                left.append(item)
                continue
            if not _settles(item, _Watched.is_complete):
                left.append(item)
        pending.extend(left)

    def _pause(self) -> None:
        for _ in range(_LINGERS):
            time.sleep(LINGER_S)
            if self._items:
                return
        self._asleep = True
        # An item that was added before the flag was visible has not woken this thread.
        if self._items:
            self._asleep = False
        else:
            self._wake.acquire()


def _settles(item: _Watched | Task, look: Callable[[_Watched], bool]) -> bool:
    """Whether an item is done: a work that `look` finds complete, or a task, which is run. Errors are logged."""
    try:
        if isinstance(item, _Watched):
            return look(item)
        item()
    except Exception:
        _log.exception("mltcp: a task on the completion thread failed")
    return True
