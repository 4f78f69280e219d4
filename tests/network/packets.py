"""Jobs under DCQCN at 50 Gbit/s packet by packet: ``python -m tests.network.packets law=B,f=1 --seeds 5``.

A case is written as ``field=value`` pairs; fields that are left out have the defaults of `Case`. Without a case, all
those of `data/dcqcn.json` are run and compared with what is there, which other programs measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import product
from math import exp, log
from pathlib import Path
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from mltcp.core.errors import MltcpError, UsageError
from mltcp.core.quantities import parse_number
from tests.network import packet_loop as loop

RATE_BPS = 50e9
LAWS = {"A": loop.PAPER, "B": loop.NIC, "C": loop.KEEPS, "N": loop.NS3}
WRED = {"W1": (80e3, 160e3, 1.0), "W2": (100e3, 400e3, 0.2), "W3": (5e3, 200e3, 0.01)}
"""Least and greatest queue in bytes between which the probability of a mark rises, and to what."""
START = {"line": (1.0, 1.0), "quarter": (0.25, 0.25), "quarter-line": (0.25, 1.0)}
"""The rate and the target at the start of an iteration, of the line rate."""
F_RANGE = ((1.0, 1.0), (0.25, 2.0), (1 / 3, 16.0))
"""F at the start and the end of an iteration, by `Case.f`."""
F_ON = {"increase": (1, 0), "decrease": (0, 1), "both": (1, 1)}
"""What F acts on: whether it scales the increase, and whether it divides the decrease."""
F_PAIRS = ((1.0, 2.0), (1.0, 4.0), (1.0, 8.0), (2.0, 16.0), (0.5, 2.0), (0.25, 2.0))
FREE_AFTER = 20
ITERATIONS = 40
SHOWN = (0, 1, 2, 3, 5, 7, 9, 14, 19, 39)
APART = 1.05
X_ON_BELOW = 3e3


@dataclass(frozen=True)
class Case:
    """Jobs that compute and send in turn; `wred`, `start` and `law` are names of the tables above.

    Attributes:
        packet: bytes.
        noise: of computing, standard deviation in milliseconds.
        compute: in milliseconds; alone, a job sends for 43 % of its iteration; one of four sends 0.35 times
            as much, which gives the first iterations of `data/dcqcn.json` (its authors do not say how much it is).
        f: 1: MLTCP's F on the increase; 2: F by what remains, on the increase and the decrease, which holds back
            no more after `FREE_AFTER` timers without a cut.
        offset: the second job begins so much of the sending time later, and so on.
        timers: T of each job in microseconds, with slashes between them; the last one is that of the rest.
        dequeue: whether marks are made as packets leave.
        delay: of a link, in microseconds.
        xoff: X-off in bytes of one sender; 0: no pauses.
        load: what all jobs need of the link, alone, as a share of it; 0: as said at `compute`.
    """

    law: str = "A"
    wred: str = "W1"
    packet: float = 4000
    noise: float = 0
    compute: float = 220
    jobs: float = 2
    f: float = 0
    offset: float = 0
    timers: str = "55"
    dequeue: float = 0
    delay: float = 2
    start: str = "line"
    xoff: float = 0
    load: float = 0

    @classmethod
    def parse(cls, text: str) -> Case:
        """The case that is written so; raises UsageError for another field or value."""
        kinds = {each.name: each.type for each in fields(cls)}
        values: dict[str, str | float] = {}
        for pair in filter(None, text.split(",")):
            name, _, value = pair.partition("=")
            if name not in kinds:
                raise UsageError(f"case: expected fields of {', '.join(kinds)}, got {name!r}")
            values[name] = parse_number(value, field=name, lowest=0) if kinds[name] == "float" else value
        if values.get("f", 0) not in range(len(F_RANGE)):
            raise UsageError(f"f: expected 0, 1 or 2, got {values['f']:g}")
        for name, allowed in (("law", LAWS), ("wred", WRED), ("start", START)):
            if values.get(name, getattr(cls, name)) not in allowed:
                raise UsageError(f"{name}: expected {' or '.join(allowed)}, got {values[name]!r}")
        return cls(**values)  # type: ignore[arg-type]

    @property
    def packets(self) -> int:
        """Sent in an iteration."""
        usual = 0.43 / 0.57 * (1 if self.jobs <= 2 else 0.35)
        ratio = self.load / (self.jobs - self.load) if self.load else usual
        sending_s = self.compute * 1e-3 * ratio
        return round(sending_s * RATE_BPS / 8 / self.packet)

    @property
    def alone_ns(self) -> float:
        """An iteration without others, to the last acknowledgement."""
        return self.compute * 1e6 + (self.packets + 1) * self.packet_ns + 4 * self.delay * 1e3

    @property
    def packet_ns(self) -> float:
        """On the wire."""
        return self.packet * 8e9 / RATE_BPS


@dataclass(frozen=True)
class PacketRun:
    """One seed: slowdowns and marked packets by job and iteration, the longest queue, pauses, and the packets sent."""

    slowdowns: NDArray[np.float64]
    marked: NDArray[np.float64]
    largest_queue_bytes: float
    pauses: int
    packets: int

    @cached_property
    def course(self) -> NDArray[np.float64]:
        """The mean of the jobs by iteration."""
        return self.slowdowns.mean(axis=0)

    def first_apart(self) -> float:
        """The first iteration with a mean below `APART`, or infinity."""
        below = np.flatnonzero(self.course < APART)
        return float(below[0]) if len(below) else np.inf


def flows_of(case: Case) -> NDArray[np.void]:
    """The senders of a case, before anything is sent."""
    flows = np.zeros(int(case.jobs), loop.FLOW)
    timers = [parse_number(each, field="timers", lowest=1) for each in case.timers.split("/")]
    flows["line"], flows["step"], flows["hyper_step"], flows["lowest"] = RATE_BPS, 40e6, 400e6, 10e6
    flows["timer"] = [1e3 * timers[min(k, len(timers) - 1)] for k in range(len(flows))]
    flows["alpha_timer"], flows["cnp_gap"], flows["law"] = 55e3, 50e3, LAWS[case.law]
    rate, target = START[case.start]
    flows["start_rate"], flows["start_target"] = rate * RATE_BPS, target * RATE_BPS
    flows["packets"] = case.packets
    lowest, highest = F_RANGE[int(case.f)]
    flows["slope"], flows["intercept"] = highest - lowest, lowest
    flows["scales"], flows["remaining"], flows["divides"] = 1, case.f == 2, case.f == 2
    flows["free_after"] = FREE_AFTER if case.f == 2 else 1 << 62
    flows["free_step"] = flows["step"] * highest / lowest
    flows["last_cnp"], flows["paused_at"] = -np.inf, np.inf
    return flows


def switch_of(case: Case) -> NDArray[np.void]:
    """The switch of a case, empty."""
    switch = np.zeros(1, loop.SWITCH)
    switch["rate"], switch["delay"], switch["size"] = RATE_BPS, case.delay * 1e3, case.packet
    switch["lowest"], switch["highest"], switch["probability"] = WRED[case.wred]
    switch["pause_above"], switch["go_at"] = case.xoff or np.inf, case.xoff - X_ON_BELOW
    switch["at_dequeue"] = case.dequeue
    return switch


def simulate_packets(case: Case, seed: int, iterations: int = ITERATIONS) -> PacketRun:
    """Run one seed of a case; raises MltcpError for a queue of more than 16,000 packets."""
    flows, switch, draws = flows_of(case), switch_of(case), np.random.default_rng(seed)
    jobs = len(flows)
    sending_ns = case.packets * case.packet_ns
    flows["wake"] = draws.uniform(0, 1e5, jobs) + case.offset * sending_ns * np.arange(jobs)
    noise = (
        draws.normal(0, case.noise * 1e6, (jobs, loop.ROWS)) if case.noise else np.zeros((jobs, loop.ROWS))
    )
    computes = np.maximum(0, case.compute * 1e6 + noise)
    starts, ends, marked = (np.full((jobs, loop.ROWS), np.nan) for _ in range(3))
    memory = (np.zeros((jobs, loop.RING)), np.zeros(loop.RING, np.int64), np.zeros(loop.RING))
    sent = loop.run(
        flows, memory[0], switch[0], *memory[1:], computes, starts, ends, marked, np.inf, iterations, seed
    )
    if sent < 0:
        raise MltcpError(f"queue: expected fewer than {loop.RING} packets, got more")
    slowdowns = (ends - starts + case.compute * 1e6)[:, :iterations] / case.alone_ns
    return PacketRun(
        slowdowns, marked[:, :iterations], float(switch["largest"][0]), int(switch["pauses"][0]), sent
    )


@dataclass(frozen=True)
class LongFlows:
    """Flows without end: the part of each, their rate together in bit/s, the queue that packets find."""

    shares: tuple[float, ...]
    rate_bps: float
    queue_bytes: float

    def exponent(self, factors: Sequence[float]) -> float:
        """The slope of the logarithm of the shares over that of F, least squares."""
        return float(np.polyfit(np.log(factors), np.log(self.shares), 1)[0])


def simulate_long_flows(
    case: Case, factors: Sequence[float], seed: int, seconds: float = 2.0, on: str = "increase"
) -> LongFlows:
    """Flows with a constant F each, on what it says (`F_ON`), after half a second of warm-up."""
    count = len(factors)
    flows, switch = flows_of(replace(case, jobs=count)), switch_of(case)
    flows["packets"], flows["slope"], flows["intercept"], flows["remaining"] = 1e18, 0.0, factors, 0
    flows["scales"], flows["divides"] = F_ON[on]
    flows["wake"] = np.random.default_rng(seed).uniform(0, 1e5, count)
    memory = [np.zeros((count, loop.RING)), np.zeros(loop.RING, np.int64), np.zeros(loop.RING)]
    times = [np.zeros((count, loop.ROWS)) for _ in range(4)]
    counts = []
    for until, first_seed in ((0.5e9, seed), (0.5e9 + seconds * 1e9, -1)):
        if loop.run(flows, memory[0], switch[0], *memory[1:], *times, until, 1, first_seed) < 0:
            raise MltcpError(f"queue: expected fewer than {loop.RING} packets, got more")
        counts.append((flows["sent"].copy(), switch["queue_seen"][0], switch["arrivals"][0]))
    (before, seen_before, arrivals_before), (after, seen, arrivals) = counts
    sent = after - before
    return LongFlows(
        tuple((sent / sent.sum()).tolist()),
        float(sent.sum() * case.packet * 8 / seconds),
        float((seen - seen_before) / (arrivals - arrivals_before)),
    )


def exponents(law: str, seconds: float = 1.0) -> Iterator[str]:
    """A Markdown table, line by line: how shares of flows without end follow F, and e_i and e_d fitted to all of them.

    Half of two, four or eight flows have one F and half the other; shares go with F^e_i on the increase and
    max(1, F)^e_d on the decrease.
    """
    counts, rows = (2, 4, 8), []
    yield "| WRED, F on | " + " | ".join(f"{low:g}:{high:g}" for low, high in F_PAIRS) + " |"
    yield "|---|" + "---|" * len(F_PAIRS)
    for wred, (on, (scales, divides)) in product(WRED, F_ON.items()):
        cells = []
        for pair in F_PAIRS:
            cell = []
            for count in counts:
                factors = sorted(pair * (count // 2))
                low, high = pair
                try:
                    found = simulate_long_flows(Case(law=law, wred=wred), factors, 1, seconds, on)
                except MltcpError:  # no mark is heeded in time
                    continue
                cell.append(found.exponent(factors))
                on_cuts = log(max(1, high) / max(1, low))
                rows.append((scales * log(high / low), divides * on_cuts, cell[-1] * log(high / low)))
            cells.append(" ".join(f"{each:.2f}" for each in cell))
        yield f"| {wred}, {on} | {' | '.join(cells)} |"
    for name, kept in (("all", rows), ("without F on the decrease alone", [row for row in rows if row[0]])):
        values = np.array(kept)
        (e_i, e_d), *_ = np.linalg.lstsq(values[:, :2], values[:, 2], rcond=None)
        off = values[:, :2] @ (e_i, e_d) - values[:, 2]
        yield f"{name}: e_i {e_i:.2f}, e_d {e_d:.2f}; ratio of two shares off by a factor of {exp(off.std()):.2f}"


def within(value: float, values: list[float], margin: float) -> bool:
    """Whether it lies in the range of the others, or at most `margin` beside it."""
    return min(values) - margin <= value <= max(values) + margin


def as_row(runs: list[PacketRun]) -> dict:
    """The runs of a case's seeds, in the columns of `data/dcqcn.json`."""
    halves = [float(each.course[ITERATIONS // 2 :].mean()) for each in runs]
    first = [each.first_apart() for each in runs]
    return {
        "course": [round(fmean(float(each.course[k]) for each in runs), 3) for k in SHOWN],
        "first": [None if each == np.inf else int(each) for each in first],
        "mean_20": round(fmean(float(each.course[:20].mean()) for each in runs), 4),
        "second_half": [round(fmean(halves), 4), round(min(halves), 4), round(max(halves), 4)],
        "marked": round(fmean(float(each.marked[:, 0].mean()) for each in runs)),
        "queue_kb": round(max(each.largest_queue_bytes for each in runs) / 1e3),
        "pauses": max(each.pauses for each in runs),
    }


COURSE_MARGIN, MEAN_MARGIN = 0.02, 0.01


def course_agrees(row: dict, runs: list[PacketRun]) -> bool:
    """Whether the row's means by iteration lie within the range of the seeds here, give or take `COURSE_MARGIN`."""
    return all(
        within(mean, [float(each.course[k]) for each in runs], COURSE_MARGIN)
        for k, mean in zip(SHOWN, row["course"], strict=True)
    )


def summary_agrees(row: dict, runs: list[PacketRun]) -> bool:
    """Whether the ranges of the second half and of when jobs part meet those of the row, and the mean of 20 fits."""
    halves = [float(each.course[ITERATIONS // 2 :].mean()) for each in runs]
    first = [each.first_apart() for each in runs]
    lowest, highest = (np.inf if each is None else each for each in row["first"])
    return (
        within(row["mean_20"], [float(each.course[:20].mean()) for each in runs], MEAN_MARGIN)
        and min(halves) - MEAN_MARGIN <= row["second_half"][2]
        and max(halves) + MEAN_MARGIN >= row["second_half"][1]
        and min(first) - 1 <= highest
        and max(first) + 1 >= lowest
    )


def compared(rows: list[dict], seeds: int) -> Iterator[str]:
    """A Markdown table, line by line: each row as it was measured, as it is here, and whether they agree."""
    yield "| case | seeds | iterations 0 3 9 19 39: here; there | mean of 20 | parted | marked | kB | course | rest |"
    yield "|---|---|---|---|---|---|---|---|---|"
    agree = [0, 0]
    for row in rows:
        case = Case.parse(row["case"])
        count = min(seeds, row["seeds"])
        runs = [simulate_packets(case, seed) for seed in range(1, count + 1)]
        here = as_row(runs)
        courses = ["  ".join(f"{each['course'][k]:.2f}" for k in (0, 3, 6, 8, 9)) for each in (here, row)]
        verdicts = [course_agrees(row, runs), summary_agrees(row, runs)]
        agree = [total + each for total, each in zip(agree, verdicts, strict=True)]
        parted = ", ".join(
            "-" if each is None else str(each) for each in sorted(here["first"], key=lambda x: x or 99)
        )
        there = "..".join("-" if each is None else str(each) for each in row["first"])
        yield (
            f"| `{row['case']}` | {count} | {courses[0]}; {courses[1]} | {here['mean_20']:.3f}; {row['mean_20']:.3f} "
            f"| {parted}; {there} | {here['marked']:,}; {row['marked']:,} | {here['queue_kb']}; {row['queue_kb']} "
            f"| {' | '.join('yes' if each else '**no**' for each in verdicts)} |"
        )
    yield ""
    yield f"{agree[0]} of {len(rows)} courses and {agree[1]} of {len(rows)} of the rest agree."


DATA = Path(__file__).parent / "data" / "dcqcn.json"


def main(arguments: list[str] | None = None) -> int:
    """Run a case, or compare all."""
    parser = argparse.ArgumentParser(prog="python -m tests.network.packets", description=__doc__)
    parser.add_argument(
        "case", nargs="?", help="such as law=B,wred=W2,f=1,noise=1; without one: all that are known"
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", default="", help="of the known ones, those whose names contain this")
    parser.add_argument(
        "--exponents", choices=LAWS, metavar="LAW", help="of F in shares of flows without end"
    )
    given = parser.parse_args(arguments)
    try:
        if given.exponents:
            for line in exponents(given.exponents):
                print(line, flush=True)
            return 0
        if given.case is None:
            rows = [row for row in json.loads(DATA.read_text())["cases"] if given.only in row["case"]]
            for line in compared(rows, given.seeds):
                print(line, flush=True)
            return 0
        case = Case.parse(given.case)
        began = time.process_time()
        runs = [simulate_packets(case, seed) for seed in range(1, given.seeds + 1)]
        ns = 1e9 * (time.process_time() - began) / sum(each.packets for each in runs)
        print(
            json.dumps(
                {"case": given.case, "seeds": given.seeds, **as_row(runs), "ns_a_packet": round(ns, 1)}
            )
        )
        return 0
    except MltcpError as error:
        print(f"packets: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1


if __name__ == "__main__":
    sys.exit(main())
