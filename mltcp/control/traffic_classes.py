"""Traffic classes by what remains of an iteration: which job's bursts a switch with a queue for each class sends first.

Classes are 0 to 7, the class selectors of DSCP (RFC 2474) and the priorities of IEEE 802.1Q; class 7 goes first. A
burst gets the highest class that the administrator allows, less one for each bound that what is left of its iteration
reaches: the order of least remaining service first (SRPT), as far as so few queues can have it. `traffic_class` is the
twin of mltcp_traffic_class() in mltcp/ebpf/law.bpf.h: change both together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

CLASSES = 8
"""The most classes: the queues of a port of common switches."""

ALIKE = 1.25
"""Jobs whose iterations differ by less than this factor are not parted by a bound: they would swap by chance."""

SHORTEST_S, LONGEST_S = 1e-6, 4000.0
"""The least and the largest bound: whole microseconds in 32 bits."""

USUAL_BOUNDS_S = tuple(0.01 * 4**step for step in range(CLASSES - 1))
"""The bounds while nothing is known of the jobs that are there."""


def traffic_class(left_us: int, bounds_us: Sequence[int], highest: int) -> int:
    """The class of a burst that begins with so much of its iteration left to send, as time alone on the link."""
    return max(0, highest - sum(1 for bound in bounds_us if left_us >= bound))


def bounds_between(sending_s: Iterable[float], classes: int) -> tuple[float, ...]:
    """The bounds that part jobs, rising, in seconds; fewer than `classes`.

    Between jobs whose iterations take unlike times to send lies a bound, the geometric mean of both; where there are
    more jobs than classes, the largest ratios count. Bounds that are left over halve the longest iteration: a job of
    several bursts then moves up as its iteration ends.

    Args:
        sending_s: for each job, how long an iteration sends alone on the link.
        classes: 2 to 8.
    """
    times = sorted(each for each in sending_s if each >= SHORTEST_S)
    if not times:
        return USUAL_BOUNDS_S[: classes - 1]
    gaps = [(after / before, math.sqrt(before * after)) for before, after in pairwise(times)]
    widest = sorted((gap for gap in gaps if gap[0] >= ALIKE), reverse=True)[: classes - 1]
    bounds = [bound for _, bound in widest]
    half = times[-1] / 2
    while len(bounds) < classes - 1 and half >= SHORTEST_S:
        if all(max(half / bound, bound / half) >= ALIKE for bound in bounds):
            bounds.append(half)
        half /= 2
    return tuple(min(bound, LONGEST_S) for bound in sorted(bounds))
