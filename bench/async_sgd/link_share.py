"""How workers share the link of a server, from the bytes of each in consecutive bins."""

from __future__ import annotations

from collections.abc import Sequence

from bench.async_sgd.run import DirectionShare, Excerpt
from bench.lab.bottleneck import DirectionUse, LinkUse

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
