"""One agent's stream to the placement service in plain values: reports out, decisions in. See `Client.agent`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Event
from typing import TYPE_CHECKING

from placement.service.protocol import placement_pb2 as pb

if TYPE_CHECKING:
    from placement.client.client import Client

DELAY, DETACH = "delay", "detach"
_LEAVE_S = 1.0


@dataclass(frozen=True)
class Decided:
    """A decision: DELAY, with the fields of the message of this name, or DETACH, which has a reason alone."""

    kind: str
    reason: str
    sequence: int = 0
    delay_ns: int = 0
    at_ns: int = 0
    period_ns: int = 0


class AgentStream:
    """A stream that begins with its first decision being asked for. What is sent before that is sent then."""

    def __init__(self, client: Client, job_id: str, ranks: int) -> None:
        self._client = client
        self._messages: SimpleQueue[pb.AgentMessage | None] = SimpleQueue()
        self._reading, self._ended = False, Event()
        self._messages.put(pb.AgentMessage(hello=pb.Hello(job_id=job_id, ranks=ranks)))

    def report_iteration(self, number: int, began_ns: int, duration_ns: int) -> None:
        """An iteration of the job, by the service's clock."""
        report = pb.IterationReport(number=number, began_ns=began_ns, duration_ns=duration_ns)
        self._messages.put(pb.AgentMessage(iteration=report))

    def report_applied(self, sequence: int, iteration: int, late_ranks: Sequence[int] = ()) -> None:
        """A delay was kept; `iteration` is the first that began later."""
        applied = pb.Applied(sequence=sequence, iteration=iteration, late_ranks=late_ranks)
        self._messages.put(pb.AgentMessage(applied=applied))

    def report_profile(self, phases: Sequence[tuple[int, int]]) -> None:
        """What an iteration demands: phases of (nanoseconds, bits a second)."""
        profile = pb.Profile(
            phases=[pb.Phase(duration_ns=duration, bandwidth_bps=bandwidth) for duration, bandwidth in phases]
        )
        self._messages.put(pb.AgentMessage(profile=pb.ProfileReport(profile=profile)))

    def clock_ns(self) -> int:
        """What the service's clock says; may raise `ServiceError`."""
        return self._client.clock_ns()

    def decisions(self) -> Iterator[Decided]:
        """The decisions, as they come. May raise `ServiceError`."""
        self._reading = True
        try:
            for decision in self._client.attach(iter(self._messages.get, None)):
                if decision.WhichOneof("decision") == "delay":
                    delay = decision.delay
                    yield Decided(
                        DELAY, delay.reason, delay.sequence, delay.delay_ns, delay.at_ns, delay.period_ns
                    )
                elif decision.WhichOneof("decision") == "detach":
                    yield Decided(DETACH, decision.detach.reason)
        finally:
            self._ended.set()

    def close(self) -> None:
        """End the stream and its client's connection, from any thread but the one that reads decisions.

        The service is given a moment to hear it: a stream that is cut off is that of a job that has crashed.
        """
        self._messages.put(None)
        if self._reading:
            self._ended.wait(_LEAVE_S)
        self._client.close()
