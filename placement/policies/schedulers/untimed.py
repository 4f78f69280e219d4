"""The part of a scheduler that has neither leases nor timers."""

from __future__ import annotations

from collections.abc import Sequence

from placement.policies.schedulers.scheduler import JobView


class Untimed:
    """Base class of schedulers that only decide when jobs arrive or end."""

    @property
    def lease_ns(self) -> int | None:
        """No leases."""
        return None

    def next_ns(self, now_ns: int, jobs: Sequence[JobView]) -> int | None:
        """No timers."""
        return None
