"""The cells of the table: a link, a job, and what happens to its packets."""

from __future__ import annotations

from dataclasses import dataclass

from bench.lab.link import MAX_QUEUE_BYTES, Link
from mltcp.core.errors import UsageError
from mltcp.core.quantities import format_rate

DEEP = 0.0
"""The queue of a cell that holds more than an iteration, so that it never overflows."""

_SEGMENT_BYTES = 1448  # at an MTU of 1500 with time stamps
_LEAST_QUEUE_BYTES = 150_000
_WARM_UP = 4
MIN_PAUSE_S, MAX_PAUSE_S = 0.01, 60.0
MAX_RTT_S = 0.19
MAX_ITERATION_BYTES = 400_000_000


@dataclass(frozen=True)
class Cell:
    """A job alone on a link.

    Attributes:
        name: in the table and for ``--cells``.
        rate_bps, rtt_s: of the link; 0: the path's own round trip.
        pause_s: the job computes for so long.
        iteration_bytes: it sends in each iteration, over all flows.
        flows: its connections.
        offloads: whether packets have up to 64 KB.
        queue_bdp: the drop-tail queue, in bandwidth-delay products; `DEEP`: an iteration fits.
        mark_bdp: packets that find this queue are marked, in bandwidth-delay products; 0: none are.
        tail_segments: so many of the last segments of an iteration are dropped once; 0: none.
        tail_every: in the last of every so many iterations.
        rto_min_s: the least retransmission time-out.
        receiver_ecn: the receiver's ``tcp_ecn``.
        slow_start_after_idle: the sender's setting.
        iterations: that count, after the warm-up.
        bases: the base controls that it is run with by default.
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
    slow_start_after_idle: bool = True
    iterations: int = 5
    bases: tuple[str, ...] = ("reno", "cubic")

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
            ("iterations", 1, 1000),
        ):
            if not lowest <= getattr(self, field) <= highest:
                raise UsageError(
                    f"{self.name}: {field}: expected {lowest:g} to {highest:g}, got {getattr(self, field):g}"
                )
        self.link  # noqa: B018 -- checks the rate and the queue

    @property
    def warm_up(self) -> int:
        """The iterations before those that count, in which the controls learn the job."""
        return _WARM_UP

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
        return self.bdp_bytes / _SEGMENT_BYTES / self.flows

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
    def summary(self) -> str:
        """The link and the job in a few words."""
        parts = [f"{format_rate(self.rate_bps)} x {self.rtt_s * 1e3:g} ms", f"pause {self.pause_s:g} s"]
        parts += [f"{self.iteration_bytes / 1e6:g} MB"]
        parts += [f"{self.flows} flows"] if self.flows > 1 else []
        return ", ".join(parts)


def default_cells() -> tuple[Cell, ...]:
    """The table's cells, in order."""
    giga, mega = 10**9, 10**6
    dctcp = ("bpf_dctcp",)
    every = ("reno", "cubic", "bpf_dctcp")
    return (
        Cell("1g-10ms", giga, 0.01, 0.35, 25 * mega),
        Cell("1g-10ms-long", giga, 0.01, 1.5, 25 * mega, iterations=3),
        Cell("1g-10ms-4flows", giga, 0.01, 0.35, 25 * mega, 4),
        Cell("1g-10ms-long-4flows", giga, 0.01, 1.5, 25 * mega, 4, iterations=3),
        Cell("1g-1ms", giga, 0.001, 0.35, 25 * mega),
        Cell("1g-1ms-long", giga, 0.001, 1.5, 25 * mega, iterations=3),
        Cell("1g-1ms-5s", giga, 0.001, 5.0, 12 * mega, iterations=2, bases=("cubic",)),
        Cell("1g-1ms-short", giga, 0.001, 0.05, 12 * mega),
        Cell("1g-1ms-small-packets", giga, 0.001, 0.35, 12 * mega, offloads=False),
        Cell("100m-50ms", 100 * mega, 0.05, 0.5, 2_500_000),
        Cell("100m-5ms", 100 * mega, 0.005, 0.3, 2_500_000, offloads=False),
        Cell("100m-1ms", 100 * mega, 0.001, 0.2, 2 * mega, offloads=False),
        Cell("2500m-5ms", 5 * giga // 2, 0.005, 0.35, 50 * mega),
        Cell("3g-1ms", 3 * giga, 0.001, 0.35, 75 * mega),
        Cell("5g-100us", 5 * giga, 0.0, 0.2, 100 * mega),
        Cell("10g-100us", 10 * giga, 0.0, 0.2, 200 * mega),
        Cell("10g-100us-4flows", 10 * giga, 0.0, 0.2, 200 * mega, 4),
        Cell("1g-1ms-losses", giga, 0.001, 0.35, 25 * mega, queue_bdp=1.0, offloads=False),
        Cell("1g-10ms-losses", giga, 0.01, 0.35, 25 * mega, queue_bdp=0.5),
        Cell("100m-5ms-losses", 100 * mega, 0.005, 0.3, 2_500_000, queue_bdp=0.5, offloads=False),
        Cell("1g-1ms-tail", giga, 0.001, 0.35, 12 * mega, offloads=False, tail_segments=1),
        Cell(
            "100m-1ms-tail-5ms",
            100 * mega,
            0.001,
            0.1,
            1 * mega,
            offloads=False,
            tail_segments=1,
            rto_min_s=0.005,
        ),
        Cell(
            "100m-1ms-tail-half",
            100 * mega,
            0.001,
            0.1,
            1 * mega,
            offloads=False,
            tail_segments=8,
            tail_every=2,
        ),
        Cell(
            "1g-1ms-marks",
            giga,
            0.001,
            0.35,
            25 * mega,
            offloads=False,
            mark_bdp=0.3,
            receiver_ecn=1,
            bases=every,
        ),
        Cell("1g-10ms-marks", giga, 0.01, 0.35, 25 * mega, mark_bdp=0.3, bases=every),
        Cell(
            "100m-1ms-marks-long",
            100 * mega,
            0.001,
            1.0,
            2 * mega,
            offloads=False,
            mark_bdp=1.0,
            iterations=3,
            bases=dctcp,
        ),
        Cell(
            "1g-1ms-no-ecn",
            giga,
            0.001,
            0.35,
            12 * mega,
            queue_bdp=2.0,
            mark_bdp=0.3,
            receiver_ecn=0,
            bases=every,
        ),
        Cell("1g-10ms-no-restart", giga, 0.01, 0.35, 25 * mega, slow_start_after_idle=False),
    )
