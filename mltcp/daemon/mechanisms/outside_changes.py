"""Changes of other programs to the flows of jobs and to paced interfaces: reported once, and left as they are."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Collection, Mapping

from mltcp.core.accounts import account_name
from mltcp.core.user_lines import of_user
from mltcp.daemon.client.status import EVERYBODY, OutsideChange
from mltcp.daemon.jobs.job import Job

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


# -- settings of flows --------------------------------------------------------------------------


CONTROL, PACKET_MARK = "congestion control", "mark"

Settings = Mapping[str, str]
"""The values of a flow's settings, each by its name in the log."""


class FlowSettingsWatch:
    """Compares the settings of flows with those that they should have; what differs is told once, and left alone.

    Args:
        changes: where it is told.
    """

    def __init__(self, changes: OutsideChanges) -> None:
        self._changes = changes
        self._changed: dict[int, dict[int, Settings]] = {}

    def see(self, job: Job, cookie: int, flow: str, wanted: Settings, now: Settings) -> None:
        """Take the settings that a flow of a job has now; `flow` is its addresses."""
        changed = self._changed.setdefault(job.number, {})
        before = changed.get(cookie, wanted)
        for name, value in now.items():
            if value == before[name]:
                continue
            text = f"{job}: the {name} of its flow {flow} is {value}"
            if value == wanted[name]:
                self._changes.notice(f"{text} again: another program has set it", job.uid)
            else:
                text += f", not {wanted[name]}: another program has set it, and it is left alone"
                self._changes.notice(text, job.uid)
        if now == wanted:
            changed.pop(cookie, None)
        else:
            changed[cookie] = now
        job.left_alone = len(changed)

    def changed(self, job: Job) -> Mapping[int, Settings]:
        """The flows that have other settings, by cookie, with these settings."""
        return self._changed.get(job.number, {})

    def keep(self, job: Job, cookies: Collection[int]) -> None:
        """Forget the flows of a job that are closed: all but these."""
        changed = self._changed.get(job.number)
        if changed:
            for cookie in changed.keys() - set(cookies):
                del changed[cookie]
            job.left_alone = len(changed)

    def forget(self, job: Job) -> None:
        """Forget a job that has ended."""
        self._changed.pop(job.number, None)


def being_set(jobs: Collection[Job], job: Job) -> bool:
    """Whether settings of the job's flows may be on their way now: they belong to its user, or to root."""
    return any(each.setting and each.uid in (0, job.uid) for each in jobs)
