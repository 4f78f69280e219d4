"""What a job's agent and the placement service say to each other, without saying how it gets there.

Times are whole nanoseconds; what is on the service's clock says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from mltcp.core.errors import MltcpError


class ConversationError(MltcpError):
    """The service cannot be reached, or has ended the conversation."""


@dataclass(frozen=True)
class IterationReport:
    """An iteration of the job: when it began to send, on the service's clock, and how long it took but for what it was
    held back."""

    number: int
    began_ns: int
    duration_ns: int


@dataclass(frozen=True)
class Applied:
    """A delay was kept; `iteration` is the first that began later.

    The operation that was held waits for its last rank, so that one rank that holds delays the job. `late` are those
    that learned of it too late, or have not said that they did not.
    """

    sequence: int
    iteration: int
    late: tuple[int, ...] = ()


@dataclass(frozen=True)
class ProfileReport:
    """What an iteration demands: its phases, each of (nanoseconds, bits a second)."""

    phases: tuple[tuple[int, int], ...]


Report: TypeAlias = IterationReport | Applied | ProfileReport


@dataclass(frozen=True)
class Delay:
    """The service wants the job's iterations later: by `delay_ns`, or, where there is a period, by about so much, so
    that one begins to send at `at_ns` on the service's clock, or any number of periods earlier or later."""

    sequence: int
    delay_ns: int
    reason: str = ""
    at_ns: int = 0
    period_ns: int = 0

    def wait_ns(self, begins_ns: int) -> int:
        """How long an iteration has to wait that would begin to send at this time of the service's clock.

        Of the times that it might begin at, the one is taken for which it waits for about as long as the service
        thought: who is late goes at once, rather than wait for the next turn.
        """
        if self.period_ns <= 0:
            return self.delay_ns
        least_ns = self.delay_ns - self.period_ns // 2
        return max(0, least_ns + (self.at_ns - begins_ns - least_ns) % self.period_ns)


@dataclass(frozen=True)
class Detach:
    """The service wants to hear no more of this job."""

    reason: str = ""


Decision: TypeAlias = Delay | Detach


class Conversation(Protocol):
    """A job's stream to the service, opened with the job's name. Each method raises ConversationError if it breaks."""

    def clock_ns(self) -> int:
        """What the service's clock says."""

    def send(self, report: Report) -> None:
        """Tell the service something; does not wait for it."""

    def decisions(self) -> Iterator[Decision]:
        """What the service decides, as it comes, until the conversation ends."""

    def close(self) -> None:
        """End the conversation, from any thread."""


class Service(Protocol):
    """Where conversations are opened."""

    def open(self, job: str, ranks: int) -> Conversation:
        """Begin a conversation about a job; ConversationError if the service is not there."""
