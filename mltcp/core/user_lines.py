"""Limits how many lines of a log a user can cause; what is left out is counted, and the count is logged.

A record says whose it is by ``extra=of_user(NAME)``. Records without that are not limited.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping

BURST = 20
"""Lines of a user that are logged at once; later ones as time passes."""

PER_S = 1.0
"""Lines of a user in each second after that."""

BURST_OF_ALL, PER_S_OF_ALL = 200, 10.0
"""The same for all users together."""

TELL_EVERY_S = 10.0
"""How often it is logged what was left out."""

MOST_NAMED = 8
"""Users whose lines left out are told by name; those of others are told together."""

MOST_KEPT = 1000


def of_user(name: str) -> Mapping[str, str]:
    """The `extra` of a record that a user has caused; root is not limited."""
    return {} if name == "root" else {"user": name}


class _Allowance:
    def __init__(self, burst: float, per_s: float) -> None:
        self._burst, self._per_s = burst, per_s
        self._left, self._at_s = burst, 0.0

    def refill(self, now_s: float) -> bool:
        """Add what is due since the last call; whether there is a line."""
        self._left = min(self._burst, self._left + (now_s - self._at_s) * self._per_s)
        self._at_s = now_s
        return self._left >= 1

    def take(self) -> None:
        self._left -= 1


class UserLines(logging.Filter):
    """A filter of a logger.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._all = _Allowance(BURST_OF_ALL, PER_S_OF_ALL)
        self._users: dict[str, _Allowance] = {}
        self._left_out: Counter[str] = Counter()
        self._told_s = clock()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is logged."""
        user = getattr(record, "user", None)
        if user is None:
            return True
        now_s = self._clock()
        own = self._users.pop(user, None) or _Allowance(BURST, PER_S)
        self._users[user] = own
        if len(self._users) > MOST_KEPT:
            del self._users[next(iter(self._users))]
        if not (own.refill(now_s) and self._all.refill(now_s)):
            self._left_out[user] += 1
            return False
        own.take()
        self._all.take()
        return True

    def tell(self, log: logging.Logger, at_once: bool = False) -> None:
        """Log what was left out, if it is time to; to be called about once a second, and at the end."""
        now_s = self._clock()
        if not self._left_out or (now_s - self._told_s < TELL_EVERY_S and not at_once):
            return
        self._told_s = now_s
        counts = self._left_out.most_common()
        self._left_out = Counter()
        for user, count in counts[:MOST_NAMED]:
            log.warning("%d further lines of user %s were left out", count, user)
        if rest := counts[MOST_NAMED:]:
            total = sum(count for _, count in rest)
            log.warning("%d further lines of %d other users were left out", total, len(rest))
