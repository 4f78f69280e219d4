"""Decisions of the placement service about a running job: a delay of its iterations, or the end of its attachment.

All times are whole nanoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias


@dataclass(frozen=True)
class Delay:
    """A delay of a job's iterations, decided by the placement service and applied by all ranks of the job.

    The service decides `delay_ns`, or, with a period, that an iteration should begin to send at `at_ns` or any number
    of periods earlier or later. The job's agent then picks the operation before which all ranks wait, and replaces
    `delay_ns` by the time to wait there.

    Attributes:
        sequence: identifies the decision within the job.
        delay_ns: how long the iterations should be delayed; with a period, about how long.
        reason: why, for the log.
        at_ns: when an iteration should begin to send, on the service's clock.
        period_ns: the period of such times; 0 if `at_ns` does not apply.
        group: process group of the operation that is delayed; empty until the agent has picked one.
        number: of that operation among the collective operations of the group.
    """

    sequence: int
    delay_ns: int
    reason: str = ""
    at_ns: int = 0
    period_ns: int = 0
    group: str = ""
    number: int = 0

    def wait_ns(self, begins_ns: int) -> int:
        """The time to wait for an iteration that would begin to send at `begins_ns` on the service's clock.

        With a period, the wait ends on `at_ns` modulo the period, as close to `delay_ns` as possible. An iteration
        that is late by less than half a period does not wait for the next time.
        """
        if self.period_ns <= 0:
            return self.delay_ns
        least_ns = self.delay_ns - self.period_ns // 2
        return max(0, least_ns + (self.at_ns - begins_ns - least_ns) % self.period_ns)

    def before(self, group: str, number: int, wait_ns: int) -> Delay:
        """This delay, applied by waiting for `wait_ns` before operation `number` of `group`."""
        return replace(self, group=group, number=number, delay_ns=wait_ns)


@dataclass(frozen=True)
class Detach:
    """The service wants no further reports of the job."""

    reason: str = ""


Decision: TypeAlias = Delay | Detach
