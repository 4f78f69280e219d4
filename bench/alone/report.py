"""The table of a measurement: the time of each MLTCP control over that of its base, in words and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from bench import tables
from bench.alone.cell import AloneCell
from bench.alone.round import AlonePlan, AloneRound, base_of
from bench.compare.approach import Policy
from bench.lab.processors import BUSY
from bench.tables import Column, number
from mltcp.core.quantities import format_rate

SCHEMA = 1
WITHIN = 1.01
"""A control is as good as its base if it takes at most so much longer, in the median of the rounds."""

_WIDTH = 190


@dataclass(frozen=True)
class Compared:
    """A control in a cell.

    Attributes:
        cell: the cell.
        control, base: the names of both.
        ratio, low, high: of the times to send an iteration, median, least and most of the valid rounds.
        seconds, base_seconds: medians of the rounds.
        base_noise: the largest over the smallest time of the base in the rounds, less 1.
        marks, base_marks, retransmits, base_retransmits: an iteration.
        rounds, valid: their numbers.
        fault: why a round is not valid; None: all are.
        recognised_after: iterations until the job was recognised, the most of all rounds; None: in some it was not.
        counted, sent: iterations after the warm-up, of all rounds: by the kernel's tracker, and in truth.
        total_bytes, gap_s: learned, of the last round.
        other_load: the most of the rounds.
    """

    cell: AloneCell
    control: str
    base: str
    ratio: float | None
    low: float | None
    high: float | None
    seconds: float
    base_seconds: float
    base_noise: float
    marks: float
    base_marks: float
    retransmits: float
    base_retransmits: float
    rounds: int
    valid: int
    fault: str | None
    recognised_after: int | None
    counted: int
    sent: int
    total_bytes: int
    gap_s: float
    other_load: float

    @property
    def met(self) -> bool | None:
        """Whether the control takes no longer than its base; None if too few rounds are valid to say so."""
        return None if self.ratio is None or 2 * self.valid <= self.rounds else self.ratio <= WITHIN


def comparisons(plan: AlonePlan, rounds: Sequence[AloneRound]) -> list[Compared]:
    """Each control in each cell, in the order of the plan."""
    return [
        _compared(cell, policy, [each for each in rounds if each.cell == cell.name])
        for cell in plan.cells
        for policy in plan.compared(cell)
    ]


def _compared(cell: AloneCell, policy: Policy, rounds: Sequence[AloneRound]) -> Compared:
    base = base_of(policy)
    pairs = [(each.arm(policy.name), each.arm(base)) for each in rounds]
    faults = [ours.fault(cell) or theirs.fault(cell) for ours, theirs in pairs]
    ratios = sorted(
        ours.seconds / theirs.seconds
        for (ours, theirs), fault in zip(pairs, faults, strict=True)
        if fault is None
    )
    bases = [theirs.seconds for _, theirs in pairs]
    detections = [ours.detection for ours, _ in pairs if ours.detection is not None]
    known = [each.recognised_after for each in detections]
    return Compared(
        cell=cell,
        control=policy.name,
        base=base,
        ratio=median(ratios) if ratios else None,
        low=ratios[0] if ratios else None,
        high=ratios[-1] if ratios else None,
        seconds=median(ours.seconds for ours, _ in pairs),
        base_seconds=median(bases),
        base_noise=max(bases) / min(bases) - 1,
        marks=median(ours.marks for ours, _ in pairs),
        base_marks=median(theirs.marks for _, theirs in pairs),
        retransmits=median(ours.retransmits for ours, _ in pairs),
        base_retransmits=median(theirs.retransmits for _, theirs in pairs),
        rounds=len(pairs),
        valid=len(ratios),
        fault=next((fault for fault in faults if fault is not None), None),
        recognised_after=max((each for each in known if each is not None), default=None)
        if None not in known
        else None,
        counted=sum(each.counted for each in detections),
        sent=sum(len(ours.counted) for ours, _ in pairs),
        total_bytes=detections[-1].total_bytes if detections else 0,
        gap_s=detections[-1].gap_s if detections else 0.0,
        other_load=max(arm.other_load for pair in pairs for arm in pair),
    )


def print_report(found: Sequence[Compared], rounds: Sequence[AloneRound]) -> None:
    """Print the table, and what limits it."""
    console = tables.console(_WIDTH)
    title = "A job alone: time to send an iteration, over that of the base"
    console.print(tables.table_of(found, _COLUMNS, title), soft_wrap=True)
    met = sum(each.met is True for each in found)
    console.print(f"{met} of {len(found)} within {WITHIN - 1:.0%} of the base", soft_wrap=True)
    delays = sorted({each.delay_by for each in rounds} - {"none"})
    if delays:
        console.print(
            f"acknowledgements were delayed by {', '.join(delays)}{_accuracy(found, rounds)}", soft_wrap=True
        )
    if not all(each.real_time for each in rounds):
        console.print("the relay ran without real-time priority: SCHED_FIFO was refused", soft_wrap=True)
    arms = [arm for each in rounds for arm in each.arms]
    disturbed = sum(arm.other_load > BUSY for arm in arms)
    if disturbed:
        console.print(
            f"other programs used more than {BUSY:.0%} of the processors during {disturbed} of {len(arms)} arms",
            soft_wrap=True,
        )


def _accuracy(found: Sequence[Compared], rounds: Sequence[AloneRound]) -> str:
    """How far the relay was from the round trips that were wanted, over all arms."""
    wanted = {each.cell.name: each.cell.rtt_s * 1e6 for each in found}
    relays = [
        (wanted[each.cell], arm.relay)
        for each in rounds
        for arm in each.arms
        if arm.relay is not None and arm.relay.packets
    ]
    if not relays:
        return ""
    off = max(abs(relay.median_us / rtt_us - 1) for rtt_us, relay in relays)
    late_us = max(relay.p99_us - rtt_us for rtt_us, relay in relays)
    lost = sum(relay.lost + relay.dropped for _, relay in relays)
    return (
        f": of the relay, the median is off by up to {off:.1%}, the 99th percentile late by up to {late_us:.0f} us, "
        f"{lost} packets lost"
    )


def _verdict(each: Compared) -> str:
    if each.met is None:
        return f"not valid: {each.fault}"
    return "met" if each.met else "NOT MET"


_COLUMNS: tuple[Column[Compared], ...] = (
    Column("cell", lambda each: each.cell.name, left=True),
    Column("control", lambda each: each.control, left=True),
    Column("ratio", lambda each: number(each.ratio)),
    Column("least", lambda each: number(each.low)),
    Column("most", lambda each: number(each.high)),
    Column("base", lambda each: f"{each.base_seconds:.4f} s"),
    Column("noise", lambda each: f"{each.base_noise:.1%}"),
    Column("retransmits", lambda each: f"{each.retransmits:.3g} / {each.base_retransmits:.3g}"),
    Column("marks", lambda each: f"{each.marks:.3g} / {each.base_marks:.3g}"),
    Column(
        "recognised", lambda each: "never" if each.recognised_after is None else str(each.recognised_after)
    ),
    Column("iterations", lambda each: f"{each.counted} of {each.sent}"),
    Column("total", lambda each: f"{each.total_bytes / (each.cell.share_bytes * each.cell.flows):.3g}"),
    Column("", _verdict, left=True),
)
_CELL_COLUMNS: tuple[Column[AloneCell], ...] = (
    Column("cell", lambda cell: cell.name, left=True),
    Column("rate", lambda cell: format_rate(cell.rate_bps)),
    Column("round trip", lambda cell: f"{cell.rtt_s * 1e3:g} ms" if cell.rtt_s else "the path's"),
    Column("window", lambda cell: f"{cell.window_segments:.0f}"),
    Column("pause", lambda cell: f"{cell.pause_s:g} s"),
    Column("iteration", lambda cell: f"{cell.iteration_bytes / 1e6:g} MB"),
    Column("flows", lambda cell: str(cell.flows)),
    Column("packets", lambda cell: "64 KB" if cell.offloads else "1500 B"),
    Column("besides", lambda cell: cell.besides, left=True),
)


def print_cells(cells: Sequence[AloneCell]) -> None:
    """Print what each cell is."""
    tables.console(_WIDTH).print(
        tables.table_of(cells, _CELL_COLUMNS, "The cells of the table"), soft_wrap=True
    )


def document(found: Sequence[Compared], rounds: Sequence[AloneRound]) -> dict[str, Any]:
    """The table and all rounds as a JSON document."""
    return {
        "schema": SCHEMA,
        "within": WITHIN,
        "comparisons": [{**asdict(each), "met": each.met} for each in found],
        "rounds": [asdict(each) for each in rounds],
    }
