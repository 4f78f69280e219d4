"""The messages between a job's agent and the placement service, independent of the transport.

Times are whole nanoseconds; those on the service's clock are marked as such.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from mltcp.core.delay import Decision
from mltcp.core.errors import MltcpError


class StreamError(MltcpError):
    """The placement service cannot be reached, or the stream to it broke."""


@dataclass(frozen=True)
class IterationReport:
    """A finished iteration.

    Attributes:
        number: of the iteration.
        began_ns: when it began to send, on the service's clock.
        duration_ns: how long it took, without the time for which operations were held back.
    """

    number: int
    began_ns: int
    duration_ns: int


@dataclass(frozen=True)
class Applied:
    """A delay was applied.

    The delayed operation waits for its last rank, so one rank that waits delays the whole job.

    Attributes:
        sequence: of the decision.
        iteration: the first one that began later.
        late: ranks that received the delay too late, or have not acknowledged it.
    """

    sequence: int
    iteration: int
    late: tuple[int, ...] = ()


@dataclass(frozen=True)
class ProfileReport:
    """The job's demand: the phases of an iteration, each of (nanoseconds, bits per second)."""

    phases: tuple[tuple[int, int], ...]


Report: TypeAlias = IterationReport | Applied | ProfileReport


class ServiceStream(Protocol):
    """A stream between the agent of one job and the service; every method may raise StreamError."""

    def clock_ns(self) -> int:
        """The service's clock."""

    def send(self, report: Report) -> None:
        """Queue a report; does not wait for the service."""

    def decisions(self) -> Iterator[Decision]:
        """The service's decisions as they come, until the stream ends."""

    def close(self) -> None:
        """End the stream, from any thread."""


class PlacementService(Protocol):
    """A placement service that agents can attach to."""

    def open(self, job: str, ranks: int) -> ServiceStream:
        """Open the stream of a job; raises StreamError if the service is not reachable."""
