"""The link of the model: one queue with a byte limit and ECN marks by a virtual queue, as in the lab."""

from __future__ import annotations

from dataclasses import dataclass

from mltcp.core.quantities import check_number

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
