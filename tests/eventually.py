"""Waits until a condition holds, for events of which nothing gives notice."""

import time

LIMIT_S = 120.0
"""Long, since a busy machine may have to compile meanwhile; a wait ends as soon as its condition holds."""

_SHORTEST_S, _LONGEST_S, _LATE = 0.005, 0.1, 1 / 20


def eventually(condition, limit_s=LIMIT_S):
    """Return the first true value of `condition()`; fail if there is none within the limit.

    It is looked at ever less often, so that what is waited for has the processors; the wait is longer by a twentieth.
    """
    began_s = time.monotonic()
    while not (value := condition()):
        waited_s = time.monotonic() - began_s
        assert waited_s < limit_s, f"not within {limit_s} s"
        time.sleep(min(_LONGEST_S, max(_SHORTEST_S, _LATE * waited_s)))
    return value
