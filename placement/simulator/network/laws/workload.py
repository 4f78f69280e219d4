"""The link of the model, one queue with a byte limit and ECN marks by a virtual queue, and its jobs: each iteration is
a sequence of pieces, sent one after the other or each when it is ready.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mltcp.control.iteration import parting_silence_ns
from mltcp.core.errors import UsageError
from mltcp.core.quantities import NS_PER_S, check_number

FRAME_BYTES = 1514
"""A full-size segment at MTU 1500, with its Ethernet header."""

_HIGHEST_BPS, _HIGHEST_BYTES, _HIGHEST_S = 1e12, 1e10, 10.0


@dataclass(frozen=True)
class ModelLink:
    """One direction of a bottleneck link. The defaults are those of the lab.

    A token bucket lets `burst_s` of traffic through before packets queue; the virtual queue that marks does not
    have it, so that marks begin at `ecn_threshold_bytes` less that burst of real queue. Raises UsageError for values
    out of range.
    """

    rate_bps: float = 300e6
    queue_bytes: float = 300e3
    ecn_threshold_bytes: float | None = 40e3
    """None: packets are dropped only."""
    burst_s: float = 0.5e-3
    rtt_s: float = 0.15e-3
    """The round-trip time without a queue; also the step of the model. The default was fitted to the lab."""
    rto_s: float = 5e-3
    """The smallest retransmission time-out, after which an idle connection shrinks its window."""

    def __post_init__(self) -> None:
        check_number(self.rate_bps, field="rate_bps", lowest=1e6, highest=_HIGHEST_BPS)
        check_number(self.queue_bytes, field="queue_bytes", lowest=FRAME_BYTES, highest=_HIGHEST_BYTES)
        if self.ecn_threshold_bytes is not None:
            check_number(
                self.ecn_threshold_bytes,
                field="ecn_threshold_bytes",
                lowest=FRAME_BYTES,
                highest=_HIGHEST_BYTES,
            )
        check_number(self.burst_s, field="burst_s", lowest=0, highest=_HIGHEST_S)
        check_number(self.rtt_s, field="rtt_s", lowest=1e-5, highest=_HIGHEST_S)
        check_number(self.rto_s, field="rto_s", lowest=self.rtt_s, highest=_HIGHEST_S)

    @property
    def packets_per_s(self) -> float:
        """The rate in full-size frames."""
        return self.rate_bps / 8 / FRAME_BYTES

    @property
    def window_packets(self) -> float:
        """The window of a lone flow at which marks, or else drops, begin."""
        threshold = self.queue_bytes if self.ecn_threshold_bytes is None else self.ecn_threshold_bytes
        burst = 0.0 if self.ecn_threshold_bytes is None else self.burst_s * self.packets_per_s
        return self.rtt_s * self.packets_per_s + max(0.0, threshold / FRAME_BYTES - burst)


# -- jobs ---------------------------------------------------------------------------------------


LONGEST_S = 60.0
PIECE_S = 0.005
"""The distance of the pieces of a phase below line rate, as in `bench.workloads.phases`."""
LINE_RATE_SHARE = 0.95
"""From this share of the rate on, a phase is one piece."""


@dataclass(frozen=True)
class Piece:
    """Bytes that are sent together: silence before them, their time at line rate, and the least time they take.

    Raises UsageError unless `line_s` is above 0 and the others are not negative.
    """

    after_s: float
    line_s: float
    at_least_s: float = 0.0

    def __post_init__(self) -> None:
        check_number(self.after_s, field="after_s", lowest=0, highest=LONGEST_S)
        check_number(self.line_s, field="line_s", lowest=1e-6, highest=LONGEST_S)
        check_number(self.at_least_s, field="at_least_s", lowest=0, highest=LONGEST_S)


@dataclass(frozen=True)
class PeriodicJob:
    """One iteration of a job, repeated for ever.

    With `overlapped`, `after_s` of each piece counts from the iteration's start and pieces do not wait for each other,
    as buckets sent during the backward phase; otherwise it counts from the end of the piece before. A piece that is
    late is made up for, by at most one piece; with `drops_lateness`, one that is later than that is not made up for at
    all. Raises UsageError for a job without pieces.
    """

    pieces: tuple[Piece, ...]
    overlapped: bool = False
    drops_lateness: bool = False

    def __post_init__(self) -> None:
        if not self.pieces:
            raise UsageError("pieces: expected at least one, got none")

    @property
    def line_s(self) -> float:
        """The time at line rate of an iteration's bytes (T_c)."""
        return sum(piece.line_s for piece in self.pieces)

    def burst_starts(self) -> list[int]:
        """The numbers of the pieces with which bursts begin; buckets that overlap the backward phase are one burst."""
        silences = [0.0 if self.overlapped else piece.after_s for piece in self.pieces]
        least_s = parting_silence_ns(max(silences) * NS_PER_S) / NS_PER_S
        return [0, *(number for number, silence in enumerate(silences) if number and silence >= least_s)]

    @property
    def period_s(self) -> float:
        """The iteration's time alone on the link."""
        now_s = 0.0
        for piece in self.pieces:
            begin_s = max(now_s, piece.after_s) if self.overlapped else now_s + piece.after_s
            now_s = begin_s + max(piece.line_s, piece.at_least_s)
        return now_s


def one_burst(line_s: float, silence_s: float) -> PeriodicJob:
    """A job that computes for `silence_s` and then sends for `line_s` at line rate."""
    return PeriodicJob((Piece(silence_s, line_s),))


def bursts(line_s: float, silence_s: float, count: int) -> PeriodicJob:
    """A job that sends `line_s` in `count` equal bursts, with equal silences that add up to `silence_s`.

    Raises UsageError unless there is at least one burst.
    """
    if count < 1:
        raise UsageError(f"count: expected at least 1, got {count}")
    return PeriodicJob((Piece(silence_s / count, line_s / count),) * count)


def phased(phases: Sequence[tuple[float, float, float]], drops_lateness: bool = False) -> PeriodicJob:
    """A job of phases (silence_s, duration_s, share of the line rate), sent as the lab's replay does.

    A phase below line rate is sent in pieces `PIECE_S` apart. Raises UsageError for a share outside (0, 1].
    """
    pieces: list[Piece] = []
    for silence_s, duration_s, share in phases:
        if not 0 < share <= 1:
            raise UsageError(f"share: expected above 0 and at most 1, got {share}")
        count = 1 if share >= LINE_RATE_SHARE else max(1, round(duration_s / PIECE_S))
        line_s, at_least_s = share * duration_s / count, (duration_s / count if count > 1 else 0.0)
        pieces += [Piece(silence_s if k == 0 else 0.0, line_s, at_least_s) for k in range(count)]
    return PeriodicJob(tuple(pieces), drops_lateness=drops_lateness)


def buckets_in_backward(
    line_s: float, compute_s: float, count: int = 22, forward: float = 0.4
) -> PeriodicJob:
    """A job whose `count` equal buckets become ready evenly during the backward phase (1 - `forward` of `compute_s`).

    Raises UsageError for a forward part outside [0, 1].
    """
    check_number(forward, field="forward", lowest=0, highest=1)
    ready_s = [compute_s * (forward + (1 - forward) * (k + 1) / count) for k in range(count)]
    return PeriodicJob(tuple(Piece(each, line_s / count) for each in ready_s), overlapped=True)
