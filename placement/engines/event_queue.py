"""The queue between the threads of an engine, which watch its jobs, and its user, who polls."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from contextlib import suppress

from placement.engines.engine import EngineEvent


class EventQueue:
    """Events in the order in which any threads put them."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[EngineEvent] = queue.SimpleQueue()

    def put(self, event: EngineEvent) -> None:
        """Add an event."""
        self._queue.put(event)

    def take(self, timeout_s: float) -> Sequence[EngineEvent]:
        """All events since the last call; waits up to `timeout_s` for the first one."""
        events: list[EngineEvent] = []
        with suppress(queue.Empty):
            events.append(self._queue.get(timeout=timeout_s) if timeout_s > 0 else self._queue.get_nowait())
            while True:
                events.append(self._queue.get_nowait())
        return events
