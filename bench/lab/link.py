"""A bottleneck link: how fast it is, how much it queues, and from what queue on it marks packets."""

from __future__ import annotations

from dataclasses import dataclass

from mltcp.core.errors import UsageError

ETHERNET_HEADER_BYTES = 14
MIN_RATE_BPS, MAX_RATE_BPS = 100_000, 100 * 10**9
MIN_MTU, MAX_MTU = 576, 9216
MAX_QUEUE_BYTES = 2**30
_BURST_S = 0.0005


@dataclass(frozen=True)
class Link:
    """A link between two switches, the same in both directions.

    Attributes:
        rate_bps: what it carries, in bits per second, Ethernet headers included.
        queue_bytes: how much waits before it drops (drop-tail), Ethernet headers included.
        ecn_threshold_bytes: queue above which ECN-capable packets are marked; None: never.
        mtu: largest IP packet, in bytes.

    Raises:
        UsageError: a value is outside its range, which the message names.
    """

    rate_bps: int
    queue_bytes: int
    ecn_threshold_bytes: int | None = None
    mtu: int = 1500

    def __post_init__(self) -> None:
        _check_range("link.rate_bps", self.rate_bps, MIN_RATE_BPS, MAX_RATE_BPS, "bit/s")
        _check_range("link.mtu", self.mtu, MIN_MTU, MAX_MTU, "bytes")
        _check_range("link.queue_bytes", self.queue_bytes, self.frame_bytes, MAX_QUEUE_BYTES, "bytes")
        if self.ecn_threshold_bytes is not None:
            _check_range("link.ecn_threshold_bytes", self.ecn_threshold_bytes, 1, self.queue_bytes, "bytes")

    @property
    def frame_bytes(self) -> int:
        """The largest frame: a full packet with its Ethernet header."""
        return self.mtu + ETHERNET_HEADER_BYTES

    @property
    def rate_bytes_per_s(self) -> int:
        """The rate in the unit of the kernel's shapers."""
        return self.rate_bps // 8

    @property
    def burst_bytes(self) -> int:
        """What the shaper lets through at once after a pause: half a millisecond, but at least two frames."""
        return max(2 * self.frame_bytes, int(self.rate_bytes_per_s * _BURST_S))


def _check_range(field: str, value: int, lowest: int, highest: int, unit: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"{field} is {value!r}: a whole number from {lowest} to {highest} {unit} is allowed")
    if not lowest <= value <= highest:
        raise UsageError(f"{field} is {value}: {lowest} to {highest} {unit} are allowed")
