"""A bottleneck link: its rate, its queue, and the queue length from which it marks packets."""

from __future__ import annotations

from dataclasses import dataclass

from mltcp.core.errors import UsageError
from mltcp.core.quantities import check_number

ETHERNET_HEADER_BYTES = 14
_LARGEST_PACKET_BYTES = (
    70_000  # of an offloaded packet: 64 KB, and the headers of its segments, which a qdisc counts
)
MIN_RATE_BPS, MAX_RATE_BPS = 100_000, 100 * 10**9
MIN_MTU, MAX_MTU = 576, 9216
MAX_QUEUE_BYTES = 2**30
MAX_CLASSES = 8
_BURST_S = 0.0005


@dataclass(frozen=True)
class Link:
    """A link between two switches, the same in both directions.

    Attributes:
        rate_bps: in bits per second, Ethernet headers included.
        queue_bytes: size of the drop-tail queue, Ethernet headers included.
        ecn_threshold_bytes: queue above which ECN-capable packets are marked; None: never.
        ecn_highest_bytes: queue above which all of them are; up to it the probability rises to `ecn_probability`, as by
            WRED. None: a step at the threshold.
        ecn_probability: at the end of that ramp.
        mtu: largest IP packet, in bytes.
        acks_first: whether acknowledgements without data overtake data in the queue.
        classes: queues, of which the highest traffic class that has packets is sent first; 1: one, which ignores DSCP.
        offloads: whether segmentation offloads stay on, so that packets of up to 64 KB are sent, queued and dropped.

    Raises:
        UsageError: a value is outside its range, which the message names.
    """

    rate_bps: int
    queue_bytes: int
    ecn_threshold_bytes: int | None = None
    mtu: int = 1500
    acks_first: bool = False
    offloads: bool = False
    classes: int = 1
    ecn_highest_bytes: int | None = None
    ecn_probability: float = 1.0

    def __post_init__(self) -> None:
        _check_range("link.rate_bps", self.rate_bps, MIN_RATE_BPS, MAX_RATE_BPS, "bit/s")
        _check_range("link.mtu", self.mtu, MIN_MTU, MAX_MTU, "bytes")
        _check_range("link.queue_bytes", self.queue_bytes, self.frame_bytes, MAX_QUEUE_BYTES, "bytes")
        _check_range("link.classes", self.classes, 1, MAX_CLASSES, "queues")
        if self.classes > 1 and self.acks_first:
            raise UsageError("link.classes: expected 1 where acknowledgements go first, got both")
        if self.ecn_threshold_bytes is not None:
            _check_range("link.ecn_threshold_bytes", self.ecn_threshold_bytes, 1, self.queue_bytes, "bytes")
        if self.ecn_highest_bytes is not None:
            least = self.ecn_threshold_bytes or self.queue_bytes
            _check_range("link.ecn_highest_bytes", self.ecn_highest_bytes, least, self.queue_bytes, "bytes")
        check_number(self.ecn_probability, field="link.ecn_probability", lowest=0, highest=1)

    @property
    def ramp(self) -> dict[str, int | float]:
        """Where marks are drawn, as a document tells it; empty for a step."""
        if self.ecn_highest_bytes is None:
            return {}
        return {"ecn_highest_bytes": self.ecn_highest_bytes, "ecn_probability": self.ecn_probability}

    @property
    def frame_bytes(self) -> int:
        """The largest frame: a full packet with its Ethernet header."""
        return (_LARGEST_PACKET_BYTES if self.offloads else self.mtu) + ETHERNET_HEADER_BYTES

    @property
    def rate_bytes_per_s(self) -> int:
        """The rate in the unit of the kernel's shapers."""
        return self.rate_bps // 8

    @property
    def burst_bytes(self) -> int:
        """The burst of the shaper: the bytes of half a millisecond, but at least two frames (one with offloads).

        With offloads two frames would be a millisecond at 1 Gbit/s, as much as the round trips of a data centre.
        """
        least = self.frame_bytes if self.offloads else 2 * self.frame_bytes
        return max(least, int(self.rate_bytes_per_s * _BURST_S))


def _check_range(field: str, value: int, lowest: int, highest: int, unit: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
        raise UsageError(f"{field}: expected a whole number from {lowest} to {highest} {unit}, got {value!r}")
