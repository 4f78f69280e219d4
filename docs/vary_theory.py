"""Varies the law of theory.md in the window model, one part at a time: ``python -m docs.vary_theory`` (one minute).

Prints the tables of theory.md: slowdowns over the second half, the mean of three controls, and for jobs that do not fit
the iteration times over those under the base; and what ideal rules lose where jobs send several bursts an iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean, median

from docs.compare_theory import LAB, pair, snapshot1
from mltcp.control.aggressiveness import Aggressiveness, Shape, Start
from placement.simulator.link_order import BurstJob, BurstPhase, LinkRule, throughput_ratios
from placement.simulator.network.laws.network_law import WINDOW_CONTROLS, Control, WindowLaw
from placement.simulator.network.laws.run import RunSettings, isolated_s, simulate
from placement.simulator.network.laws.workload import PeriodicJob, one_burst

SEEDS = 3
FITTING = {"equal": pair(0), "3 %": pair(0.03), "5 %": pair(0.05), "snapshot1": snapshot1()}
# Pairs and triples of (time at line rate, compute time) that cannot take turns; the first is VGG-16 beside ResNet-50.
UNFIT: tuple[tuple[tuple[float, float], ...], ...] = (
    ((0.166, 0.22), (0.037, 0.15)),
    ((0.2, 0.2), (0.1, 0.12)),
    ((0.25, 0.15), (0.25, 0.15)),
    ((0.12, 0.2), (0.05, 0.1)),
    ((0.2, 0.15), (0.06, 0.2)),
    ((0.3, 0.2), (0.05, 0.07)),
    ((0.15, 0.15), (0.1, 0.3)),
    ((0.1, 0.1), (0.1, 0.13)),
    ((0.166, 0.22), (0.1, 0.2), (0.08, 0.12)),
    ((0.12, 0.2), (0.1, 0.25), (0.05, 0.13)),
    ((0.2, 0.2), (0.15, 0.22), (0.1, 0.1)),
    ((0.08, 0.1), (0.08, 0.13), (0.08, 0.17)),
)

Law = Callable[[Control, PeriodicJob], WindowLaw]
"""The law of a job; it may depend on the job."""


def _same(law: Callable[[Control], WindowLaw], **changes: object) -> Law:
    return lambda base, _: replace(law(base), **changes)  # type: ignore[arg-type]


def _by_remaining_time(base: Control, job: PeriodicJob) -> WindowLaw:
    """F in proportion to 1 / sending time in place of its root."""
    intercept = min(4.0, max(0.25, 0.1 / job.line_s)) / 3
    f = Aggressiveness(Shape.REMAINING, 16 - intercept, intercept)
    return replace(WindowLaw.remaining(base), aggressiveness=f, reference_s=0.0)


def variants() -> dict[str, Law]:
    """The laws by name."""
    reciprocal = Aggressiveness(Shape.RECIPROCAL, 15.5, 0.5)
    remaining = WindowLaw.remaining
    return {
        "base": _same(WindowLaw.unmodified),
        "paper": _same(WindowLaw.paper),
        "paper, start = probe": _same(WindowLaw.paper, start=Start.PROBE),
        "paper, decrease = 1": _same(WindowLaw.paper, decrease=1.0),
        "remaining (increase 4, highest 16)": _same(remaining),
        "remaining (1, 16)": _same(lambda base: remaining(base, 1, 16)),
        "remaining (1, 4)": _same(lambda base: remaining(base, 1, 4)),
        "remaining (2, 8)": _same(lambda base: remaining(base, 2, 8)),
        "remaining, start = avoid": _same(remaining, start=Start.AVOID),
        "remaining, decrease = 0": _same(remaining, decrease=0.0),
        "remaining, no limit on the increase": _same(remaining, increase=0.0),
        "remaining, not scaled": _same(remaining, reference_s=0.0),
        "remaining, scaled by 1 / sending time": _by_remaining_time,
        "reciprocal, 0.5 to 16": _same(remaining, aggressiveness=reciprocal),
    }


def fitting(law: Law) -> list[float]:
    """The slowdown in each setting that fits, the mean of the controls and seeds."""
    found = []
    for jobs in FITTING.values():
        alone_s = isolated_s(LAB, jobs, RunSettings(10))
        found.append(
            fmean(
                simulate(LAB, jobs, [law(base, job) for job in jobs], RunSettings(50, seed)).mean_slowdown(
                    alone_s, second_half=True
                )
                for base in WINDOW_CONTROLS
                for seed in range(SEEDS)
            )
        )
    return found


def unfit(law: Law, base: Control) -> list[list[float]]:
    """The mean iteration of each job of each pair and triple that does not fit, the median of the seeds."""
    found = []
    for times in UNFIT:
        jobs = [one_burst(line_s, silence_s) for line_s, silence_s in times]
        runs = [
            simulate(LAB, jobs, [law(base, job) for job in jobs], RunSettings(50, seed))
            for seed in range(SEEDS)
        ]
        found.append([median(fmean(each.durations_s(job)) for each in runs) for job in range(len(jobs))])
    return found


def ratios(law: Law, bases: dict[Control, list[list[float]]]) -> list[list[float]]:
    """Of each control and pair or triple, the jobs' times over those under the base."""
    return [
        [ours / theirs for ours, theirs in zip(our_jobs, their_jobs, strict=True)]
        for base, times in bases.items()
        for our_jobs, their_jobs in zip(unfit(law, base), times, strict=True)
    ]


def _line(name: str, slowdowns: Sequence[float], compared: Sequence[Sequence[float]]) -> str:
    means = [fmean(each) for each in compared]
    figures = [*slowdowns, fmean(means), max(means), max(max(each) for each in compared)]
    return f"| {name} | " + " | ".join(f"{each:.3f}" for each in figures) + " |"


def table() -> str:
    """The variants as a Markdown table."""
    bases = {base: unfit(_same(WindowLaw.unmodified), base) for base in WINDOW_CONTROLS}
    lines = [
        f"| law | {' | '.join(FITTING)} | unfit: mean | worst mean | worst job |",
        "|---|" + "---|" * (len(FITTING) + 3),
    ]
    lines += [_line(name, fitting(law), ratios(law, bases)) for name, law in variants().items()]
    return "\n".join(lines)


# -- several bursts ----------------------------------------------------------------------------------------------------

RULES = {
    "fair shares": LinkRule.FAIR,
    "F by the iteration": LinkRule.RATIO,
    "F by the burst": LinkRule.RATIO_BURST,
    "first burst first": LinkRule.FIFO_BURST,
    "least left of the burst first": LinkRule.SRPT_BURST,
}
START_S = 0.005
"""By up to so much the second job starts after the first."""


def sharded(blocks: int) -> BurstJob:
    """A job by shards: each block is gathered before each pass of it, and its gradients are scattered.

    It sends for 70 of 163 ms; a tenth of it belongs to no block.
    """
    send_s, rest_s = 0.9 * 0.07 / (3 * blocks), 0.05 * 0.07
    forward_s, backward_s = 0.093 / 3 / blocks, 0.093 * 2 / 3 / blocks
    return BurstJob(
        f"by shards, {blocks} blocks",
        (
            BurstPhase(0, rest_s + send_s),
            *[BurstPhase(forward_s, send_s)] * blocks,
            *[BurstPhase(backward_s, 2 * send_s)] * (blocks - 1),
            BurstPhase(backward_s, send_s + rest_s),
        ),
    )


STAGED = BurstJob("by stages", (*[BurstPhase(0.0125, 0.0045)] * 8, BurstPhase(0, 0.024)))
TENSOR = BurstJob("by tensor ranks, 16 bursts", (BurstPhase(0.0058, 0.0044),) * 16)
REPLICAS = BurstJob("by replicas, one burst", (BurstPhase(0.093, 0.07),))
LARGE = BurstJob("by replicas, 239 ms", (BurstPhase(0.136, 0.103),))
EXCHANGES = BurstJob(
    "by exchanges, 40 ms", (BurstPhase(0.004, 0.005), BurstPhase(0.012, 0.005), BurstPhase(0.008, 0.006))
)
SEVERAL = (
    *((job, job) for job in (REPLICAS, sharded(4), sharded(8), STAGED, TENSOR)),
    (sharded(4), REPLICAS),
    (EXCHANGES, LARGE),
    (STAGED, REPLICAS),
)


def several_bursts() -> str:
    """What ideal rules lose of a link on which two jobs send several bursts, as a Markdown table."""
    lines = [f"| two jobs | {' | '.join(RULES)} |", "|---|" + "---|" * len(RULES)]
    for jobs in SEVERAL:
        offsets = [(0.0, START_S * (seed + 1) / SEEDS) for seed in range(SEEDS)]
        slowed = [
            median(
                fmean(1 / ratio for ratio in throughput_ratios(jobs, rule, offset, seed))
                for seed, offset in enumerate(offsets)
            )
            for rule in RULES.values()
        ]
        name = " beside ".join(dict.fromkeys(job.name for job in jobs))
        lines.append(f"| {name} | " + " | ".join(f"{each:.3f}" for each in slowed) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
    print()
    print(several_bursts())
