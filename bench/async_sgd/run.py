"""The result of one run of a sweep, its use of a server's link, and its line in the journal."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from bench.lab.bottleneck import DirectionUse, LinkUse
from bench.plain_documents import made_of
from bench.workloads.parameter_server.log import CycleTimes


@dataclass(frozen=True)
class DirectionShare:
    """How workers used one direction of a server's link after the warm-up.

    Attributes:
        busy: share of the time in which anyone sent.
        overlap: share of that time in which two or more workers sent.
        drops: packets that found the queue full, in the whole run.
        marks: packets that were marked.
    """

    busy: float
    overlap: float
    drops: int
    marks: int


@dataclass(frozen=True)
class Excerpt:
    """Bytes of each worker in consecutive bins, for a few seconds at the end of the run.

    Attributes:
        bin_s: the length of a bin.
        rate_bps: of the link.
        up: into the leading server, a row for each worker.
        down: out of it.
    """

    bin_s: float
    rate_bps: int
    up: tuple[tuple[int, ...], ...]
    down: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class KernelIterations:
    """The iterations that MLTCP has found in the kernel, on one side of the connections.

    Attributes:
        jobs: the number of jobs there.
        recognised: how many of them had iterations at the end.
        total_bytes: median bytes of an iteration; 0 if none is recognised.
        gap_s: median pause that ends one.
        iterations: median number of iterations.
    """

    jobs: int
    recognised: int
    total_bytes: int
    gap_s: float
    iterations: int


@dataclass(frozen=True)
class AsyncRun:
    """One run.

    Attributes:
        key: of the sweep's point.
        workers: K.
        control: the name of the variant.
        repeat: from 0.
        updates: measured, warm-up included.
        throughput: X, updates a second.
        staleness: mean.
        times: of a cycle.
        retransmits: of all connections with a server.
        up, down: the link of the leading server.
        excerpt: the use of that link.
        losses: of the first and the last updates; None for a replay.
        overruns: computations that took longer than their slot.
        cpu_s: of all ranks.
        other_load: share of the processors that other programs used.
        kernel: iterations in the kernel by side, ``worker`` and ``server``; only where MLTCP's jobs are used.
    """

    key: str
    workers: int
    control: str
    repeat: int
    updates: int
    throughput: float
    staleness: float
    times: CycleTimes
    retransmits: int
    up: DirectionShare
    down: DirectionShare
    excerpt: Excerpt
    losses: tuple[float, float] | None
    overruns: int
    cpu_s: float
    other_load: float = 0.0
    kernel: Mapping[str, KernelIterations] = field(default_factory=dict)

    def line(self) -> str:
        """The run as a line of JSON."""
        return json.dumps(asdict(self), allow_nan=False)


def run_from_line(line: bytes) -> AsyncRun:
    """The run of a line. Raises ValueError or TypeError if it is none."""
    found: AsyncRun = made_of(AsyncRun, json.loads(line))
    return found


EXCERPT_S = 4.0
_GROUPED = 4
"""Bins of 5 ms are joined: a packet takes 0.6 ms at 20 Mbit/s."""
_SENDING = 0.1
"""A worker sends in a bin that holds more of its bytes than this share of what the link carries."""


def direction_share(use: DirectionUse, workers: int, bins: range, bin_ns: int) -> DirectionShare:
    """The shares of time in which one and several workers sent, within a range of bins."""
    least = _SENDING * use.rate_bps / 8 * bin_ns * _GROUPED / 1e9
    rows = _joined(use, workers, bins)
    sending = [sum(row[at] > least for row in rows) for at in range(len(rows[0]))]
    busy = sum(count > 0 for count in sending)
    return DirectionShare(
        busy=busy / max(1, len(sending)),
        overlap=sum(count > 1 for count in sending) / max(1, busy),
        drops=use.drops,
        marks=use.marks,
    )


def excerpt(use: LinkUse, up: DirectionUse, down: DirectionUse, workers: int, end_s: float) -> Excerpt:
    """The last seconds before `end_s` (CLOCK_MONOTONIC)."""
    bins = bins_between(use, end_s - EXCERPT_S, end_s)
    return Excerpt(
        use.bin_ns * _GROUPED / 1e9, up.rate_bps, _joined(up, workers, bins), _joined(down, workers, bins)
    )


def bins_between(use: LinkUse, begin_s: float, end_s: float) -> range:
    """The bins between two times, CLOCK_MONOTONIC seconds."""
    first, last = (max(0, int((at_s * 1e9 - use.epoch_ns) // use.bin_ns)) for at_s in (begin_s, end_s))
    return range(first, max(first + _GROUPED, last))


def _joined(use: DirectionUse, workers: int, bins: range) -> tuple[tuple[int, ...], ...]:
    rows: list[Sequence[int]] = [
        use.bytes_by_job[worker][bins.start : bins.stop] for worker in range(workers)
    ]
    return tuple(
        tuple(sum(row[at : at + _GROUPED]) for at in range(0, len(row) - _GROUPED + 1, _GROUPED))
        for row in rows
    )
