"""The placement service over gRPC (placement.client), as the agent of a job uses it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from collectives.agent.announcements import Applied, IterationReport, Report, StreamError
from mltcp.core.delay import Decision

if TYPE_CHECKING:
    from typing import Any


class GrpcPlacementService:
    """The placement service at an address. gRPC is imported with the first stream."""

    def __init__(self, address: str) -> None:
        self._address = address

    def open(self, job: str, ranks: int) -> GrpcStream:
        """Open the stream of a job.

        Raises:
            StreamError: gRPC is not installed, or the address or the token's file cannot be used.
        """
        try:
            from placement.client.agent_stream import AgentStream
            from placement.client.client import Client
        except ImportError as error:
            raise StreamError(f"the placement service needs gRPC: {error}") from None
        with _as_stream_error():
            return GrpcStream(AgentStream(Client(self._address), job, ranks))


class GrpcStream:
    """A `ServiceStream` over the client's agent stream."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def clock_ns(self) -> int:
        """The service's clock; raises StreamError if it does not answer."""
        with _as_stream_error():
            return int(self._stream.clock_ns())

    def send(self, report: Report) -> None:
        """Queue a report; does not wait for the service."""
        if isinstance(report, IterationReport):
            self._stream.report_iteration(report.number, report.began_ns, report.duration_ns)
        elif isinstance(report, Applied):
            self._stream.report_applied(report.sequence, report.iteration, report.late)
        else:
            self._stream.report_profile(report.phases)

    def decisions(self) -> Iterator[Decision]:
        """The service's decisions until the stream ends; raises StreamError if it breaks."""
        with _as_stream_error():
            yield from self._stream.decisions()

    def close(self) -> None:
        """End the stream."""
        self._stream.close()


@contextmanager
def _as_stream_error() -> Iterator[None]:
    """Turn the client's errors, whose classes cannot be imported without gRPC, into StreamError."""
    try:
        yield
    except StreamError:
        raise
    except Exception as error:
        text = str(error).splitlines()
        raise StreamError(text[0] if text else type(error).__name__) from None
