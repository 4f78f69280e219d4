"""The service's clock."""

from __future__ import annotations

import time


class Clock:
    """A monotonic clock in nanoseconds since the epoch.

    It is set from the host's clock when it is created, and later changes of the host's clock do not affect it.
    """

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def now_ns(self) -> int:
        """The present time."""
        return time.monotonic_ns() + self._offset_ns
