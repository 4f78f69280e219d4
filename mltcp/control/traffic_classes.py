"""Traffic classes by what remains of an iteration: which job's bursts a switch with a queue for each class sends first.

Classes are 0 to 7, the class selectors of DSCP (RFC 2474) and the priorities of IEEE 802.1Q; class 7 goes first. A
burst gets the highest class that the administrator allows, less one for each bound that what is left of its iteration
reaches: the order of least remaining service first (SRPT), as far as so few queues can have it. What is left is counted
in bytes: jobs of a host share its link, and the time that a job takes itself is longer than the link's where it waits
for others. `traffic_class` is the twin of mltcp_traffic_class() in mltcp/ebpf/law.bpf.h: change both together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

CLASSES = 8
"""The most classes: the queues of a port of common switches."""

ALIKE = 1.25
"""Jobs whose iterations differ by less than this factor are not parted by a bound: they would swap by chance."""

USUAL_BOUNDS_BYTES = tuple(1e6 * 4**step for step in range(CLASSES - 1))
"""The bounds while nothing is known of the jobs that are there."""


def traffic_class(left_kib: int, bounds_kib: Sequence[int], highest: int) -> int:
    """The class of a burst that begins with so much of its iteration left to send, in units of 1,024 bytes."""
    return max(0, highest - sum(1 for bound in bounds_kib if left_kib >= bound))


def bounds_between(sizes: Iterable[float], classes: int) -> tuple[float, ...]:
    """The bounds that part jobs, rising, in the unit of `sizes`, bytes or time on a link; fewer than `classes`.

    Between jobs whose iterations are of unlike size lies a bound, the geometric mean of both; where there are
    more jobs than classes, the largest ratios count. Bounds that are left over halve the largest iteration: a job of
    several bursts then moves up as its iteration ends.

    Args:
        sizes: for each job, what an iteration sends.
        classes: 2 to 8.
    """
    known = sorted(each for each in sizes if each > 0)
    if not known:
        return USUAL_BOUNDS_BYTES[: classes - 1]
    gaps = [(after / before, math.sqrt(before * after)) for before, after in pairwise(known)]
    widest = sorted((gap for gap in gaps if gap[0] >= ALIKE), reverse=True)[: classes - 1]
    bounds = [bound for _, bound in widest]
    half = known[-1] / 2
    while len(bounds) < classes - 1:
        if all(max(half / bound, bound / half) >= ALIKE for bound in bounds):
            bounds.append(half)
        half /= 2
    return tuple(sorted(bounds))
