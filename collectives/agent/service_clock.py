"""Translates between the placement service's clock and this host's CLOCK_MONOTONIC, which does not jump."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns

QUESTIONS = 8
"""Requests per measurement."""

RENEW_S = 30.0
"""Interval between measurements. Two clocks of 50 parts in a million drift apart by 3 ms in this time."""


class ServiceClock:
    """The offset between the two clocks, by the fastest request: half of its round trip bounds the error."""

    def __init__(self, now_ns: Callable[[], int] = monotonic_ns) -> None:
        self._now_ns = now_ns
        self._offset_ns = 0
        self._renewed_ns: int | None = None
        self.error_ns = 0

    @property
    def is_due(self) -> bool:
        """Whether the offset has to be measured (again)."""
        return self._renewed_ns is None or self._now_ns() - self._renewed_ns > RENEW_S * 1e9

    def renew(self, ask_ns: Callable[[], int]) -> None:
        """Measure the offset; `ask_ns` returns the service's clock. If it raises, the offset stays as it was."""
        answers = []
        for _ in range(QUESTIONS):
            before_ns = self._now_ns()
            answer_ns = ask_ns()
            after_ns = self._now_ns()
            answers.append((after_ns - before_ns, answer_ns - (before_ns + after_ns) // 2))
        round_trip_ns, self._offset_ns = min(answers)
        self.error_ns = round_trip_ns // 2
        self._renewed_ns = self._now_ns()

    def monotonic_at(self, service_ns: int) -> int:
        """This host's CLOCK_MONOTONIC at a time on the service's clock."""
        return service_ns - self._offset_ns

    def at(self, monotonic_ns: int) -> int:
        """The service's clock at a time on this host's CLOCK_MONOTONIC."""
        return monotonic_ns + self._offset_ns
