"""Iterations as a flow itself shows them: where one ends, how many bytes it has, and bytes_ratio within it.

This is the reference in Python of what the eBPF congestion controls do (`mltcp/ebpf/`), in integer
nanoseconds and bytes only, so that both can be held against each other: change both sides or neither.

An acknowledgement that comes more than `gap_ns` after the previous one begins a new iteration. What a caller
does not give is learned. The difficulty is the gap: a job also pauses while it starts up or writes a
checkpoint (longer than it computes) and between the buckets of one iteration (shorter). What sets the pause
of the compute phase apart is that it encloses the same number of bytes time after time. So the tracker counts
bytes between pauses on a ladder of pause lengths, each rung twice the one below, and takes a rung as soon as
two counts in a row on it agree.

Source: MLTCP, arXiv 2402.09589, on finding boundaries and learning total_bytes; the ladder is ours.
"""

from dataclasses import dataclass

from mltcp.control.aggressiveness import ONE_Q16, Aggressiveness, ratio_q16
from mltcp.core.errors import UsageError

PAUSE_FLOOR_NS = 5_000_000
"""The shortest pause that a learned gap may take for the end of an iteration."""

RUNGS = 14
"""Rung k of the ladder counts the bytes between pauses of at least PAUSE_FLOOR_NS << k (5 ms to 41 s)."""

ALIKE_SHIFT = 4
"""An iteration is like total_bytes when they differ by at most 1/16 of the larger."""

LEARN_SHIFT = 6
"""Counts on the ladder agree when they differ by at most 1/64 of the larger.

Closer than ALIKE_SHIFT, because it must not happen by chance: of the counts between random pauses, one in 127
agrees with the one before it, but one in 31 is within 1/16 of it.
"""

LEARN_ALIKE = 2
"""So many counts in a row that agree make total_bytes known."""

MISSES_TO_FORGET = 4
"""So many iterations in a row that are not alike total_bytes make it unknown again."""

LARGEST_REGROUPING = 16
"""Learned iterations are joined into a longer one if at most so many make it up.

More than that is not buckets between compute phases, but iterations between checkpoints or validations.
"""


@dataclass(frozen=True)
class IterationRecord:
    """One finished iteration of a flow.

    `start_ns` and `end_ns` are its first and its last acknowledgement, `bytes` what was acknowledged;
    `total_bytes` (0: unknown) and `gap_ns` are what the tracker held right after it.
    """

    iteration: int
    start_ns: int
    end_ns: int
    bytes: int
    total_bytes: int
    gap_ns: int


@dataclass(slots=True)
class _Rung:
    """Bytes between pauses of at least a certain length.

    `mark` is what the flow had acknowledged at the last such pause, `previous_bytes` the last count, `alike`
    how many counts in a row agreed up to that one.
    """

    mark: int = 0
    previous_bytes: int = 0
    alike: int = 0

    def count(self, seen_bytes: int) -> None:
        """Take note of such a pause after `seen_bytes` in all."""
        enclosed = seen_bytes - self.mark
        if enclosed == 0:
            return
        self.alike = self.alike + 1 if _alike(enclosed, self.previous_bytes, LEARN_SHIFT) else 1
        self.previous_bytes = enclosed
        self.mark = seen_bytes


class IterationTracker:
    """Follows one flow: call `observe` for each acknowledgement.

    `total_bytes` and `gap_ns` are those of the job; 0 means to learn it, and a given one is never changed.
    Raises UsageError for a negative one.
    """

    def __init__(self, total_bytes: int = 0, gap_ns: int = 0) -> None:
        for name, value in (("total_bytes", total_bytes), ("gap_ns", gap_ns)):
            if value < 0:
                raise UsageError(f"{name} {value} is out of range: allowed is 0 (learn it) or more")
        self.total_bytes = total_bytes
        self.gap_ns = gap_ns
        self.total_given = total_bytes > 0
        self.gap_given = gap_ns > 0
        self.gap_settled = self.gap_given
        self.longest_pause_ns = 0
        self.misses = 0
        self.iteration = 0
        self.start_ns = 0
        self.last_ns = 0
        self.bytes = 0
        self.seen_bytes = 0
        self._rungs = [_Rung() for _ in range(RUNGS)]

    @property
    def recognised(self) -> bool:
        """Whether total_bytes is known, and the gap at which to begin counting anew."""
        return self.total_bytes > 0 and self.gap_settled

    def ratio_q16(self) -> int:
        """bytes_ratio of the present iteration in Q16; 0 while total_bytes is unknown."""
        return ratio_q16(self.bytes, self.total_bytes)

    def factor(self, aggressiveness: Aggressiveness) -> int:
        """F in Q16 as of now; 1 (the base algorithm) while no iteration is recognised."""
        return aggressiveness.fixed(self.ratio_q16()) if self.recognised else ONE_Q16

    def observe(self, now_ns: int, acked_bytes: int) -> IterationRecord | None:
        """Take note that `acked_bytes` were acknowledged at `now_ns` (above 0, any monotonic clock).

        Returns the record of the iteration before, if this acknowledgement begins a new one. A time earlier
        than the last counts as the same time.
        """
        record = None
        if self.last_ns == 0:
            self.start_ns = self.last_ns = now_ns
        elif now_ns > self.last_ns:
            record = self._after_pause(now_ns - self.last_ns, now_ns)
            self.last_ns = now_ns
        self.bytes += acked_bytes
        self.seen_bytes += acked_bytes
        if self.recognised and self.bytes > 2 * self.total_bytes:
            self._forget()
        return record

    def observe_interval(self, from_ns: int, to_ns: int, acked: int) -> IterationRecord | None:
        """Count what was acknowledged at times unknown between two readings of a counter.

        A pause is only what lies between intervals in which something was; without `acked` nothing is noted.
        """
        if acked == 0:
            return None
        record = self.observe(from_ns, acked)
        self.last_ns = max(self.last_ns, to_ns)
        return record

    def _after_pause(self, pause_ns: int, now_ns: int) -> IterationRecord | None:
        if self.gap_given:
            if pause_ns <= self.gap_ns:
                return None
        elif pause_ns < PAUSE_FLOOR_NS:
            return None
        if self.recognised and self.bytes > 0 and pause_ns > self.gap_ns:
            self._check(pause_ns)
        self._learn(pause_ns)
        return self._close(now_ns) if pause_ns > self.gap_ns else None

    def _close(self, now_ns: int) -> IterationRecord | None:
        record = None
        if self.bytes > 0:
            record = IterationRecord(
                self.iteration, self.start_ns, self.last_ns, self.bytes, self.total_bytes, self.gap_ns
            )
            self.iteration += 1
        self.start_ns = now_ns
        self.bytes = 0
        return record

    def _check(self, pause_ns: int) -> None:
        """Hold the iteration that ends with this pause against what is known."""
        if not _alike(self.bytes, self.total_bytes, ALIKE_SHIFT):
            self.misses += 1
            if self.misses >= MISSES_TO_FORGET:
                self._forget()
            return
        self.misses = 0
        if not self.total_given:
            self.total_bytes = self.bytes
        if not self.gap_given:
            self._follow(pause_ns)

    def _follow(self, pause_ns: int) -> None:
        """Let the gap follow a slow change of the compute time; a single long pause says nothing about it."""
        # Two branches, so that the C side needs no signed division (which would round differently).
        if pause_ns < self.longest_pause_ns:
            self.longest_pause_ns -= (self.longest_pause_ns - pause_ns) >> 3
        elif pause_ns <= 2 * self.longest_pause_ns:
            self.longest_pause_ns += (pause_ns - self.longest_pause_ns) >> 3
        self.gap_ns = self.longest_pause_ns >> 1

    def _learn(self, pause_ns: int) -> None:
        """Count this pause on the ladder and learn from its highest rung there."""
        top = 0 if self.gap_given else _highest_rung(pause_ns)
        for rung in self._rungs[: top + 1]:
            rung.count(self.seen_bytes)
        highest = self._rungs[top]
        if self._teaches(highest, pause_ns):
            if not self.total_given:
                self.total_bytes = highest.previous_bytes
            if not self.gap_given:
                self.longest_pause_ns = pause_ns
                self.gap_ns = pause_ns >> 1
            self.gap_settled = True
            self.misses = 0
        elif not self.gap_settled:
            # A guess, by which records are cut until more is known. F is 1 meanwhile.
            self.longest_pause_ns = max(pause_ns, self.longest_pause_ns - (self.longest_pause_ns >> 2))
            self.gap_ns = self.longest_pause_ns >> 1

    def _teaches(self, rung: _Rung, pause_ns: int) -> bool:
        """Whether what this rung counted shows iterations that are not known yet."""
        if self.total_given:
            return not self.gap_settled and _alike(rung.previous_bytes, self.total_bytes, ALIKE_SHIFT)
        if rung.alike < LEARN_ALIKE:
            return False
        if self.total_bytes == 0:
            return True
        # What was learned may have been equal buckets, before the first compute phase was seen.
        return (
            not self.gap_given
            and pause_ns > 2 * self.longest_pause_ns
            and not _alike(rung.previous_bytes, self.total_bytes, ALIKE_SHIFT)
            and rung.previous_bytes <= LARGEST_REGROUPING * self.total_bytes
        )

    def _forget(self) -> None:
        """Return to learning whatever was not given; the ladder keeps what it counted."""
        self.misses = 0
        if not self.total_given:
            self.total_bytes = 0
        if not self.gap_given:
            self.gap_settled = False
            self.longest_pause_ns = 0
            self.gap_ns = 0


def _alike(a: int, b: int, shift: int) -> bool:
    return abs(a - b) <= max(a, b) >> shift


def _highest_rung(pause_ns: int) -> int:
    """The highest rung that counts a pause of this length (at least PAUSE_FLOOR_NS)."""
    rung = 0
    while rung < RUNGS - 1 and pause_ns >= PAUSE_FLOOR_NS << (rung + 1):
        rung += 1
    return rung
