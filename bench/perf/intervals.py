"""Interval reports of flows: bytes, rates, retransmissions, marks and iterations between two readings."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bench.perf.traffic import IterationTime, PerfDirection, PerfFlow, Reading, Sending


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
