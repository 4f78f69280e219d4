"""Changes of other programs to the flows of jobs and to paced interfaces: told once, and left as they are."""

from __future__ import annotations

import logging
import time
from collections import deque

from mltcp.core.accounts import account_name
from mltcp.core.user_lines import of_user
from mltcp.daemon.client.status import EVERYBODY, OutsideChange

_log = logging.getLogger("mltcp.daemon")

KEPT = 32
"""The number of changes, the last ones, that the status shows."""


class OutsideChanges:
    """The changes that other programs have made since the daemon began.

    Attributes:
        count: how often.
    """

    def __init__(self) -> None:
        self.count = 0
        self._last: deque[OutsideChange] = deque(maxlen=KEPT)

    def notice(self, what: str, uid: int = EVERYBODY) -> None:
        """Log a change, and keep it for the status of the user whom it concerns."""
        extra = {} if uid == EVERYBODY else of_user(account_name(uid) or str(uid))
        _log.warning("%s", what, extra=extra)
        self.count += 1
        self._last.append(OutsideChange(time.time(), what, uid))

    def last(self) -> tuple[OutsideChange, ...]:
        """The last of them, in order."""
        return tuple(self._last)
