"""Recognises the iterations of a flow from its acknowledgements: their ends, their bytes, and bytes_ratio.

This is the Python reference of the tracker in the eBPF congestion controls (`mltcp/ebpf/tracker.bpf.h`). It uses
integer nanoseconds and bytes only, so that the tests can compare both exactly: change both together.

A new iteration begins when the job sends again after it had nothing in flight for more than `gap_ns`. (A caller that
does not know what is in flight has acknowledgements only: one more than `gap_ns` after the previous one.) Values that
the caller does not give are learned. The difficulty is the gap: a job also pauses while it starts up or writes a
checkpoint (longer than it computes) and between the buckets of one iteration (shorter). The pauses of the compute phase
differ from these in that they enclose the same number of bytes each time. So the tracker counts bytes between
pauses on a ladder of pause lengths, each rung twice the one below, and learns from a rung as soon as two
consecutive counts on it agree.

A job may also send a little while it computes: it logs, or loads data. Such traffic hides the pause. So a stretch
without more than a small part of the job's mean rate counts as a pause too, if it is long beside the silences in it.
Where there is no small traffic this changes nothing: a pause is a silence, and known from the first acknowledgement
after it.

Pauses do not tell bursts of one iteration from iterations, where a model sends in several bursts. A program that knows
its iterations reports where they begin (`boundary`); pauses end no iteration then.

bytes_ratio is that of the burst: by that of the iteration, two jobs of several bursts whose bursts collide have nearly
equal F, and gain nothing by parting (docs/theory.md). Bursts are as long as in the last iteration: it is known after
which bytes the job was silent. Of a single burst, both are the same.

Source: MLTCP, arXiv 2402.09589, on finding boundaries and learning total_bytes; the ladder is ours.
"""

from dataclasses import dataclass

from mltcp.control.aggressiveness import ONE_Q16, Aggressiveness, ratio_q16
from mltcp.core.errors import UsageError

PAUSE_FLOOR_NS = 5_000_000
"""The shortest pause that can end an iteration while the gap is learned."""

RUNGS = 14
"""Rung k of the ladder counts the bytes between pauses of at least PAUSE_FLOOR_NS << k (5 ms to 41 s)."""

ALIKE_SHIFT = 4
"""An iteration matches total_bytes if they differ by at most 1/16 of the larger."""

LEARN_SHIFT = 6
"""Counts on the ladder agree when they differ by at most 1/64 of the larger.

Closer than ALIKE_SHIFT, so that it rarely happens by chance: of the counts between random pauses, one in 127
agrees with the one before it, while one in 31 is within 1/16 of it.
"""

LEARN_ALIKE = 2
"""The number of consecutive counts that must agree to learn total_bytes."""

MISSES_TO_FORGET = 4
"""The number of consecutive iterations that do not match total_bytes after which it is forgotten."""

LARGEST_REGROUPING = 16
"""The largest number of learned iterations that may be joined into a longer one.

More than that are not buckets between compute phases, but iterations between checkpoints or validations.
"""


SMALL_SHIFT = 4
"""Traffic is small while no PAUSE_FLOOR_NS has more than 1/16 of what the job sends in that time on average."""

MEAN_WINDOWS = 1 << 14
"""After this many times PAUSE_FLOOR_NS (82 s) the mean begins to forget: what went before counts for half."""

SHORTEST_STRETCH_NS = 4 * PAUSE_FLOOR_NS
"""The shortest stretch of small traffic that counts as a pause."""

SILENCES_IN_STRETCH = 4
"""A stretch of small traffic counts as a pause if it is this many times as long as the longest silence in it.

If it is not, that silence is the pause.
"""

FIRST_BOUNDARY = 64
BOUNDARIES = 64
"""Boundaries are reported by so many numbers from FIRST_BOUNDARY on, and then from the first one again."""


BURSTS = 128
"""So many bursts of an iteration are told apart; those after them are one."""

BURST_FLOOR_NS = 1_000_000
BURST_SHIFT = 2
"""A silence may part two bursts if it is BURST_FLOOR_NS or more, and 1/4 or more of the longest of this iteration and
that before.

By the second condition a process that is not scheduled for a moment does not end a burst.
"""

BURST_KNOWN = 3
"""It does if there was one after as many bytes in so many iterations before.

A job is also silent while a neighbour delays another host of it, for which it waits; but not always at the same place.
"""

SHORT_BURST_SHIFT = 8
"""A burst of up to 1/256 of the iteration is the begin of the next: what is sent while the job computes."""


@dataclass(frozen=True)
class IterationRecord:
    """One finished iteration of a flow.

    `start_ns` and `end_ns` are the times of its first and last acknowledgement, `bytes` the bytes acknowledged;
    `total_bytes` (0: unknown) and `gap_ns` are the tracker's values right after it.
    """

    iteration: int
    start_ns: int
    end_ns: int
    bytes: int
    total_bytes: int
    gap_ns: int


@dataclass(frozen=True, slots=True)
class _Silence:
    """A silence after so many bytes of an iteration, and in how many iterations in a row there was one."""

    bytes: int
    seen: int


@dataclass(slots=True)
class _Rung:
    """Counts the bytes between pauses of at least a certain length.

    `mark` is the number of bytes acknowledged up to the last such pause, `previous_bytes` the last count, `alike`
    the number of consecutive counts up to that one that agree.
    """

    mark: int = 0
    previous_bytes: int = 0
    alike: int = 0

    def count(self, seen_bytes: int) -> None:
        """Close the count at such a pause, after `seen_bytes` in all."""
        enclosed = seen_bytes - self.mark
        if (
            enclosed <= 0
        ):  # below 0: a silence in small traffic was counted after the pause that holds it had begun
            return
        self.alike = self.alike + 1 if _alike(enclosed, self.previous_bytes, LEARN_SHIFT) else 1
        self.previous_bytes = enclosed
        self.mark = seen_bytes


class IterationTracker:
    """Tracks the iterations of one flow; call `observe` for each acknowledgement.

    `total_bytes` and `gap_ns` are those of the job; 0 means to learn the value, and a given value never changes.
    Raises UsageError for a negative value.
    """

    def __init__(self, total_bytes: int = 0, gap_ns: int = 0) -> None:
        for name, value in (("total_bytes", total_bytes), ("gap_ns", gap_ns)):
            if value < 0:
                raise UsageError(f"{name}: expected a number of at least 0 (0: learn it), got {value}")
        self.total_bytes = total_bytes
        self.gap_ns = gap_ns
        self.total_given = total_bytes > 0
        self.gap_given = gap_ns > 0
        self.gap_settled = self.gap_given
        self.reported = False
        self.longest_pause_ns = 0
        self.misses = 0
        self.iteration = 0
        self.start_ns = 0
        self.last_ns = 0
        self.bytes = 0
        self.seen_bytes = 0
        self._mean_from_ns = 0
        self._mean_bytes = 0
        self._stretch_ns = 0
        self._stretch_mark = 0
        self._silence_ns = 0
        self._window_ns = 0
        self._window_bytes = 0
        self._window_floor = 0
        self._rungs = [_Rung() for _ in range(RUNGS)]
        self._boundary = 0
        self.burst_from = 0
        self.silent_ns = 0  # between the bursts of this iteration, and of the last one
        self.last_silent_ns = 0
        self._last: list[_Silence] = []  # of the last iteration, and of this one
        self._found: list[_Silence] = []
        self._next = 0  # the first of `_last` that is not behind
        self._end = 0  # the one of `_last` at which the present burst ends
        self._longest_ns = 0
        self._last_longest_ns = 0

    @property
    def recognised(self) -> bool:
        """Whether both total_bytes and the gap are known."""
        return self.total_bytes > 0 and self.gap_settled

    def ratio_q16(self) -> int:
        """bytes_ratio of the present burst in Q16; 0 while total_bytes is unknown."""
        if not self.total_bytes:
            return 0
        known = self._end < len(self._last) and self._last[self._end].seen >= BURST_KNOWN
        end = self._last[self._end].bytes if known else self.total_bytes
        return ratio_q16(self.bytes - self.burst_from, max(1, end - self.burst_from))

    @property
    def burst_ratio(self) -> float:
        """bytes_ratio of the present burst, 0 to 1; 0 while total_bytes is unknown."""
        return self.ratio_q16() / ONE_Q16

    def factor(self, aggressiveness: Aggressiveness) -> int:
        """F in Q16 now; 1 (the base algorithm) while iterations are not recognised."""
        return aggressiveness.fixed(self.ratio_q16()) if self.recognised else ONE_Q16

    def observe(
        self, now_ns: int, acked_bytes: int, begins: bool = False, busy: bool = False
    ) -> IterationRecord | None:
        """Count `acked_bytes` that were acknowledged at `now_ns` (above 0, any monotonic clock).

        `begins`: a flow of the job that was silent for more than the gap sends again. `busy`: since the last call there
        was data in flight all the time, so that a silence is of the network (a retransmission time-out, a long round
        trip) and no pause of the job. Returns the record of the previous iteration, if this call begins a new one. A
        time before that of the last call counts as the same time.
        """
        silence_ns = 0
        if self.last_ns == 0:
            self.start_ns = self.last_ns = self._mean_from_ns = self._stretch_ns = self._window_ns = now_ns
        elif now_ns > self.last_ns:
            if busy:
                self._stretch_ns += now_ns - self.last_ns  # nor is it a part of a stretch of small traffic
            else:
                silence_ns = now_ns - self.last_ns
            self._silence_ns = max(self._silence_ns, silence_ns)
            self._longest_ns = max(self._longest_ns, silence_ns)
            if now_ns - self._window_ns >= PAUSE_FLOOR_NS:
                self._begin_window(now_ns)
        self._window_bytes += acked_bytes
        active = self._window_bytes > self._window_floor or (begins and self.recognised)
        record = None
        if active and self._is_pause():
            record = self._after_small_traffic()
        elif silence_ns and not self._is_within_small(silence_ns, now_ns):
            record = self._after_pause(silence_ns, now_ns)
        self.last_ns = max(self.last_ns, now_ns)
        if active:
            self._stretch_ns, self._stretch_mark, self._silence_ns = (
                self.last_ns,
                self.seen_bytes + acked_bytes,
                0,
            )
        longest_ns = max(self._longest_ns, self._last_longest_ns)
        if silence_ns >= parting_silence_ns(longest_ns) and self.bytes > 0:
            self._after_silence(silence_ns)
        self.bytes += acked_bytes
        self.seen_bytes += acked_bytes
        self._follow_bursts()
        if self.recognised and self.bytes > 2 * self.total_bytes:
            self.reported = False
            self._forget()
        return record

    def boundary(self, number: int, now_ns: int) -> IterationRecord | None:
        """Take note that the program has reported, by a new number, that an iteration begins; returns that which ends.

        From then on iterations end at boundaries only, until one has more than twice its bytes. Numbers rise by one,
        from FIRST_BOUNDARY on and around; those below report nothing, and one that is behind is of a process that is.
        """
        if number < FIRST_BOUNDARY or number == self._boundary:
            return None
        if self.reported and (number - self._boundary) % BOUNDARIES > BOUNDARIES // 2:
            return None
        self._boundary = number
        if not self.reported:
            self.reported = True
            self._forget()
            self._rungs[0].previous_bytes = 0
        elif self.bytes:
            self._learn_between()
        return self._close(now_ns)

    def _learn_between(self) -> None:
        """Learn total_bytes from the iteration that a boundary ends."""
        previous = self._rungs[0].previous_bytes
        self._rungs[0].previous_bytes = self.bytes
        self.gap_settled = True
        if not self.total_given and (
            not self.total_bytes
            or _alike(self.bytes, self.total_bytes, ALIKE_SHIFT)
            or _alike(self.bytes, previous, ALIKE_SHIFT)
        ):
            self.total_bytes = self.bytes

    def _after_silence(self, silence_ns: int) -> None:
        """Take note of a silence within the iteration, and begin a burst if one began here before."""
        short = self.total_bytes >> SHORT_BURST_SHIFT
        if len(self._found) == BURSTS or (self.total_bytes and self.bytes + short >= self.total_bytes):
            return  # the latter is the next iteration's, as the program will report
        near = [
            each.seen
            for each in self._last[max(0, self._next - 1) : self._next + 1]
            if abs(each.bytes - self.bytes) <= short
        ]
        seen = min(max(near, default=0) + 1, BURST_KNOWN + 1)
        if self.bytes > (self._found[-1].bytes if self._found else 0) + short:
            self._found.append(_Silence(self.bytes, seen))
        if seen > BURST_KNOWN:
            self.burst_from = self.bytes
            self.silent_ns += silence_ns

    def _follow_bursts(self) -> None:
        """Let a burst end where one ended in the last iteration, also where there is no silence this time."""
        if self._next < len(self._last) and self.bytes >= self._last[self._next].bytes:
            self._next += 1
        if self._end >= len(self._last):
            return
        end = self._last[self._end]
        if end.seen < BURST_KNOWN or end.bytes <= self.burst_from + (self.total_bytes >> SHORT_BURST_SHIFT):
            self._end += 1
        elif self.bytes >= end.bytes:
            self.burst_from = end.bytes
            self._end += 1

    def observe_interval(
        self, from_ns: int, to_ns: int, acked: int, busy: bool = False
    ) -> IterationRecord | None:
        """Count bytes that were acknowledged at unknown times between two readings of a counter.

        A pause is the time between two intervals with acknowledgements, unless data was in flight (`busy`) at each
        reading from the end of the first one on; an interval without acknowledgements is ignored.
        """
        if acked == 0:
            return None
        record = self.observe(from_ns, acked, busy=busy)
        if self._stretch_ns == self.last_ns:
            self._stretch_ns = max(self.last_ns, to_ns)
        self.last_ns = max(self.last_ns, to_ns)
        return record

    def _begin_window(self, now_ns: int) -> None:
        """Begin to count the bytes of the next PAUSE_FLOOR_NS, and set how many are few."""
        self._mean_bytes += self._window_bytes
        windows = (now_ns - self._mean_from_ns) // PAUSE_FLOOR_NS + 1
        self._window_ns, self._window_bytes = now_ns, 0
        self._window_floor = self._mean_bytes // windows >> SMALL_SHIFT
        if windows >= MEAN_WINDOWS:
            self._mean_bytes >>= 1
            self._mean_from_ns += (now_ns - self._mean_from_ns) >> 1

    def _is_pause(self) -> bool:
        """Whether the stretch of small traffic up to this window was a pause."""
        length_ns = self._window_ns - self._stretch_ns
        return length_ns >= max(SHORTEST_STRETCH_NS, SILENCES_IN_STRETCH * self._silence_ns)

    def _is_within_small(self, silence_ns: int, now_ns: int) -> bool:
        """Whether a silence separates small traffic from small traffic, and so teaches nothing."""
        return self._stretch_ns < self.last_ns and 2 * silence_ns <= now_ns - self._stretch_ns

    def _after_small_traffic(self) -> IterationRecord | None:
        """Handle a pause with small traffic, whose bytes are of the next iteration."""
        last_ns, small = self.last_ns, self.seen_bytes - self._stretch_mark
        within = min(small, self.bytes)
        self.last_ns = self._stretch_ns
        self.bytes -= within
        self.seen_bytes -= small
        record = self._after_pause(self._window_ns - self._stretch_ns, self._window_ns, holds_small=True)
        self.last_ns = last_ns
        self.bytes += within
        self.seen_bytes += small
        return record

    def _after_pause(self, pause_ns: int, now_ns: int, holds_small: bool = False) -> IterationRecord | None:
        if self.reported:
            return None
        if self.gap_given:
            if pause_ns <= self.gap_ns:
                return None
        elif pause_ns < PAUSE_FLOOR_NS:
            return None
        if self.recognised and self.bytes > 0 and pause_ns > self.gap_ns:
            self._check(pause_ns)
        self._learn(pause_ns, holds_small)
        return self._close(now_ns) if pause_ns > self.gap_ns else None

    def _close(self, now_ns: int) -> IterationRecord | None:
        record = None
        if self.bytes > 0:
            record = IterationRecord(
                self.iteration, self.start_ns, self.last_ns, self.bytes, self.total_bytes, self.gap_ns
            )
            self.iteration += 1
            self._last, self._found, self._last_longest_ns = self._found, [], self._longest_ns
            self.last_silent_ns = self.silent_ns
        self.start_ns = now_ns
        self.bytes = self.burst_from = self._next = self._end = self._longest_ns = self.silent_ns = 0
        return record

    def _check(self, pause_ns: int) -> None:
        """Compare the iteration that this pause ends with total_bytes."""
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
        """Let the gap follow slow changes of the compute time; a single long pause is ignored."""
        # Two branches, because C has unsigned integers only here, and a signed shift would round differently.
        if pause_ns < self.longest_pause_ns:
            self.longest_pause_ns -= (self.longest_pause_ns - pause_ns) >> 3
        elif pause_ns <= 2 * self.longest_pause_ns:
            self.longest_pause_ns += (pause_ns - self.longest_pause_ns) >> 3
        self.gap_ns = self.longest_pause_ns >> 1

    def _learn(self, pause_ns: int, holds_small: bool) -> None:
        """Count this pause on the ladder and learn from the highest rung that counts it."""
        top = 0 if self.gap_given else _highest_rung(pause_ns)
        for rung in self._rungs[: top + 1]:
            rung.count(self.seen_bytes)
        highest = self._rungs[top]
        if self._teaches(highest, pause_ns) or (holds_small and self._teaches_longer(highest, pause_ns)):
            if not self.total_given:
                self.total_bytes = highest.previous_bytes
            if not self.gap_given:
                self.longest_pause_ns = pause_ns
                self.gap_ns = pause_ns >> 1
            self.gap_settled = True
            self.misses = 0
        elif not self.gap_settled:
            # A guess, which separates records until the gap is learned; F is 1 meanwhile.
            self.longest_pause_ns = max(pause_ns, self.longest_pause_ns - (self.longest_pause_ns >> 2))
            self.gap_ns = self.longest_pause_ns >> 1

    def _teaches(self, rung: _Rung, pause_ns: int) -> bool:
        """Whether the counts of this rung show iterations that are not known yet."""
        if self.total_given:
            return not self.gap_settled and _alike(rung.previous_bytes, self.total_bytes, ALIKE_SHIFT)
        if rung.alike < LEARN_ALIKE:
            return False
        if self.total_bytes == 0:
            return True
        # Equal buckets may have been learned as iterations before the first compute phase was seen.
        return (
            not self.gap_given
            and pause_ns > 2 * self.longest_pause_ns
            and not _alike(rung.previous_bytes, self.total_bytes, ALIKE_SHIFT)
            and rung.previous_bytes <= LARGEST_REGROUPING * self.total_bytes
        )

    def _teaches_longer(self, rung: _Rung, pause_ns: int) -> bool:
        """Whether a silence at the begin of small traffic was taken for the whole pause."""
        return (
            self.gap_settled
            and not self.gap_given
            and pause_ns > 2 * self.longest_pause_ns
            and (self.total_given or rung.alike >= LEARN_ALIKE)
            and _alike(rung.previous_bytes, self.total_bytes, ALIKE_SHIFT)
        )

    def _forget(self) -> None:
        """Return to learning every value that was not given; the ladder keeps its counts."""
        self.misses = 0
        if not self.total_given:
            self.total_bytes = 0
        if not self.gap_given:
            self.gap_settled = False
            self.longest_pause_ns = 0
            self.gap_ns = 0


def boundary_number(iterations: int) -> int:
    """The number by which a program reports that so many iterations have ended, and another one begins."""
    return FIRST_BOUNDARY + iterations % BOUNDARIES


def matches(sent_bytes: int, total_bytes: int) -> bool:
    """Whether these are the bytes of a whole iteration of a job that sends `total_bytes` in one (0: unknown)."""
    return total_bytes > 0 and _alike(sent_bytes, total_bytes, ALIKE_SHIFT)


def parting_silence_ns(longest_ns: float) -> float:
    """The shortest silence that may part two bursts of an iteration whose longest one is this."""
    return max(BURST_FLOOR_NS, longest_ns // (1 << BURST_SHIFT))


def _alike(a: int, b: int, shift: int) -> bool:
    return abs(a - b) <= max(a, b) >> shift


def _highest_rung(pause_ns: int) -> int:
    """The highest rung that counts a pause of this length (at least PAUSE_FLOOR_NS)."""
    rung = 0
    while rung < RUNGS - 1 and pause_ns >= PAUSE_FLOOR_NS << (rung + 1):
        rung += 1
    return rung
