"""Lists of callbacks for iterations and operations.

The error of a callback is logged once, with the traceback, and does not affect the job.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Generic, TypeVar

Record = TypeVar("Record")
_log = logging.getLogger("mltcp")


class HookList(Generic[Record]):
    """The callbacks of one kind. Callers check `callbacks` first, and make no record if it is empty.

    `on_change` is called when a callback has been added or removed.
    """

    def __init__(self, name: str, on_change: Callable[[], object] | None = None) -> None:
        self._name = name
        self._on_change = on_change
        self.callbacks: tuple[Callable[[Record], object], ...] = ()
        self._failed: set[int] = set()

    def add(self, callback: Callable[[Record], object]) -> Callable[[], None]:
        """Call `callback` with every record from now on; returns a function that removes it."""
        self._set((*self.callbacks, callback))

        def remove() -> None:
            self._set(tuple(each for each in self.callbacks if each is not callback))
            self._failed.discard(id(callback))

        return remove

    def _set(self, callbacks: tuple[Callable[[Record], object], ...]) -> None:
        self.callbacks = callbacks
        if self._on_change is not None:
            self._on_change()

    def __call__(self, record: Record) -> None:
        """Call all callbacks."""
        for callback in self.callbacks:
            try:
                callback(record)
            except Exception:
                self._report(callback)

    def _report(self, callback: Callable[[Record], object]) -> None:
        if id(callback) not in self._failed:
            self._failed.add(id(callback))
            _log.exception("mltcp: hook %s %r raised an error; the job continues", self._name, callback)
