"""Compares the window model with what the lab measured: ``python -m docs.compare_theory``, from the repository's root.

Prints the table of theory.md: slowdowns over a job alone in the model (the median of the seeds, with the range) and
in the lab (results.md and, for periods that differ, the figures of theory.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from bench.workloads.job import Perturbation
from mltcp.control.aggressiveness import Aggressiveness, Shape
from placement.simulator.network.laws.network_law import Control, WindowLaw
from placement.simulator.network.laws.run import RunSettings, isolated_s, simulate
from placement.simulator.network.laws.workload import (
    ModelLink,
    PeriodicJob,
    buckets_in_backward,
    one_burst,
    phased,
)

SEEDS = 7
WITHIN = 0.05
COMPUTE_S = 0.22
LAB = ModelLink()


@dataclass(frozen=True)
class Setting:
    """A measured setting: the jobs, the law, and the lab's slowdown over the whole run and its second half."""

    name: str
    law: WindowLaw
    jobs: tuple[PeriodicJob, ...]
    iterations: int
    whole: float
    second_half: float | None = None
    link: ModelLink = LAB
    perturbation: Perturbation | None = None


def equal_jobs(count: int) -> tuple[PeriodicJob, ...]:
    """The lab's default: 0.22 s of computing, and 0.86 over the number of jobs of an iteration on the link."""
    share = 0.86 / max(2, count)
    return (one_burst(COMPUTE_S * share / (1 - share), COMPUTE_S),) * count


def pair(mismatch: float, share: float = 0.43, period_s: float = COMPUTE_S / 0.57) -> tuple[PeriodicJob, ...]:
    """Two jobs that send alike; the period of the second is longer by `mismatch`."""
    line_s = share * period_s
    return (
        one_burst(line_s, period_s - line_s),
        one_burst(line_s, period_s - line_s + mismatch * period_s),
    )


def snapshot1(drops_lateness: bool = False) -> tuple[PeriodicJob, ...]:
    """Table 4.3 of the thesis, snapshot 1, with times for the lab."""
    scale = 0.4 / 0.28
    return (
        phased([(0.145 * scale, 0.135 * scale, 0.6)], drops_lateness),
        phased([(0.135 * scale, 0.145 * scale, 0.76)], drops_lateness),
    )


def snapshot2(drops_lateness: bool = False) -> tuple[PeriodicJob, ...]:
    """Table 4.3 of the thesis, snapshot 2, likewise."""
    scale = 0.4 / 0.33
    return (
        phased([(0.165 * scale, 0.165 * scale, 0.76)], drops_lateness),
        phased([(0.17 * scale, 0.16 * scale, 0.76)], drops_lateness),
        phased([(0.106 * scale, 0.059 * scale, 0.24)], drops_lateness),
    )


def settings() -> list[Setting]:
    """The settings that were measured; snapshot1 and 2 with a replay that dropped lateness above one piece."""
    base, paper, remaining = WindowLaw.unmodified, WindowLaw.paper, WindowLaw.remaining
    reno, cubic, dctcp = Control.RENO, Control.CUBIC, Control.DCTCP
    two, three, four = equal_jobs(2), equal_jobs(3), equal_jobs(4)
    falling = replace(paper(reno), aggressiveness=Aggressiveness(Shape.FALLING_LINEAR))
    different = (two[0], one_burst(0.037, 0.15))
    overlapped = (buckets_in_backward(0.0965, COMPUTE_S),) * 2
    faster = ModelLink(500e6, 400e3, 60e3)
    marks_early = ModelLink(200e6, 100e3, 15e3)
    drop_tail = ModelLink(200e6, 40e3, None)
    often, seven = Perturbation(20, 0.15), Perturbation(20, 0.15, seed=7)
    unequal = pair(0.03)
    return [
        Setting("two equal, reno", base(reno), two, 60, 1.335, 1.286),
        Setting("two equal, mltcp_reno", paper(reno), two, 60, 1.029, 1.004),
        Setting("two equal, cubic", base(cubic), two, 60, 1.191, 1.153),
        Setting("two equal, mltcp_cubic", paper(cubic), two, 60, 1.023, 1.005),
        Setting("two equal, dctcp", base(dctcp), two, 60, 1.166, 1.036),
        Setting("two equal, mltcp_dctcp", paper(dctcp), two, 60, 1.034, 1.000),
        Setting("two equal, F falling", falling, two, 40, 1.445, 1.445),
        Setting("three, disturbed, reno", base(reno), three, 50, 1.250, 1.205, perturbation=often),
        Setting("three, disturbed, mltcp_reno", paper(reno), three, 50, 1.060, 1.010, perturbation=often),
        Setting("three, disturbed, mltcp_cubic", paper(cubic), three, 50, 1.030, 1.007, perturbation=often),
        Setting("three, disturbed, mltcp_dctcp", paper(dctcp), three, 50, 1.044, 1.006, perturbation=often),
        Setting("four, disturbed, reno", base(reno), four, 50, 1.319, 1.272, perturbation=often),
        Setting("four, disturbed, mltcp_reno", paper(reno), four, 50, 1.055, 1.005, perturbation=often),
        Setting("four, disturbed, mltcp_cubic", paper(cubic), four, 50, 1.034, 1.008, perturbation=often),
        Setting("four, disturbed, mltcp_dctcp", paper(dctcp), four, 50, 1.056, 1.005, perturbation=often),
        Setting("VGG-16, ResNet-50, reno", base(reno), different, 60, 1.082, 1.080),
        Setting("VGG-16, ResNet-50, cubic", base(cubic), different, 60, 1.093, 1.091),
        Setting("VGG-16, ResNet-50, mltcp_cubic", paper(cubic), different, 60, 1.083, 1.081),
        Setting("VGG-16, ResNet-50, mltcp_dctcp", paper(dctcp), different, 60, 1.102, 1.100),
        Setting("500 Mbit/s, reno", base(reno), two, 40, 1.318, 1.279, faster),
        Setting("500 Mbit/s, mltcp_cubic", paper(cubic), two, 40, 1.040, 1.008, faster),
        Setting("500 Mbit/s, mltcp_dctcp", paper(dctcp), two, 40, 1.032, 0.997, faster),
        Setting("200 Mbit/s drop-tail, reno", base(reno), two, 60, 1.167, 1.081, drop_tail, often),
        Setting("200 Mbit/s drop-tail, mltcp_reno", paper(reno), two, 60, 1.058, 1.004, drop_tail, often),
        Setting("200 Mbit/s drop-tail, mltcp_cubic", paper(cubic), two, 60, 1.038, 1.006, drop_tail, often),
        Setting("200 Mbit/s ECN 15 kB, mltcp_reno", paper(reno), two, 60, 1.042, None, marks_early, seven),
        Setting("200 Mbit/s ECN 15 kB, mltcp_cubic", paper(cubic), two, 60, 1.033, None, marks_early, seven),
        Setting("200 Mbit/s ECN 15 kB, mltcp_dctcp", paper(dctcp), two, 60, 1.024, None, marks_early, seven),
        Setting("overlapped, reno", base(reno), overlapped, 50, 1.296, 1.279),
        Setting("overlapped, mltcp_cubic", paper(cubic), overlapped, 50, 1.052, 1.040),
        Setting("overlapped, mltcp_dctcp", paper(dctcp), overlapped, 50, 1.066, 1.040),
        Setting("snapshot1, cubic", base(cubic), snapshot1(drops_lateness=True), 50, 1.087),
        Setting("snapshot1, mltcp_reno", paper(reno), snapshot1(drops_lateness=True), 50, 1.030),
        Setting("snapshot1, mltcp_cubic", paper(cubic), snapshot1(drops_lateness=True), 50, 1.106),
        Setting("snapshot2, mltcp_reno", paper(reno), snapshot2(drops_lateness=True), 40, 1.110),
        Setting("snapshot2, mltcp_cubic", paper(cubic), snapshot2(drops_lateness=True), 40, 1.089),
        Setting("3 %, cubic", base(cubic), unequal, 40, 1.297, 1.282),
        Setting("3 %, mltcp_cubic", paper(cubic), unequal, 36, 1.067, 1.046),
        Setting("3 %, cubic remaining 1, 4", remaining(cubic, 1, 4), unequal, 36, 1.056, 1.024),
        Setting("3 %, cubic remaining 2, 8", remaining(cubic, 2, 8), unequal, 36, 1.049, 1.029),
        Setting("3 %, mltcp_reno", paper(reno), unequal, 36, 1.068, 1.061),
        Setting("3 %, reno remaining 1, 4", remaining(reno, 1, 4), unequal, 36, 1.065, 1.048),
        Setting("3 %, reno remaining 2, 8", remaining(reno, 2, 8), unequal, 36, 1.047, 1.027),
        Setting("3 %, mltcp_dctcp", paper(dctcp), unequal, 40, 1.149, 1.084),
        Setting("3 %, dctcp remaining 2, 8", remaining(dctcp, 2, 8), unequal, 36, 1.069, 1.048),
        Setting("3 %, dctcp remaining 4, 16", remaining(dctcp, 4, 16), unequal, 36, 1.078, 1.076),
    ]


def modelled(setting: Setting) -> tuple[list[float], list[float]]:
    """The slowdowns of all seeds, sorted: over the whole run and over its second half."""
    count = len(setting.jobs)
    run = RunSettings(iterations=setting.iterations)
    if setting.perturbation is not None:
        holds = tuple(
            tuple(setting.perturbation.hold_s(job, count, k) for k in range(setting.iterations))
            for job in range(count)
        )
        run = replace(run, holds_s=holds)
    alone_s = isolated_s(setting.link, setting.jobs, run)
    outcomes = [
        simulate(setting.link, setting.jobs, setting.law, replace(run, seed=seed)) for seed in range(SEEDS)
    ]
    return (
        sorted(each.mean_slowdown(alone_s) for each in outcomes),
        sorted(each.mean_slowdown(alone_s, second_half=True) for each in outcomes),
    )


def is_within(model: Sequence[float], lab: float | None) -> bool:
    """Whether the median of the seeds is within 5 % of the lab's figure."""
    return lab is None or abs(median(model) / lab - 1) <= WITHIN


def table() -> str:
    """The comparison as a Markdown table."""
    lines = [
        "| setting | model: whole run, second half (range) | lab | within 5 % |",
        "|---|---|---|---|",
    ]
    good = 0
    measured = settings()
    for setting in measured:
        whole, half = modelled(setting)
        fits = is_within(whole, setting.whole) and is_within(half, setting.second_half)
        good += fits
        lab = f"{setting.whole:.3f}" + (f", {setting.second_half:.3f}" if setting.second_half else "")
        model = f"{median(whole):.3f}, {median(half):.3f} ({half[0]:.2f} to {half[-1]:.2f})"
        lines.append(f"| {setting.name} | {model} | {lab} | {'yes' if fits else '**no**'} |")
    return "\n".join([*lines, "", f"{good} of {len(measured)} settings are within 5 %."])


if __name__ == "__main__":
    print(table())
