"""Reads counters together with the time, for the rates of what goes on meanwhile."""

import time
from dataclasses import dataclass
from typing import Any

_AT_ONCE_S = 0.02
_TRIES = 20


@dataclass(frozen=True)
class Moment:
    """What was read, between two times of CLOCK_MONOTONIC in s."""

    before_s: float
    after_s: float
    found: Any


def at_a_moment(read):
    """What `read()` returns, with the time; again if this process was held up meanwhile, so that nobody knows when."""
    for _ in range(_TRIES):
        before_s = time.monotonic()
        moment = Moment(before_s, found=read(), after_s=time.monotonic())
        if moment.after_s - moment.before_s < _AT_ONCE_S:
            break
    return moment


def most_between(first, last):
    """The longest time in s that can have passed between two moments."""
    return last.after_s - first.before_s
