"""The data connections of one direction: threads that send or receive, and their counters.

The threads spend their time in system calls, without the GIL: one flow is as fast as one of iperf3, which uses blocks
of the same size.
"""

from __future__ import annotations

import socket
import statistics
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from bench.perf.plan import PerfPlan
from bench.workloads.job import sleep_until
from mltcp.pacing.tcp_info import congestion_control, tcp_info

BLOCK_BYTES = 128 << 10
_RECEIVED = b"\1"


@dataclass(frozen=True)
class Reading:
    """The counters of one flow at one time, since it was opened; None where the kernel has no such counter."""

    at_s: float
    moved_bytes: int
    retransmits: int
    cwnd_segments: int
    marks: int | None


@dataclass(frozen=True)
class IterationTime:
    """The start and the end of an iteration (CLOCK_MONOTONIC); it ends when all of its bytes have been received."""

    start_s: float
    end_s: float

    @property
    def duration_s(self) -> float:
        """The iteration's duration, compute time included."""
        return self.end_s - self.start_s


class PerfFlow:
    """One data connection and its byte counter."""

    def __init__(self, connection: socket.socket, number: int) -> None:
        self.connection = connection
        self.number = number
        self.moved_bytes = 0
        self.error: str | None = None
        self.control = ""
        self.ecn = False
        self._last: Reading | None = None
        self._lock = threading.Lock()

    def read(self) -> Reading:
        """The counters now; after the connection was closed, the last ones."""
        with self._lock:
            info = tcp_info(self.connection.fileno())
            if info is None:
                return self._last or Reading(time.monotonic(), self.moved_bytes, 0, 0, None)
            self.control = congestion_control(self.connection.fileno())
            self.ecn = info.ecn
            self._last = Reading(
                time.monotonic(),
                self.moved_bytes,
                info.retransmits,
                info.cwnd_segments,
                info.delivered_ce_segments,
            )
            return self._last

    def close(self) -> None:
        """Close the connection after a last reading; `read` returns that from then on."""
        self.read()
        with self._lock:
            self.connection.close()


class PerfDirection:
    """All flows of one direction on this side.

    Args:
        plan: the plan of the test.
        name: ``up`` or ``down``.
        connections: in the order of the flows.
    """

    def __init__(self, plan: PerfPlan, name: str, connections: Sequence[socket.socket]) -> None:
        self.plan = plan
        self.name = name
        self.flows = [PerfFlow(connection, number) for number, connection in enumerate(connections)]
        self.iterations: list[IterationTime] = []
        self.began_s = self.ended_s = 0.0
        self._threads: list[threading.Thread] = []
        self._iteration_start_s = 0.0
        self._stopping = False

    def start(self) -> None:
        """Start the threads."""
        self.began_s = self._iteration_start_s = time.monotonic()
        self._threads = [threading.Thread(target=self._run, args=(flow,), daemon=True) for flow in self.flows]
        for thread in self._threads:
            thread.start()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the threads, at most for the time; returns whether all have ended."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(None if deadline_s is None else max(0.0, deadline_s - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def stop(self) -> None:
        """Abort: shut all connections down."""
        self._stopping = True
        for flow in self.flows:
            with suppress(OSError):
                flow.connection.shutdown(socket.SHUT_RDWR)

    @property
    def error(self) -> str | None:
        """The first flow's error; None without one."""
        return next((flow.error for flow in self.flows if flow.error), None)

    @property
    def bytes_ratio(self) -> float | None:
        """The share of the current iteration's bytes that was handed to the kernel, or received; None for bulk."""
        if not self.plan.buckets:
            return None
        # An iteration begins only after all bytes of the one before have been received.
        before = len(self.iterations) * self.plan.iteration_bytes
        moved = sum(flow.moved_bytes for flow in self.flows) - before
        return min(1.0, max(0.0, moved / self.plan.iteration_bytes))

    def _run(self, flow: PerfFlow) -> None:
        try:
            self._move(flow)
        except OSError as error:
            if not self._stopping:
                flow.error = f"flow {flow.number}: {error.strerror or error}"
        except threading.BrokenBarrierError:
            pass  # another flow has recorded its error
        flow.read()
        self.ended_s = time.monotonic()

    def _iteration_ended(self) -> None:
        now_s = time.monotonic()
        self.iterations.append(IterationTime(self._iteration_start_s, now_s))
        self._iteration_start_s = now_s

    def _move(self, flow: PerfFlow) -> None:
        raise NotImplementedError


class Sending(PerfDirection):
    """The sending side, which paces the iterations."""

    def __init__(self, plan: PerfPlan, name: str, connections: Sequence[socket.socket]) -> None:
        super().__init__(plan, name, connections)
        self._block = memoryview(bytes(BLOCK_BYTES))
        # The last flow to complete an iteration ends it, while the others wait.
        self._barrier = threading.Barrier(len(self.flows), action=self._iteration_ended)
        self._over = False

    def stop(self) -> None:
        """Abort: shut all connections down and release waiting threads."""
        super().stop()
        self._barrier.abort()

    def _move(self, flow: PerfFlow) -> None:
        try:
            if self.plan.buckets:
                self._iterate(flow)
            else:
                self._bulk(flow)
        except OSError:
            self._barrier.abort()
            raise
        flow.connection.shutdown(socket.SHUT_WR)
        # The receiver closes after it has read everything; until then the kernel keeps the counters.
        while flow.connection.recv(1):
            pass

    def _bulk(self, flow: PerfFlow) -> None:
        end_s = self.began_s + self.plan.seconds if self.plan.seconds else float("inf")
        left = self.plan.bulk_share(flow.number) if self.plan.total_bytes else 1 << 62
        while left > 0 and time.monotonic() < end_s and not self._stopping:
            sent = flow.connection.send(self._block[:left])
            flow.moved_bytes += sent
            left -= sent

    def _iterate(self, flow: PerfFlow) -> None:
        buckets = self.plan.shares(flow.number)
        while not self._over:
            start_s = self._iteration_start_s
            for bucket in buckets:
                sleep_until(start_s + bucket.ready_s)
                self._send(flow, bucket.size_bytes)
            if flow.connection.recv(1) != _RECEIVED:
                raise OSError("the receiver is gone")
            self._barrier.wait()

    def _send(self, flow: PerfFlow, size: int) -> None:
        while size:
            sent = flow.connection.send(self._block[:size])
            flow.moved_bytes += sent
            size -= sent

    def _iteration_ended(self) -> None:
        super()._iteration_ended()
        count_over = self.plan.iterations and len(self.iterations) >= self.plan.iterations
        time_over = self.plan.seconds and self._iteration_start_s - self.began_s >= self.plan.seconds
        self._over = bool(count_over or time_over)


class Receiving(PerfDirection):
    """The receiving side, which acknowledges every complete iteration to the sender.

    It times an iteration from the end of the one before; a client shows these times while the server sends.
    """

    def __init__(self, plan: PerfPlan, name: str, connections: Sequence[socket.socket]) -> None:
        super().__init__(plan, name, connections)
        self._lock = threading.Lock()
        self._flows_through = 0

    def _move(self, flow: PerfFlow) -> None:
        buffer = bytearray(BLOCK_BYTES)
        share = sum(bucket.size_bytes for bucket in self.plan.shares(flow.number))
        missing = share
        while received := flow.connection.recv_into(buffer):
            flow.moved_bytes += received
            missing -= received
            if self.plan.buckets and missing <= 0:
                # Recorded first: the sender may begin the next iteration as soon as it has the acknowledgement.
                self._flow_is_through()
                flow.connection.sendall(_RECEIVED)
                missing += share
        flow.close()

    def _flow_is_through(self) -> None:
        with self._lock:
            self._flows_through += 1
            if self._flows_through % len(self.flows) == 0:
                self._iteration_ended()


# -- reports of intervals ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Interval:
    """One flow of one direction, or the sum of its flows (`flow` is None), from `start_s` to `end_s` of the test.

    Figures that only a sender has are None on the receiving side; `marks` is None where the kernel has no counter.
    `iteration_s` is the mean over the iterations that ended in the interval.
    """

    direction: str
    sends: bool
    flow: int | None
    start_s: float
    end_s: float
    moved_bytes: int
    bits_per_second: float
    retransmits: int | None
    cwnd_segments: int | None
    marks: int | None
    iterations: int
    iteration_s: float | None
    bytes_ratio: float | None


class Meter:
    """Reads the counters of the flows of one side, and makes intervals of the differences."""

    def __init__(self, directions: Sequence[PerfDirection]) -> None:
        self._directions = directions
        self._before = {flow: flow.read() for each in directions for flow in each.flows}
        self._iterations = {each.name: 0 for each in directions}
        self._began_s = min(reading.at_s for reading in self._before.values())

    def has_more(self) -> bool:
        """Whether bytes were moved or an iteration ended since the last reading."""
        moved = any(flow.moved_bytes != before.moved_bytes for flow, before in self._before.items())
        return moved or any(len(each.iterations) > self._iterations[each.name] for each in self._directions)

    def read(self) -> list[Interval]:
        """The intervals since the last reading: one for each flow, and a sum for each direction of several flows."""
        found: list[Interval] = []
        for direction in self._directions:
            ended = direction.iterations[self._iterations[direction.name] :]
            flows = [self._flow(direction, flow, ended) for flow in direction.flows]
            found += flows
            if len(flows) > 1:
                found.append(_sum(flows))
            self._iterations[direction.name] += len(ended)
        return found

    def _flow(self, direction: PerfDirection, flow: PerfFlow, ended: Sequence[IterationTime]) -> Interval:
        before, now = self._before[flow], flow.read()
        self._before[flow] = now
        sends = isinstance(direction, Sending)
        elapsed_s = max(1e-9, now.at_s - before.at_s)
        moved = now.moved_bytes - before.moved_bytes
        return Interval(
            direction=direction.name,
            sends=sends,
            flow=flow.number,
            start_s=before.at_s - self._began_s,
            end_s=now.at_s - self._began_s,
            moved_bytes=moved,
            bits_per_second=moved * 8 / elapsed_s,
            retransmits=now.retransmits - before.retransmits if sends else None,
            cwnd_segments=now.cwnd_segments if sends else None,
            marks=_growth(before, now) if sends else None,
            iterations=len(ended),
            iteration_s=statistics.mean(each.duration_s for each in ended) if ended else None,
            bytes_ratio=direction.bytes_ratio,
        )


def _growth(before: Reading, now: Reading) -> int | None:
    if before.marks is None or now.marks is None:
        return None
    return (now.marks - before.marks) & 0xFFFFFFFF


def _sum(flows: Sequence[Interval]) -> Interval:
    first = flows[0]
    marks = [each.marks for each in flows if each.marks is not None]
    return Interval(
        direction=first.direction,
        sends=first.sends,
        flow=None,
        start_s=first.start_s,
        end_s=first.end_s,
        moved_bytes=sum(each.moved_bytes for each in flows),
        bits_per_second=sum(each.bits_per_second for each in flows),
        retransmits=sum(each.retransmits or 0 for each in flows) if first.sends else None,
        cwnd_segments=sum(each.cwnd_segments or 0 for each in flows) if first.sends else None,
        marks=sum(marks) if marks else None,
        iterations=first.iterations,
        iteration_s=first.iteration_s,
        bytes_ratio=first.bytes_ratio,
    )
