"""What jobs ask of a link that they share and what they take from each other, by samples of who has data in flight.

At random times it is noted which jobs have data in flight, and how many bytes of each have been acknowledged. The rate
of the link is that of all bytes in the time in which anybody has. Alone, a job needs its bytes over that rate; the rest
of its time in flight, as far as others have data in flight too, it has *lost* to them: it would have computed then, so
that in the rest of its time it has made as many iterations as it makes alone in that time.
Its *demand* is the part of an iteration alone for which it needs the link, and that of a link the sum over its jobs: up
to 1 they fit; far above, the link is always busy, and no law can give to one what it does not take from another.

    lost(j) = min(in flight(j) - bytes(j) / rate, in flight with others(j))
    demand(j) = bytes(j) / rate / (1 - lost(j)), all per second

The demand is that of the jobs and not of a law: it is the same however they share the link. What is lost is divided
among the others by their bytes since the last sample, at those samples at which they are in flight too.

A job that sends a little while it computes has data in flight for longer than it needs. So that this is no use of the
link, its rate is at least that at which the median byte was sent.

Errors: where a sample is taken at a random time of each of equal intervals, a part p of the time has a standard error
of at most sqrt(p (1 - p) / samples). A job that also computes while it sends loses less than is said here, and asks for
less.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

_RATES = 400
"""The intervals whose rates are kept."""


class SendReading(NamedTuple):
    """Whether a job has data in flight, and the bytes of it that have been acknowledged so far."""

    in_flight: bool
    acked_bytes: int


@dataclass(frozen=True)
class LinkAccount:
    """What a job had of a link. All are parts of its time, 0 to 1.

    Attributes:
        in_flight: it had data in flight.
        lost: of that, what each other job has taken, by number.
        demand: the part of an iteration alone for which it needs the link.
        error: at most, the standard error of what it lost.
        samples: by which this is known.
    """

    in_flight: float
    lost: Mapping[int, float]
    demand: float
    error: float
    samples: float

    @property
    def lost_in_all(self) -> float:
        """What it lost to all others: 1 less its throughput over that alone."""
        return sum(self.lost.values())


@dataclass
class _Counts:
    """What was counted of a job: samples, seconds, and bytes; samples in flight, with others, and what each took."""

    samples: float = 0.0
    seconds: float = 0.0
    sent_bytes: float = 0.0
    in_flight: float = 0.0
    together: float = 0.0
    taken: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))

    @property
    def bytes_per_s(self) -> float:
        return self.sent_bytes / self.seconds if self.seconds else 0.0

    def fade(self, factor: float) -> None:
        for name in ("samples", "seconds", "sent_bytes", "in_flight", "together"):
            setattr(self, name, getattr(self, name) * factor)
        for other in self.taken:
            self.taken[other] *= factor


class LinkUse:
    """Accounts of the jobs on one link, which are identified by numbers; old samples fade."""

    def __init__(self) -> None:
        self._jobs: defaultdict[int, _Counts] = defaultdict(_Counts)
        self._samples = self._busy = 0.0
        self._acked: Mapping[int, int] = {}
        self._rates: deque[tuple[float, int]] = deque(maxlen=_RATES)
        self._sampled_s = math.inf

    def sample(self, now_s: float, readings: Mapping[int, SendReading]) -> None:
        """Count a reading of all jobs on the link."""
        elapsed_s, self._sampled_s = max(0.0, now_s - self._sampled_s), now_s
        acked = {number: reading.acked_bytes for number, reading in readings.items()}
        sent = {number: max(0, count - self._acked.get(number, count)) for number, count in acked.items()}
        self._acked = acked
        total = sum(sent.values())
        if elapsed_s and total:
            self._rates.append((total / elapsed_s, total))
        senders = [number for number, reading in readings.items() if reading.in_flight]
        self._samples += 1
        self._busy += bool(senders)
        for number, reading in readings.items():
            counts = self._jobs[number]
            counts.samples += 1
            counts.seconds += elapsed_s
            counts.sent_bytes += sent[number]
            counts.in_flight += reading.in_flight
        if len(senders) > 1:
            self._count_together(senders, sent)

    def _count_together(self, senders: Collection[int], sent: Mapping[int, int]) -> None:
        for loser in senders:
            counts = self._jobs[loser]
            counts.together += 1
            others = [number for number in senders if number != loser]
            theirs = sum(sent[number] for number in others)
            for taker in others:
                counts.taken[taker] += sent[taker] / theirs if theirs else 1 / len(others)

    def fade(self, factor: float) -> None:
        """Let all that was counted count for `factor` of what it did."""
        self._samples *= factor
        self._busy *= factor
        for counts in self._jobs.values():
            counts.fade(factor)

    def keep(self, present: Collection[int]) -> None:
        """Forget the jobs that are not present any more."""
        for number in self._jobs.keys() - set(present):
            del self._jobs[number]
        for counts in self._jobs.values():
            for other in counts.taken.keys() - set(present):
                del counts.taken[other]

    def accounts(self) -> dict[int, LinkAccount]:
        """The account of each job."""
        rate = self._rate()
        return {number: _account(counts, rate) for number, counts in self._jobs.items()}

    def _rate(self) -> float:
        """The bytes a second that the link carries while it is used; 0: nothing was sent yet."""
        carried = sum(counts.bytes_per_s for counts in self._jobs.values())
        return max(
            carried * self._samples / self._busy if self._busy else 0.0,
            _rate_of_median_byte(self._rates),
        )


def _account(counts: _Counts, rate: float) -> LinkAccount:
    in_flight, together = counts.in_flight / counts.samples, counts.together / counts.samples
    needed = min(in_flight, counts.bytes_per_s / rate) if rate else in_flight
    lost = min(in_flight - needed, together)
    taken = sum(counts.taken.values())
    return LinkAccount(
        in_flight,
        {other: lost * part / taken for other, part in counts.taken.items() if lost and part},
        needed / (1 - lost) if needed else 0.0,
        math.sqrt(max(0.0, lost * (1 - lost)) / counts.samples),
        counts.samples,
    )


def _rate_of_median_byte(rates: Collection[tuple[float, int]]) -> float:
    until = sum(count for _, count in rates) / 2
    for rate, count in sorted(rates):
        until -= count
        if until <= 0:
            return rate
    return 0.0
