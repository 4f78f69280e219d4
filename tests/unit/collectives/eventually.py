"""Waits until something has become so, for things that tell nobody when they do."""

import time

LIMIT_S = 20.0


def eventually(condition, limit_s=LIMIT_S):
    """Return as soon as it holds; fail if it does not within the limit."""
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)
