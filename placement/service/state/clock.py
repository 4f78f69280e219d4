"""The service's clock: that of the day when the service began, and from then on one that never jumps."""

from __future__ import annotations

import time


class Clock:
    """Nanoseconds since the epoch that only go forward, whatever is done to the host's clock."""

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def now_ns(self) -> int:
        """Now."""
        return time.monotonic_ns() + self._offset_ns
