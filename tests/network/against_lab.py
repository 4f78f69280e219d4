"""The network simulator against the lab: ``python -m tests.network.against_lab --only three``.

`data/lab.json` has what docs/results.md says of jobs in the lab. Of `jobs`, times are those at line rate; a job with
`buckets` sends them as they become ready after the share `forward` of its computing, one with `rate_share` sends below
line rate, in pieces 5 ms apart. `disturbed`: every so many iterations a job, in turn, waits up to so many seconds, by
this seed. `converged`: the iteration from which on every five stay within 5 % of isolated; null: never.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean, median

import numpy as np
from numpy.typing import NDArray

from bench.workloads.job import Perturbation
from mltcp.control.aggressiveness import Aggressiveness, Shape
from placement.simulator.network import simulation
from placement.simulator.network.laws.network_law import Control, NetworkLaw
from placement.simulator.network.topology import Marking, Network, NetworkLink
from placement.simulator.network.traffic import IterationStep, Message, NetworkJob, Traffic

DATA = Path(__file__).parent / "data" / "lab.json"
FRAME_BYTES = 1514
ROUND_TRIP_NS = 150_000
BUCKET_S = 0.5e-3
"""What the lab's token bucket lets through before packets queue: so much less of real queue when marks begin."""
DIRECTIONS = 2
"""Both ranks of a job send; the lab counts marks in both directions, of which one is simulated."""
NOISE_NS = 4_000_000
RTO_US = 5e3
"""The lab's least retransmission time-out, after which an idle connection shrinks its window."""
PIECE_S = 0.005
LEARNING = 2
"""Iterations that the kernel's tracker needs before F is in force; the simulator has it from the first on."""
CONVERGED_OVER, CONVERGED_WITHIN = 5, 0.05


@dataclass(frozen=True)
class LabOutcome:
    """One simulated run in the lab's terms: slowdowns by job and iteration, frames marked in all."""

    slowdowns: NDArray[np.float64]
    marked: float

    @property
    def mean(self) -> float:
        """Over the whole run."""
        return float(self.slowdowns.mean())

    @property
    def second_half(self) -> float:
        """The mean from the middle on."""
        return float(self.slowdowns[:, self.slowdowns.shape[1] // 2 :].mean())

    @cached_property
    def converged(self) -> int | None:
        """The first iteration from which on five in a row of every job stay within 5 %; None: never."""
        window = np.ones(CONVERGED_OVER) / CONVERGED_OVER
        means = [np.convolve(job, window, "valid") for job in self.slowdowns]
        slow = np.flatnonzero(np.max(means, axis=0) > 1 + CONVERGED_WITHIN)
        first = int(slow[-1]) + 1 if len(slow) else 0
        return first if first < len(means[0]) else None


def bottleneck(setting: dict, jobs: int) -> tuple[Network, list[list[list[int]]]]:
    """A dumbbell of two hosts a job, and the route of each job from its first host to its second."""
    rate_bps, delay_ns = setting["rate_mbit"] * 1e6, ROUND_TRIP_NS // 6
    marking = None
    if setting["ecn_kb"] is not None:
        at = max(FRAME_BYTES, setting["ecn_kb"] * 1e3 - BUCKET_S * rate_bps / 8)
        marking = Marking(at, at)
    links = [NetworkLink("left", "right", rate_bps, delay_ns, setting["queue_kb"] * 1e3, marking)]
    for k in range(jobs):
        links.append(NetworkLink(f"from{k}", "left", 10 * rate_bps, delay_ns))
        links.append(NetworkLink("right", f"to{k}", 10 * rate_bps, delay_ns))
    hosts = tuple(f"{end}{k}" for k in range(jobs) for end in ("from", "to"))
    return Network(hosts, tuple(links)), [[[1 + 2 * k, 0, 2 + 2 * k]] for k in range(jobs)]


def iteration_of(job: dict, rate_mbit: float) -> Traffic:
    """What a job of the lab does in an iteration."""
    size = job["sending_s"] * rate_mbit * 1e6 / 8
    compute_ns = int(job["compute_s"] * 1e9)
    if "buckets" in job:
        count, forward = job["buckets"], job["forward"]
        waits = [int(compute_ns * forward)] + [int(compute_ns * (1 - forward) / count)] * count
        waits[1] += waits.pop(0)
    elif "rate_share" in job:
        count = max(1, round(job["sending_s"] / job["rate_share"] / PIECE_S))
        waits = [compute_ns] + [int(PIECE_S * 1e9)] * (count - 1)
    else:
        count, waits = 1, [compute_ns]
    if count == 1:
        return Traffic(2, (IterationStep(compute_ns, (Message(0, 1, size),)),))
    # The clock of computing goes on while pieces are sent, each after the one before it.
    clock = [IterationStep(wait, (), (k - 1,) if k else ()) for k, wait in enumerate(waits)]
    piece = (Message(0, 1, size / count),)
    pieces = [IterationStep(0, piece, (k, count + k - 1) if k else (k,)) for k in range(count)]
    return Traffic(2, (*clock, *pieces))


def law_of(setting: dict) -> NetworkLaw:
    """The congestion control of a setting."""
    shape = Shape.ONE if setting["f"] is None else Shape.from_name(setting["f"])
    constants = (("rto_us", RTO_US),)
    return NetworkLaw(
        Control[setting["control"].upper()], Aggressiveness.of_shape(shape), constants=constants
    )


def holds_ns(setting: dict, job: int) -> tuple[int, ...]:
    """How long a job waits before each iteration; simulated ones lack those in which F is learnt."""
    if setting["disturbed"] is None:
        return ()
    perturbation = Perturbation(*setting["disturbed"])
    first = LEARNING if setting["f"] is not None else 0
    waits_s = [
        perturbation.hold_s(job, len(setting["jobs"]), iteration)
        for iteration in range(first, setting["iterations"])
    ]
    return tuple(int(each * 1e9) for each in waits_s)


def simulated(setting: dict, seed: int, mode: str) -> LabOutcome:
    """One run of a setting."""
    network, routes = bottleneck(setting, len(setting["jobs"]))
    law, iterations = law_of(setting), setting["iterations"]
    jobs = [
        NetworkJob(
            f"job{k}",
            iteration_of(job, setting["rate_mbit"]),
            (2 * k, 2 * k + 1),
            law,
            iterations,
            noise_ns=NOISE_NS,
            holds_ns=holds_ns(setting, k),
        )
        for k, job in enumerate(setting["jobs"])
    ]
    ways = [way * len(job.traffic.messages) for way, job in zip(routes, jobs, strict=True)]
    outcome = simulation.simulate(network, jobs, ways, simulation.SimulationSettings(mode, seed=seed))
    slowdowns = np.array([job.slowdowns for job in outcome.jobs])
    marked = DIRECTIONS * outcome.links[0].marked_bytes / FRAME_BYTES
    return LabOutcome(as_learnt(slowdowns, setting["f"] is not None), marked)


def as_learnt(slowdowns: NDArray[np.float64], learns: bool) -> NDArray[np.float64]:
    """The slowdowns where F begins after two iterations, in which jobs that start together are as in their first."""
    if not learns:
        return slowdowns
    return np.hstack([np.repeat(slowdowns[:, :1], LEARNING, axis=1), slowdowns[:, :-LEARNING]])


def agreement(setting: dict, runs: Sequence[LabOutcome]) -> dict[str, float]:
    """By how much the median of the runs differs: slowdown by share, convergence by iterations, marks by factor."""
    agreed = {"slowdown": median(each.mean for each in runs) / setting["slowdown"] - 1}
    never = float(setting["iterations"])
    if "converged" in setting:
        here = median(never if each.converged is None else each.converged for each in runs)
        agreed["converged"] = here - (never if setting["converged"] is None else setting["converged"])
    if setting.get("marked"):
        agreed["marked"] = median(each.marked for each in runs) / setting["marked"]
    return agreed


def compared(settings: Sequence[dict], seeds: int, mode: str) -> Iterator[str]:
    """A Markdown table, line by line, and what must be reached below it."""
    yield "| setting | control | slowdown: lab, here (range) | second half | converged | 1,000 marks | differs by |"
    yield "|---|---|---|---|---|---|---|"
    errors, converged, marks = [], [], []
    for setting in settings:
        runs = [simulated(setting, seed, mode) for seed in range(seeds)]
        agreed = agreement(setting, runs)
        errors.append(abs(agreed["slowdown"]))
        converged += [abs(agreed["converged"])] if setting.get("converged") is not None else []
        marks += [agreed["marked"]] if "marked" in agreed else []
        means = sorted(each.mean for each in runs)
        at = sorted((each.converged for each in runs), key=lambda each: (each is None, each))[len(runs) // 2]
        f = "" if setting["f"] is None else f", F {setting['f']}"
        yield (
            f"| {setting['name']} | {setting['control']}{f} "
            f"| {setting['slowdown']:.3f}, {median(means):.3f} ({means[0]:.3f}..{means[-1]:.3f}) "
            f"| {setting['second_half']:.3f}, {median(each.second_half for each in runs):.3f} "
            f"| {setting.get('converged', '-')}, {at} "
            f"| {setting.get('marked', 0) / 1e3:.0f}, {median(each.marked for each in runs) / 1e3:.0f} "
            f"| {agreed['slowdown']:+.1%} |"
        )
    yield ""
    yield f"Slowdown: mean absolute error {fmean(errors):.1%} over {len(errors)} settings, largest {max(errors):.1%}."
    if converged:
        yield f"Convergence, where the lab's did: {fmean(converged):.1f} iterations off ({len(converged)} settings)."
    if marks:
        good = sum(2 / 3 <= each <= 1.5 for each in marks)
        yield f"Marks: within a factor of 1.5 in {good} of {len(marks)}."


def main(arguments: list[str] | None = None) -> int:
    """Compare."""
    parser = argparse.ArgumentParser(prog="python -m tests.network.against_lab", description=__doc__)
    parser.add_argument("--only", default="", help="settings whose names contain this")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--mode", default="steps")
    given = parser.parse_args(arguments)
    settings = [each for each in json.loads(DATA.read_text()) if given.only in each["name"]]
    if not settings:
        parser.error(f"--only: expected a part of a setting's name, got {given.only!r}")
    for line in compared(settings, given.seeds, given.mode):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
