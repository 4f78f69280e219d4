"""The line rate of an interface: a given one, or the one that it reports."""

from __future__ import annotations

from pathlib import Path

UNKNOWN_LINE_RATE_BPS = 100_000_000_000
"""The rate of an interface that does not report one. If it is too high, marks correct it; if too low, nothing would."""


class LineRate:
    """The line rate of an interface of this network namespace.

    Args:
        interface: its name.
        given_bps: the rate; None: as the interface reports it.
    """

    def __init__(self, interface: str, given_bps: int | None) -> None:
        self._interface, self._given_bps = interface, given_bps
        self._last_bps: int | None = None

    @property
    def bps(self) -> int:
        """The rate at the last `refresh`; before one, the present rate."""
        # Not read each time: it takes long with some network cards, and is needed for every job in every interval.
        return self._last_bps or self._find()

    def refresh(self) -> bool:
        """Read it again, such as after a link was negotiated anew; whether it is another one."""
        before, self._last_bps = self._last_bps, self._find()
        return self._last_bps != before

    def _find(self) -> int:
        reported_bps = self._given_bps or _reported_bps(self._interface)
        return reported_bps or self._last_bps or UNKNOWN_LINE_RATE_BPS


def _reported_bps(interface: str) -> int | None:
    """The line rate that an interface reports; None if it reports none."""
    try:
        megabits = int(Path(f"/sys/class/net/{interface}/speed").read_text())
    except (OSError, ValueError):
        return None
    return megabits * 1_000_000 if megabits > 0 else None
