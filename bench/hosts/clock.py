"""The offset of a host's clocks from those of the launcher, by round trips to its agent."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from bench.hosts.messages import Clock

_ROUND_TRIPS = 12


@dataclass(frozen=True)
class ClockOffset:
    """How far a host's clocks are ahead of the launcher's; half of the round trip bounds the error.

    Attributes:
        monotonic_s: of CLOCK_MONOTONIC.
        realtime_s: of CLOCK_REALTIME.
        round_trip_s: the shortest round trip, from which both were taken.
    """

    monotonic_s: float
    realtime_s: float
    round_trip_s: float


def measured_offset(read: Callable[[], Clock], round_trips: int = _ROUND_TRIPS) -> ClockOffset:
    """The offset by the shortest of some round trips: the clock is taken to have been read in its middle."""
    found = []
    for _ in range(round_trips):
        begin_ns, begin_real_ns = time.monotonic_ns(), time.time_ns()
        clock = read()
        trip_ns = time.monotonic_ns() - begin_ns
        ahead_ns = clock.monotonic_ns - begin_ns - trip_ns / 2
        real_ns = clock.realtime_ns - begin_real_ns - trip_ns / 2
        found.append(ClockOffset(ahead_ns / 1e9, real_ns / 1e9, trip_ns / 1e9))
    return min(found, key=lambda each: each.round_trip_s)
