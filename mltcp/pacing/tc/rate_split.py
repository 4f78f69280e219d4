"""Divides a job's rate over the transmit queues of an interface by where its packets are.

The queue of a flow is the kernel's choice (its hash, or the core that sends), which user space cannot ask for. It shows
in the bytes that the job's class in each queue sends and holds back.

A job that uses less than its rate has it divided in proportion to its use. Of one that uses all, a queue that holds
packets back is limited by its share; one that does not, by its flows. Those get what they use, and a quarter more to
grow; the limited ones divide the rest in proportion to what they hold back, which is in proportion to
their flows, since TCP keeps about the same number of bytes of each below its socket. So the bytes that are sent in all
queues together are those of the job's rate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

# Measures what a job's class in each transmit queue uses of the job's rate, over periods in which
# that can be told.
#
# A packet may have 64 KiB (segmentation offload): at 6 Mbit/s a queue sends one in 80 ms. So at low
# rates a period lasts until every queue in use could have sent a few.


PACKETS = 2
"""The largest packets that each queue in use could have sent on average in a period."""

MOST_SAMPLES = 50
"""A period ends after so many samples, however low the rate is."""

_LARGEST_PACKET_BYTES = 65536


@dataclass(frozen=True)
class QueueUse:
    """The part of the job's rate that a queue has used in a period, and the bytes that it held back.

    Attributes:
        used: bytes sent over the bytes that the job's rate allowed.
        backlog_bytes: the mean of the samples, or 0 if fewer than half of them had a backlog.
    """

    used: float
    backlog_bytes: float


class QueueUseMeter:
    """Collects the samples of one job until a period is long enough."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._allowed_bytes = 0.0
        self._samples = 0
        self._sent_bytes: dict[int, int] = {}
        self._held_bytes: dict[int, int] = {}
        self._held_samples: dict[int, int] = {}

    def add(
        self, allowed_bytes: float, sent_bytes: Mapping[int, int], backlog_bytes: Mapping[int, int]
    ) -> dict[int, QueueUse] | None:
        """Add a sample; returns the use of every queue if it ends the period.

        One without traffic, such as in the pause of an iteration, does not count.

        Args:
            allowed_bytes: by the job's rate since the last sample.
            sent_bytes: since then, by queue.
            backlog_bytes: now, by the same queues.
        """
        if not any(sent_bytes.values()) and not any(backlog_bytes.values()):
            return None
        self._allowed_bytes += allowed_bytes
        self._samples += 1
        for queue, sent in sent_bytes.items():
            held = backlog_bytes[queue]
            self._sent_bytes[queue] = self._sent_bytes.get(queue, 0) + sent
            self._held_bytes[queue] = self._held_bytes.get(queue, 0) + held
            self._held_samples[queue] = self._held_samples.get(queue, 0) + (held > 0)
        if not self._is_complete():
            return None
        use = {queue: self._use(queue) for queue in sent_bytes}
        self._begin()
        return use

    def _is_complete(self) -> bool:
        in_use = sum(1 for queue, sent in self._sent_bytes.items() if sent or self._held_bytes[queue])
        enough_bytes = PACKETS * _LARGEST_PACKET_BYTES * in_use
        return self._allowed_bytes > 0 and (
            self._allowed_bytes >= enough_bytes or self._samples >= MOST_SAMPLES
        )

    def _use(self, queue: int) -> QueueUse:
        is_held = 2 * self._held_samples[queue] >= self._samples
        held = self._held_bytes[queue] / self._samples if is_held else 0.0
        return QueueUse(self._sent_bytes[queue] / self._allowed_bytes, held)


# -- shares of a rate ---------------------------------------------------------------------------


IDLE = 0.001
"""A queue that has sent less than this share of the job's rate, and holds nothing back, is idle."""

_HEADROOM = 1.25
_LIMITED = 0.9
_LESS_THAN_ITS_RATE = 0.7
_GAIN = 0.5
_LEAST_BACKLOG_BYTES = 1500


class RateSplit:
    """The shares of one job's rate, by queue.

    Until its first packets each queue has the whole rate: nothing is known, and the interface bounds them together.
    Later the shares of queues in use add up to 1; an idle one keeps a floor, so that a flow that moves there is not
    starved until the period ends (queue_use.py). The job exceeds its rate by at most the floors of the queues that its
    flows have moved to, and for one period.
    """

    def __init__(self, queues: Iterable[int]) -> None:
        self._shares = dict.fromkeys(queues, 1.0)
        self._active: set[int] = set()

    @property
    def floor(self) -> float:
        """The share of an idle queue."""
        return 1.0 / (2 * len(self._shares)) if len(self._shares) > 1 else 1.0

    @property
    def shares(self) -> Mapping[int, float]:
        """The share of every queue."""
        return self._shares

    @property
    def active(self) -> set[int]:
        """The queues that were in use when any was last; all of them before."""
        return self._active or set(self._shares)

    def follow(self, queues: Iterable[int]) -> None:
        """Divide over these queues from now on; a new one begins as idle, or with the whole rate as the others."""
        before = self._shares
        self._shares = dict.fromkeys(queues, 1.0)
        new = self.floor if self._active else 1.0
        self._shares = {queue: before.get(queue, new) for queue in self._shares}
        self._active &= self._shares.keys()

    def observe(self, use: Mapping[int, QueueUse]) -> None:
        """Adapt the shares to a period; one without traffic, such as the pause of an iteration, changes nothing."""
        active = {
            queue for queue, each in use.items() if each.used > IDLE or each.backlog_bytes
        } & self._shares.keys()
        if not active:
            return
        limited = {queue for queue in active if self._is_limited(queue, use[queue])}
        used = sum(use[queue].used for queue in active)
        # At a low rate a period may be shorter than one packet takes: all is held back, and nothing is sent.
        if limited and (used > _LESS_THAN_ITS_RATE or used == 0):
            self._divide(use, active, limited)
        else:
            self._keep_proportions(use, active)
        for queue in self._shares.keys() - active:
            self._shares[queue] = self.floor
        self._active = active

    def _is_limited(self, queue: int, use: QueueUse) -> bool:
        return use.backlog_bytes > 0 or use.used >= _LIMITED * self._shares[queue]

    def _divide(self, use: Mapping[int, QueueUse], active: set[int], limited: set[int]) -> None:
        free = 1.0
        for queue in active - limited:
            self._shares[queue] = min(1.0, max(self.floor, use[queue].used * _HEADROOM))
            free -= use[queue].used
        free = max(free, self.floor)
        held = {queue: max(use[queue].backlog_bytes, _LEAST_BACKLOG_BYTES) for queue in limited}
        total = sum(held.values())
        moved = {}
        for queue in limited:
            share = min(self._shares[queue], 1.0)
            moved[queue] = share + _GAIN * (free * held[queue] / total - share)
        # Exactly: the shares of the limited queues are what the job sends.
        scale = free / sum(moved.values())
        for queue, share in moved.items():
            self._shares[queue] = share * scale

    def _keep_proportions(self, use: Mapping[int, QueueUse], active: set[int]) -> None:
        """The job uses less than its rate: each queue may grow in proportion to its use."""
        total = sum(use[queue].used for queue in active)
        for queue in active:
            share = use[queue].used / total
            self._shares[queue] = max(self.floor / 2, share)
        scale = 1.0 / sum(self._shares[queue] for queue in active)
        for queue in active:
            self._shares[queue] *= scale
