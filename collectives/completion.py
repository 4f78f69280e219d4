"""When asynchronous operations complete, noticed by a thread that waits for them in turn.

torch tells no one when a Gloo operation completes but those who wait for it, and a callback on its future would run
before the waiters are woken, which would make every operation later. So one thread of ours waits too.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Protocol

_log = logging.getLogger("mltcp")
_POLL_S = 0.001
_LEAVE_S = 2.0


class AnyWork(Protocol):
    """As much of torch's Work as is needed here."""

    def wait(self) -> bool:
        """Block until it is complete; raises if it failed."""

    def is_completed(self) -> bool:
        """Whether it is complete."""


@dataclass(frozen=True, slots=True)
class _Watched:
    work: AnyWork
    by_polling: bool
    done: Callable[[int | None], None]


class CompletionThread:
    """Waits for works in the order in which they are given, and runs small tasks between them.

    The thread starts with the first item, is a daemon, and is asked to leave at the interpreter's exit.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[_Watched | Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._start = threading.Lock()

    def watch(self, work: AnyWork, done: Callable[[int | None], None], by_polling: bool = False) -> None:
        """Call `done` with the time of completion, or None if the work failed.

        `by_polling` is for works whose wait() does not block until they are complete (NCCL's).
        """
        self._put(_Watched(work, by_polling, done))

    def run(self, task: Callable[[], None]) -> None:
        """Run `task` when all works given so far are complete; what it raises is logged."""
        self._put(task)

    def drain(self, timeout_s: float) -> bool:
        """Wait until everything given so far is done; False if that takes longer than `timeout_s`."""
        if self._thread is None:
            return True
        reached = threading.Event()
        self._put(reached.set)
        return reached.wait(timeout_s)

    def is_current_thread(self) -> bool:
        """Whether the caller runs on this very thread, which cannot wait for itself."""
        return threading.current_thread() is self._thread

    def close(self) -> None:
        """Finish what was given, for two seconds at most; the thread starts anew with the next item."""
        thread, self._thread = self._thread, None
        if thread is not None and thread.is_alive():
            self._queue.put(None)
            thread.join(_LEAVE_S)

    def forget(self) -> None:
        """In a forked child: there is no thread, and what it was to do is the parent's."""
        self._thread = None
        self._queue = SimpleQueue()
        atexit.unregister(self.close)

    def _put(self, item: _Watched | Callable[[], None]) -> None:
        self._queue.put(item)
        if self._thread is None:
            self._launch()

    def _launch(self) -> None:
        with self._start:
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="mltcp-completion", daemon=True)
                self._thread.start()
                # A thread that is inside torch when the interpreter ends would take the process down.
                atexit.unregister(self.close)
                atexit.register(self.close)

    def _loop(self) -> None:
        while (item := self._queue.get()) is not None:
            try:
                if isinstance(item, _Watched):
                    item.done(_completion(item))
                else:
                    item()
            except Exception:
                _log.exception("mltcp: a task on the completion thread failed")
            # Not to keep a work, and with it tensors, alive until the next item comes.
            del item


def _completion(watched: _Watched) -> int | None:
    try:
        if watched.by_polling:
            while not watched.work.is_completed():
                time.sleep(_POLL_S)
        else:
            watched.work.wait()
    except Exception:
        # The one who asked for the operation gets this error from its own wait().
        return None
    return time.monotonic_ns()
