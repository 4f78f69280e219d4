"""Waits until a condition holds, by polling."""

import time

LIMIT_S = 20.0


def eventually(condition, limit_s=LIMIT_S):
    """Return as soon as `condition` holds; fail after `limit_s`."""
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)
