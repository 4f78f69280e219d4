"""When asynchronous operations complete, noticed by a thread that waits for them in turn.

torch tells no one when a Gloo operation completes but those who wait for it, and a callback on its future would run
before the waiters are woken, which would make every operation later. So one thread of ours waits too. What completes
before the thread comes to look is noticed up to `LINGER_S` late.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

_log = logging.getLogger("mltcp")

LINGER_S = 0.0005
"""The thread looks for more this often before it sleeps: to wake it costs the caller microseconds."""

_LINGERS = 8
_POLL_S = 0.001
_LEAVE_S = 2.0


class AnyWork(Protocol):
    """As much of torch's Work as is needed here."""

    def wait(self) -> bool:
        """Block until it is complete; raises if it failed."""

    def is_completed(self) -> bool:
        """Whether it is complete."""


Done = Callable[[int | None], None]
Task = Callable[[], None]


class CompletionThread:
    """Waits for works in the order in which they are given, and runs small tasks between them.

    The thread starts with the first item and is a daemon; whoever made this calls `close` before the interpreter ends.
    """

    def __init__(self) -> None:
        self._items: deque[tuple[AnyWork, Done, bool] | Task | None] = deque()
        self._thread: threading.Thread | None = None
        self._start = threading.Lock()
        self._asleep = False
        self._wake = threading.Semaphore(0)

    def watch(self, work: AnyWork, done: Done, by_polling: bool = False) -> None:
        """Call `done` with the time of completion, or None if the work failed.

        `by_polling` is for works whose wait() does not block until they are complete (NCCL's).
        """
        self._items.append((work, done, by_polling))
        if self._asleep or self._thread is None:
            self._rouse()

    def run(self, task: Task) -> None:
        """Run `task` when all works given so far are complete; what it raises is logged."""
        self._items.append(task)
        if self._asleep or self._thread is None:
            self._rouse()

    def drain(self, timeout_s: float) -> bool:
        """Wait until everything given so far is done; False if that takes longer than `timeout_s`."""
        if self._thread is None:
            return True
        reached = threading.Event()
        self.run(reached.set)
        return reached.wait(timeout_s)

    def is_current_thread(self) -> bool:
        """Whether the caller runs on this very thread, which cannot wait for itself."""
        return threading.current_thread() is self._thread

    def close(self) -> None:
        """Finish what was given, for two seconds at most; the thread starts anew with the next item."""
        thread = self._thread
        if thread is not None and thread.is_alive():
            self._items.append(None)
            self._wake.release()
            thread.join(_LEAVE_S)
        self._thread = None

    def forget(self) -> None:
        """In a forked child: there is no thread, and what it was to do is the parent's."""
        self._thread = None
        self._items = deque()

    def _rouse(self) -> None:
        self._asleep = False
        self._wake.release()
        with self._start:
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="mltcp-completion", daemon=True)
                self._thread.start()

    def _loop(self) -> None:
        while True:
            while self._items:
                item = self._items.popleft()
                if item is None:
                    return
                _see_to(item)
                # Not to keep a work, and with it tensors, alive until the next item comes.
                del item
            self._pause()

    def _pause(self) -> None:
        for _ in range(_LINGERS):
            time.sleep(LINGER_S)
            if self._items:
                return
        self._asleep = True
        # Whoever gave something before he could see that flag has not woken this thread.
        if self._items:
            self._asleep = False
        else:
            self._wake.acquire()


def _see_to(item: tuple[AnyWork, Done, bool] | Task) -> None:
    try:
        if isinstance(item, tuple):
            work, done, by_polling = item
            done(_completion(work, by_polling))
        else:
            item()
    except Exception:
        _log.exception("mltcp: a task on the completion thread failed")


def _completion(work: AnyWork, by_polling: bool) -> int | None:
    try:
        if by_polling:
            while not work.is_completed():
                time.sleep(_POLL_S)
        else:
            work.wait()
    except Exception:
        # The one who asked for the operation gets this error from its own wait().
        return None
    return time.monotonic_ns()
