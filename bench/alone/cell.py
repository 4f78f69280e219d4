"""The cells of the table: a link, a job, and what happens to its packets."""

from __future__ import annotations

from dataclasses import dataclass

from bench.lab.link import MAX_QUEUE_BYTES, Link
from mltcp.core.errors import UsageError

BASES = ("reno", "cubic", "bpf_dctcp")
"""The controls that MLTCP's are made from; plain DCTCP is this project's, for the same code."""

DEEP = 0.0
"""The queue of the sender's own NIC: TCP keeps it short (TCP small queues), and it never overflows."""

SEGMENT_BYTES = 1448  # at an MTU of 1500 with time stamps
_LEAST_QUEUE_BYTES = 150_000
MIN_PAUSE_S, MAX_PAUSE_S = 0.01, 60.0
MAX_RTT_S = 0.19
MAX_ITERATION_BYTES = 400_000_000


@dataclass(frozen=True)
class AloneCell:
    """A job alone on a link.

    Attributes:
        name: in the table and for ``--cells``.
        rate_bps, rtt_s: of the link; 0: the path's own round trip.
        pause_s: the job computes for so long.
        iteration_bytes: it sends in each iteration, over all flows.
        flows: its connections.
        offloads: whether packets have up to 64 KB.
        queue_bdp: the drop-tail queue of a switch, in bandwidth-delay products; `DEEP`: the link is the sender's own.
        mark_bdp: packets that find this queue are marked, in bandwidth-delay products; 0: none are.
        tail_segments: so many of the last segments of an iteration are dropped once; 0: none.
        tail_every: in the last of every so many iterations.
        rto_min_s: the least retransmission time-out.
        receiver_ecn: the receiver's ``tcp_ecn``.
        peer: whether the receiver is of the same job, and so listens under the base control; else it is any server.
        slow_start_after_idle: the sender's setting.
        warm_up: iterations before those that count, in which the controls learn the job.
        iterations: that count.
        bases: the base controls that it is run with unless controls are asked for.
    """

    name: str
    rate_bps: int
    rtt_s: float
    pause_s: float
    iteration_bytes: int
    flows: int = 1
    offloads: bool = True
    queue_bdp: float = DEEP
    mark_bdp: float = 0.0
    tail_segments: int = 0
    tail_every: int = 1
    rto_min_s: float = 0.2
    receiver_ecn: int = 2
    peer: bool = False
    slow_start_after_idle: bool = True
    warm_up: int = 4
    iterations: int = 5
    bases: tuple[str, ...] = BASES[:2]

    def __post_init__(self) -> None:
        for field, lowest, highest in (
            ("rtt_s", 0.0, MAX_RTT_S),
            ("pause_s", MIN_PAUSE_S, MAX_PAUSE_S),
            ("iteration_bytes", 10_000, MAX_ITERATION_BYTES),
            ("flows", 1, 64),
            ("queue_bdp", 0.0, 1000.0),
            ("mark_bdp", 0.0, 1000.0),
            ("tail_segments", 0, 1000),
            ("tail_every", 1, 1000),
            ("rto_min_s", 0.001, 1.0),
            ("receiver_ecn", 0, 2),
            ("warm_up", 1, 1000),
            ("iterations", 1, 1000),
        ):
            if not lowest <= getattr(self, field) <= highest:
                raise UsageError(
                    f"{self.name}: {field}: expected {lowest:g} to {highest:g}, got {getattr(self, field):g}"
                )
        self.link  # noqa: B018 -- checks the rate and the queue

    @property
    def share_bytes(self) -> int:
        """The bytes of one flow in an iteration."""
        return self.iteration_bytes // self.flows

    @property
    def bdp_bytes(self) -> int:
        """The bytes that the link carries in a round trip, of at least 0.1 ms."""
        return int(self.rate_bps / 8 * max(self.rtt_s, 1e-4))

    @property
    def window_segments(self) -> float:
        """The segments that fill the link, of each flow."""
        return self.bdp_bytes / SEGMENT_BYTES / self.flows

    @property
    def expected_s(self) -> float:
        """How long an arm takes, at least."""
        sending_s = self.iteration_bytes * 8 / self.rate_bps + self.rtt_s
        return (self.warm_up + self.iterations) * (self.pause_s + sending_s)

    @property
    def own_nic(self) -> bool:
        """Whether the bottleneck is the sender's own NIC, whose queue TCP keeps short, and not a switch."""
        return self.queue_bdp == DEEP and not self.mark_bdp

    @property
    def link(self) -> Link:
        """The bottleneck."""
        wanted = (
            self.iteration_bytes * 2 if self.queue_bdp == DEEP else round(self.queue_bdp * self.bdp_bytes)
        )
        # One offloaded packet, and one more, must fit whatever the product is.
        queue = min(MAX_QUEUE_BYTES, max(wanted, _LEAST_QUEUE_BYTES if self.offloads else 20_000))
        threshold = max(3_000, round(self.mark_bdp * self.bdp_bytes)) if self.mark_bdp else None
        return Link(self.rate_bps, queue, threshold, offloads=self.offloads)

    @property
    def besides(self) -> str:
        """The queue, losses, marks and settings in a few words; empty if there is nothing to say."""
        parts = [] if self.own_nic else [f"a switch's queue of {self.link.queue_bytes / 1e3:g} kB"]
        if self.mark_bdp:
            peer = "a peer" if self.peer else "a server"
            parts.append(
                f"marks at {self.link.ecn_threshold_bytes or 0} B, {peer} with tcp_ecn={self.receiver_ecn}"
            )
        if self.tail_segments:
            which = "each iteration" if self.tail_every == 1 else f"every {self.tail_every} iterations"
            parts.append(
                f"the last {self.tail_segments} of {which} lost, RTO from {self.rto_min_s * 1e3:g} ms"
            )
        if not self.slow_start_after_idle:
            parts.append("tcp_slow_start_after_idle=0")
        return "; ".join(parts)


# -- the cells that are measured by default ----------------------------------------------------------------------------

_GIGA, _MEGA = 10**9, 10**6
_LONG_WARM_UP = 14
"""Where windows of hundreds of packets recover from the first slow start: it ends in one of two ways, by chance."""


def default_cells() -> tuple[AloneCell, ...]:
    """All cells: they span rates, round trips, pauses, flows, losses, marks and settings, but are not all products.

    Packets of 1500 bytes at 1 Gbit/s keep a processor of a small machine busy: where they matter, links are slower.
    """
    return (*_without_losses(), *_with_losses(), *_with_marks())


def _without_losses() -> tuple[AloneCell, ...]:
    return (
        AloneCell("1g-10ms", _GIGA, 0.01, 0.35, 25 * _MEGA, bases=BASES),
        AloneCell("1g-10ms-long", _GIGA, 0.01, 1.5, 25 * _MEGA, iterations=2),
        AloneCell("1g-10ms-4flows", _GIGA, 0.01, 0.35, 25 * _MEGA, flows=4),
        AloneCell("1g-10ms-long-4flows", _GIGA, 0.01, 1.5, 25 * _MEGA, flows=4, iterations=2),
        AloneCell("1g-10ms-no-restart", _GIGA, 0.01, 0.35, 25 * _MEGA, slow_start_after_idle=False),
        AloneCell("1g-1ms", _GIGA, 0.001, 0.35, 25 * _MEGA),
        AloneCell("1g-1ms-long", _GIGA, 0.001, 1.5, 25 * _MEGA, iterations=2),
        AloneCell("1g-1ms-5s", _GIGA, 0.001, 5.0, 12 * _MEGA, iterations=1, bases=("cubic",)),
        AloneCell("1g-1ms-short", _GIGA, 0.001, 0.05, 12 * _MEGA),
        AloneCell("400m-1ms-small", 400 * _MEGA, 0.001, 0.2, 8 * _MEGA, offloads=False),
        AloneCell("100m-50ms", _GIGA // 10, 0.05, 0.3, 2_500_000),
        AloneCell("100m-5ms", _GIGA // 10, 0.005, 0.25, 2_500_000, offloads=False),
        AloneCell("100m-1ms", _GIGA // 10, 0.001, 0.2, 2 * _MEGA, offloads=False),
        AloneCell("2500m-5ms", 5 * _GIGA // 2, 0.005, 0.35, 50 * _MEGA),
        AloneCell("3g-1ms", 3 * _GIGA, 0.001, 0.35, 75 * _MEGA, bases=BASES),
        AloneCell("5g-100us", 5 * _GIGA, 0.0, 0.2, 100 * _MEGA),
        AloneCell("10g-100us", 10 * _GIGA, 0.0, 0.2, 200 * _MEGA),
        AloneCell("10g-100us-4flows", 10 * _GIGA, 0.0, 0.2, 200 * _MEGA, flows=4),
    )


def _with_losses() -> tuple[AloneCell, ...]:
    slow, one_ms = _GIGA // 10, 0.001
    return (
        AloneCell("1g-10ms-losses", _GIGA, 0.01, 0.25, 25 * _MEGA, queue_bdp=0.5, warm_up=_LONG_WARM_UP),
        AloneCell("400m-1ms-losses", 400 * _MEGA, one_ms, 0.25, 10 * _MEGA, offloads=False, queue_bdp=1.0),
        AloneCell("100m-5ms-losses", slow, 0.005, 0.25, 2_500_000, offloads=False, queue_bdp=0.5),
        AloneCell("400m-1ms-tail", 400 * _MEGA, one_ms, 0.35, 5 * _MEGA, offloads=False, tail_segments=1),
        AloneCell(
            "100m-1ms-tail-5ms", slow, one_ms, 0.1, _MEGA, offloads=False, tail_segments=1, rto_min_s=0.005
        ),
        AloneCell(
            "100m-1ms-tail-half", slow, one_ms, 0.1, _MEGA, offloads=False, tail_segments=8, tail_every=2
        ),
    )


def _with_marks() -> tuple[AloneCell, ...]:
    return (
        AloneCell(
            "1g-10ms-marks",
            _GIGA,
            0.01,
            0.25,
            25 * _MEGA,
            queue_bdp=4.0,
            mark_bdp=0.3,
            peer=True,
            warm_up=_LONG_WARM_UP,
            bases=BASES,
        ),
        AloneCell(
            "400m-1ms-marks",
            400 * _MEGA,
            0.001,
            0.2,
            10 * _MEGA,
            offloads=False,
            queue_bdp=8.0,
            mark_bdp=0.5,
            peer=True,
            bases=BASES,
        ),
        AloneCell(
            "100m-1ms-marks-long",
            _GIGA // 10,
            0.001,
            1.0,
            2 * _MEGA,
            offloads=False,
            queue_bdp=8.0,
            mark_bdp=1.0,
            iterations=2,
            peer=True,
            bases=("bpf_dctcp",),
        ),
        AloneCell(
            "1g-1ms-no-ecn",
            _GIGA,
            0.001,
            0.2,
            12 * _MEGA,
            queue_bdp=2.0,
            mark_bdp=0.5,
            receiver_ecn=0,
            bases=BASES,
        ),
    )
