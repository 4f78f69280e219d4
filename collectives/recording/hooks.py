"""Where other code hangs itself into the life of a job: callbacks at iterations and operations.

A hook that raises disturbs nothing: its error is logged once, with the traceback, and the job goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Generic, TypeVar

Record = TypeVar("Record")
_log = logging.getLogger("mltcp")


class HookList(Generic[Record]):
    """The callbacks of one kind; whoever has a record asks first whether there are any, and makes none if not."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.callbacks: tuple[Callable[[Record], object], ...] = ()
        self._failed: set[int] = set()

    def add(self, callback: Callable[[Record], object]) -> Callable[[], None]:
        """Call `callback` with every record from now on; returns the function that ends it."""
        self.callbacks = (*self.callbacks, callback)

        def remove() -> None:
            self.callbacks = tuple(each for each in self.callbacks if each is not callback)
            self._failed.discard(id(callback))

        return remove

    def __call__(self, record: Record) -> None:
        """Tell all callbacks, whatever they do."""
        for callback in self.callbacks:
            try:
                callback(record)
            except Exception:
                self._report(callback)

    def _report(self, callback: Callable[[Record], object]) -> None:
        if id(callback) not in self._failed:
            self._failed.add(id(callback))
            _log.exception("mltcp: hook %s %r raised; the job goes on without it", self._name, callback)
