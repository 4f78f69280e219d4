"""The line rate of an interface: a given one, or the one that its driver reports."""

from __future__ import annotations

import logging

from mltcp.pacing.device_features import LinkSpeed, link_speed

UNKNOWN_LINE_RATE_BPS = 100_000_000_000
"""The rate of an interface that does not report one. If it is too high, marks correct it; if too low, nothing would."""

_log = logging.getLogger("mltcp.daemon")


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
        return self._last_bps or self._rate_of(self._reported())

    def refresh(self) -> bool:
        """Read it again, such as after a link was negotiated anew; whether it is another one."""
        reported = self._reported()
        before, self._last_bps = self._last_bps, self._rate_of(reported)
        if self._last_bps != before and not self._given_bps and reported.doubt:
            _log.warning(
                "%s: a line rate of %.0f Mbit/s is assumed, because %s: name the right one by pacing.line_rate",
                self._interface,
                self._last_bps / 1e6,
                reported.doubt,
            )
        return self._last_bps != before

    def _reported(self) -> LinkSpeed:
        return LinkSpeed(None, "") if self._given_bps else link_speed(self._interface)

    def _rate_of(self, reported: LinkSpeed) -> int:
        return self._given_bps or reported.bps or self._last_bps or UNKNOWN_LINE_RATE_BPS
