"""Measures what a job's class in each transmit queue uses of the job's rate, over periods in which that can be told.

A packet may have 64 KiB (segmentation offload): at 6 Mbit/s a queue sends one in 80 ms. So at low rates a period lasts
until every queue in use could have sent a few.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
