"""The step mode against packets, jobs under DCQCN: ``python -m tests.network.against_packets --only law=A --seeds 5``.

Each case of `data/dcqcn.json` is run by both, `tests.network.packets` and the step mode, with as many seeds. When jobs
part is often one of two: soon, or hardly ever (each cuts the other's start). So it is compared as a distribution.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mltcp.core.quantities import parse_number
from placement.simulator.network.control_names import parse_control
from placement.simulator.network.laws.network_law import DcqcnState
from placement.simulator.network.simulation import SimulationSettings, simulate
from placement.simulator.network.topology import Marking, Network, NetworkLink, Pause
from placement.simulator.network.traffic import IterationStep, Message, NetworkJob, Traffic
from tests.network.packets import (
    APART,
    DATA,
    ITERATIONS,
    RATE_BPS,
    WRED,
    X_ON_BELOW,
    Case,
    as_row,
    simulate_packets,
)

STATES = {
    "A": DcqcnState.PAPER,
    "B": DcqcnState.FIRST_CNP,
    "C": DcqcnState.KEPT,
    "N": DcqcnState.NS3,
}
CONTROLS = ("dcqcn", "mltcp_dcqcn", "mltcp_dcqcn@recover")
"""By `Case.f`."""


def step_network(case: Case) -> Network:
    """Senders, a switch and a receiver."""
    links = [NetworkLink(f"h{k}", "switch", RATE_BPS, round(case.delay * 1e3)) for k in range(int(case.jobs))]
    pause = Pause(case.xoff, case.xoff - X_ON_BELOW) if case.xoff else None
    marking = Marking(*WRED[case.wred])
    port = replace(links[0], source="switch", target="receiver", marking=marking, pause=pause)
    return Network((*(link.source for link in links), "receiver"), (*links, port))


def step_jobs(case: Case, seed: int) -> list[NetworkJob]:
    """The jobs of a case, which begin when the packets' do."""
    count, draws = int(case.jobs), np.random.default_rng(seed)
    starts = draws.uniform(0, 1e5, count) + case.offset * case.packets * case.packet_ns * np.arange(count)
    burst = Message(0, 1, case.packets * case.packet)
    traffic = Traffic(2, (IterationStep(round(case.compute * 1e6), (burst,)),))
    timers = [parse_number(each, field="timers", lowest=1) for each in case.timers.split("/")]
    jobs = []
    for k, start in enumerate(starts):
        constants = {"state": float(STATES[case.law]), "packet_bytes": case.packet}
        constants["timer_us"] = timers[min(k, len(timers) - 1)]
        base = parse_control(CONTROLS[int(case.f)])
        law = replace(base, constants=(*base.constants, *constants.items()))
        noise_ns = round(case.noise * 1e6)
        jobs.append(NetworkJob(f"job{k}", traffic, (k, count), law, ITERATIONS, round(start), noise_ns))
    return jobs


def course_of_steps(case: Case, seed: int) -> NDArray[np.float64]:
    """The mean slowdown of the jobs by iteration, in which noise is no slowdown, as in `PacketRun`.

    The step mode pauses a port and not a sender.
    """
    jobs = step_jobs(case, seed)
    routes = [[(k, len(jobs))] for k in range(len(jobs))]
    outcome = simulate(step_network(case), jobs, routes, SimulationSettings(seed=seed))
    noise = [job.noise(seed, ITERATIONS) for job in jobs]
    times = [job.ends_ns - job.begins_ns for job in outcome.jobs]
    return (np.array(times) - np.array(noise)).mean(axis=0) / case.alone_ns


def is_modelled(case: Case) -> bool:
    """Whether the step mode has it: it marks as packets arrive (only the law N was measured otherwise)."""
    return case.start == "line" and (not case.dequeue or case.law == "N")


def first_apart(course: NDArray[np.float64]) -> int:
    """The first iteration below `APART`; `ITERATIONS`: never."""
    below = np.flatnonzero(course < APART)
    return int(below[0]) if len(below) else ITERATIONS


def distance(one: Sequence[float], other: Sequence[float]) -> float:
    """Kolmogorov and Smirnov's: the largest difference of the two distributions."""
    values = np.array([*one, *other])
    return float(
        max(abs((np.array(one) <= value).mean() - (np.array(other) <= value).mean()) for value in values)
    )


def largest_distance(count: int) -> float:
    """What two samples of so many exceed in one of twenty comparisons at most, if they are of one distribution."""
    return 1.36 * (2 / count) ** 0.5


@dataclass(frozen=True)
class Agreement:
    """Whether a case's step mode parts when packets do, and has their means.

    Attributes:
        in_range: the median iteration at which jobs part lies among those of packets, there and here.
        within_one: of an iteration.
        alike: when they part has one distribution, as far as the seeds say.
        mean: of 20 iterations, the mean of the seeds, within 0.03, or in the range of those of packets.
        half: the ranges of the second half meet.
    """

    in_range: bool
    within_one: bool
    alike: bool
    mean: bool
    half: bool


def agreement(
    row: dict, packets: Sequence[NDArray[np.float64]], steps: Sequence[NDArray[np.float64]]
) -> Agreement:
    """Of a row in the columns of `data/dcqcn.json`, and courses that were simulated here."""
    there = [ITERATIONS if each is None else each for each in row["first"]]
    here, ours = ([first_apart(course) for course in each] for each in (packets, steps))
    least, most = min(*there, *here), max(*there, *here)
    middle = float(np.median(ours))
    means = [float(course[:20].mean()) for course in packets] + [row["mean_20"]]
    mean = float(np.mean([course[:20].mean() for course in steps]))
    halves, our_halves = ([float(course[20:].mean()) for course in each] for each in (packets, steps))
    lowest, highest = min(*halves, row["second_half"][1]), max(*halves, row["second_half"][2])
    return Agreement(
        in_range=least <= middle <= most,
        within_one=least - 1 <= middle <= most + 1,
        alike=distance(here, ours) <= largest_distance(len(ours)),
        mean=min(means) <= mean <= max(means) or abs(mean - float(np.mean(means))) <= 0.03,
        half=max(our_halves) >= lowest - 0.005 and min(our_halves) <= highest + 0.005,
    )


def compared(rows: Sequence[dict], seeds: int) -> Iterator[str]:
    """A Markdown table, line by line, and what agrees below it.

    Where a row has nothing but its case, the packets here are all that it is compared with.
    """
    yield "| case | parted at: packets, steps | mean of 20: packets, steps | second half | agrees not |"
    yield "|---|---|---|---|---|"
    found = []
    for row in rows:
        case = Case.parse(row["case"])
        runs = [simulate_packets(case, seed) for seed in range(1, seeds + 1)]
        row = {**as_row(runs), **row}
        packets = [each.course for each in runs]
        steps = [course_of_steps(case, seed) for seed in range(1, seeds + 1)]
        found.append(agreement(row, packets, steps))
        cells = [
            "; ".join(str(sorted(first_apart(course) for course in each))[1:-1] for each in (packets, steps)),
            ", ".join(f"{np.mean([course[:20].mean() for course in each]):.3f}" for each in (packets, steps)),
            ", ".join(f"{np.mean([course[20:].mean() for course in each]):.3f}" for each in (packets, steps)),
            ", ".join(name for name, agrees in vars(found[-1]).items() if not agrees),
        ]
        yield f"| `{row['case']}` | {' | '.join(cells)} |"
    yield ""
    for name in vars(found[0]):
        yield f"{name}: {sum(getattr(each, name) for each in found)} of {len(found)}"


def main(arguments: list[str] | None = None) -> int:
    """Compare."""
    parser = argparse.ArgumentParser(prog="python -m tests.network.against_packets", description=__doc__)
    parser.add_argument("--only", default="", help="cases whose names contain this")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--recover", action="store_true", help=f"those with F, under {CONTROLS[2]}")
    given = parser.parse_args(arguments)
    rows = [
        row
        for row in json.loads(DATA.read_text())["cases"]
        if given.only in row["case"] and is_modelled(Case.parse(row["case"]))
    ]
    if given.recover:  # which no other program measured
        rows = [{"case": row["case"].replace("f=1", "f=2")} for row in rows if "f=1" in row["case"]]
    if not rows:
        parser.error(f"--only: expected a part of a case's name, got {given.only!r}")
    for line in compared(rows, given.seeds):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
