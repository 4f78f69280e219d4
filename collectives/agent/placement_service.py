"""The placement service as the agent of a job sees it, over gRPC (placement.client.client)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from collectives.agent.agent_protocol import (
    Applied,
    ConversationError,
    Decision,
    Delay,
    Detach,
    IterationReport,
    Report,
)

if TYPE_CHECKING:
    from typing import Any


class PlacementService:
    """The service at an address. gRPC is imported with the first conversation."""

    def __init__(self, address: str) -> None:
        self._address = address

    def open(self, job: str, ranks: int) -> PlacementConversation:
        """Begin a conversation about a job.

        Raises:
            ConversationError: gRPC is not installed, or the address or the token's file cannot be used.
        """
        try:
            from placement.client.client import Client
        except ImportError as error:
            raise ConversationError(f"the placement service cannot be spoken to: {error}") from None
        with _as_conversation_error():
            return PlacementConversation(Client(self._address).agent(job, ranks))


class PlacementConversation:
    """One stream of an agent's."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def clock_ns(self) -> int:
        """What the service's clock says; ConversationError if it does not answer."""
        with _as_conversation_error():
            return int(self._stream.clock_ns())

    def send(self, report: Report) -> None:
        """Tell the service something; does not wait for it."""
        if isinstance(report, IterationReport):
            self._stream.report_iteration(report.number, report.began_ns, report.duration_ns)
        elif isinstance(report, Applied):
            self._stream.report_applied(report.sequence, report.iteration, report.late)
        else:
            self._stream.report_profile(report.phases)

    def decisions(self) -> Iterator[Decision]:
        """What the service decides, until the conversation ends; ConversationError if it breaks."""
        with _as_conversation_error():
            for each in self._stream.decisions():
                if each.kind == "detach":
                    yield Detach(each.reason)
                else:
                    yield Delay(each.sequence, each.delay_ns, each.reason, each.at_ns, each.period_ns)

    def close(self) -> None:
        """End the conversation."""
        self._stream.close()


@contextmanager
def _as_conversation_error() -> Iterator[None]:
    """Every error of the client's, whose class is not to be imported here, is of this room."""
    try:
        yield
    except ConversationError:
        raise
    except Exception as error:
        text = str(error).splitlines()
        raise ConversationError(text[0] if text else type(error).__name__) from None
