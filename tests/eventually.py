"""Waits until a condition holds, for events of which nothing gives notice."""

import time

LIMIT_S = 60.0
_INTERVAL_S = 0.005


def eventually(condition, limit_s=LIMIT_S):
    """Return the first true value of `condition()`; fail if there is none within the limit."""
    deadline_s = time.monotonic() + limit_s
    while not (value := condition()):
        assert time.monotonic() < deadline_s, f"not within {limit_s} s"
        time.sleep(_INTERVAL_S)
    return value
