"""Varies the law of theory.md in the window model, one part at a time: ``python -m docs.vary_theory`` (one minute).

Prints the table of theory.md: slowdowns over the second half, the mean of three controls, and for jobs that do not fit
the iteration times over those under the base.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean, median

from docs.compare_theory import LAB, pair, snapshot1
from mltcp.control.aggressiveness import Aggressiveness, Shape, Start
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


if __name__ == "__main__":
    print(table())
