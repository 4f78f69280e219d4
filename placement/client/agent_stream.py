"""The stream between a job's agent and the placement service, in plain values: reports out, decisions in."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from threading import Event

from mltcp.core.delay import Decision, Delay, Detach
from mltcp.core.processes import boot_id, pid_namespace, start_ticks
from placement.client.client import Client
from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol.connection import RESTARTS

_CLOSE_S = 1.0


class AgentStream:
    """A stream that is opened when its first decision is requested; reports are queued until then.

    Args:
        client: used by this stream alone, and closed with it.
        job_id: name of the job.
        ranks: number of ranks of the job.
    """

    def __init__(self, client: Client, job_id: str, ranks: int) -> None:
        self._client = client
        self._messages: SimpleQueue[pb.AgentMessage | None] = SimpleQueue()
        self._reading, self._ended = False, Event()
        hello = pb.Hello(job_id=job_id, ranks=ranks, process=this_process(), restarts=_restarts())
        self._messages.put(pb.AgentMessage(hello=hello))

    def report_iteration(self, number: int, began_ns: int, duration_ns: int) -> None:
        """Report an iteration of the job; `began_ns` is on the service's clock."""
        report = pb.IterationReport(number=number, began_ns=began_ns, duration_ns=duration_ns)
        self._messages.put(pb.AgentMessage(iteration=report))

    def report_applied(self, sequence: int, iteration: int, late_ranks: Sequence[int] = ()) -> None:
        """Report that a delay was applied; `iteration` is the first that began later."""
        applied = pb.Applied(sequence=sequence, iteration=iteration, late_ranks=late_ranks)
        self._messages.put(pb.AgentMessage(applied=applied))

    def report_profile(self, phases: Sequence[tuple[int, int]]) -> None:
        """Report the job's demand: the phases of an iteration, each of (nanoseconds, bits per second)."""
        profile = pb.Profile(
            phases=[pb.Phase(duration_ns=duration, bandwidth_bps=bandwidth) for duration, bandwidth in phases]
        )
        self._messages.put(pb.AgentMessage(profile=pb.ProfileReport(profile=profile)))

    def clock_ns(self) -> int:
        """The service's clock; may raise `ServiceError`."""
        return self._client.clock_ns()

    def decisions(self) -> Iterator[Decision]:
        """The service's decisions as they come; may raise `ServiceError`."""
        self._reading = True
        try:
            for decision in self._client.attach(iter(self._messages.get, None)):
                if decision.WhichOneof("decision") == "delay":
                    delay = decision.delay
                    yield Delay(delay.sequence, delay.delay_ns, delay.reason, delay.at_ns, delay.period_ns)
                elif decision.WhichOneof("decision") == "detach":
                    yield Detach(decision.detach.reason)
        finally:
            self._ended.set()

    def close(self) -> None:
        """End the stream and its client's connection, from any thread but the one that reads decisions.

        Waits a moment for the service to end the stream: one that is cut off looks like a job that crashed.
        """
        self._messages.put(None)
        if self._reading:
            self._ended.wait(_CLOSE_S)
        self._client.close()


def this_process() -> pb.AgentProcess:
    """This process, as the service can recognise it if it is on the same machine."""
    pid = os.getpid()
    return pb.AgentProcess(
        boot_id=boot_id(), pid_namespace=pid_namespace(), pid=pid, start_ticks=start_ticks(pid) or 0
    )


def _restarts() -> int | None:
    text = os.environ.get(RESTARTS, "")
    return int(text) if text.isdecimal() else None
