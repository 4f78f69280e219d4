"""Notes when asynchronous operations complete, on a thread that waits for them in turn.

The completion of a Gloo operation is signalled only to threads that wait for it. A callback on its future would run
before these are woken, and so delay every operation. An operation that completes while the thread sleeps is noticed up
to `LINGER_S` late.
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
"""The idle thread polls at this interval before it blocks, because waking it costs the caller microseconds."""

_LINGERS = 8
_POLL_S = 0.001
_JOIN_S = 2.0


class AnyWork(Protocol):
    """The part of torch's Work that is used here."""

    def wait(self) -> bool:
        """Block until the operation is complete; raises its error."""

    def is_completed(self) -> bool:
        """Whether the operation is complete."""


Done = Callable[[int | None], None]
Task = Callable[[], None]


class CompletionThread:
    """Waits for works in the order in which they were added, and runs small tasks between them.

    The thread is a daemon and starts with the first item; the owner must call `close` before the interpreter ends.
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
        """Finish the pending items, for at most two seconds; the thread starts again with the next item."""
        thread = self._thread
        if thread is not None and thread.is_alive():
            self._items.append(None)
            self._wake.release()
            thread.join(_JOIN_S)
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

    def _loop(self) -> None:
        while True:
            while self._items:
                item = self._items.popleft()
                if item is None:
                    return
                _process(item)
                # Do not keep the work, and with it tensors, alive until the next item.
                del item
            self._pause()

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


def _process(item: tuple[AnyWork, Done, bool] | Task) -> None:
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
        # The caller of the operation gets this error from its own wait().
        return None
    return time.monotonic_ns()
