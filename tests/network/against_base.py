"""F on DCQCN against DCQCN without it, packet by packet: ``python -m tests.network.against_base --seeds 5``.

Each setting of `data/dcqcn.json`, and others with two to six jobs and other loads, is run under the base and the
laws of `F_LAWS`. A law loses where the median over seeds of the mean iteration is above the base's.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from statistics import median

import numpy as np
from numpy.typing import NDArray

from tests.network.against_packets import course_of_steps, is_modelled
from tests.network.packets import DATA, Case, simulate_packets

F_LAWS = {"mltcp_dcqcn": ",f=1", "mltcp_dcqcn@recover": ",f=2"}
MARGIN = 0.01
Course = Callable[[Case, int], NDArray[np.float64]]


def known_settings() -> list[str]:
    """Those of the cases that other programs measured, without F."""
    names = [row["case"].split(",") for row in json.loads(DATA.read_text())["cases"]]
    return list(dict.fromkeys(",".join(sorted(set(name) - {"f=1"})) for name in names))


def new_settings() -> list[str]:
    """Three to six jobs at loads of a half to 1.2; short ones; other timers."""
    marks = {"A": "law=A,wred=W1", "B": "law=B,wred=W2", "N": "dequeue=1,law=N,wred=W1"}
    loads = product("ABN", (3, 4, 5, 6), (0.5, 0.7, 0.9, 1, 1.2))
    found = [f"{marks[law]},jobs={jobs},load={load}" for law, jobs, load in loads]
    # Each sends for 20 ms.
    short = product("AB", ((2, 24.4), (3, 46.7), (4, 68.9), (6, 113.3)))
    found += [f"law={law},wred=W1,jobs={jobs},load=0.9,compute={ms}" for law, (jobs, ms) in short]
    timed = product("ABN", (2, 4), (100, 125))
    return found + [f"{marks[law]},jobs={jobs},load=0.86,timers={timer}" for law, jobs, timer in timed]


@dataclass(frozen=True)
class SettingMeans:
    """The mean iteration of a setting's jobs over their time alone, by seed: of the base, and of each law with F."""

    setting: str
    base: tuple[float, ...]
    scaled: Mapping[str, tuple[float, ...]]

    def over_base(self, law: str) -> float:
        """The median under a law over that of the base."""
        return median(self.scaled[law]) / median(self.base)


def measured(settings: Sequence[str], seeds: int, course: Course, threads: int) -> Iterator[SettingMeans]:
    """Run all settings, in their order."""

    def mean_of(run: tuple[str, int]) -> float:
        return float(course(Case.parse(run[0]), run[1]).mean())

    added = ("", *F_LAWS.values())
    runs = [(setting + law, seed) for setting in settings for law in added for seed in range(1, seeds + 1)]
    with ThreadPoolExecutor(threads) as pool:
        means = pool.map(mean_of, runs)
        for setting in settings:
            base, *scaled = [tuple(next(means) for _ in range(seeds)) for _ in added]
            yield SettingMeans(setting, base, dict(zip(F_LAWS, scaled, strict=True)))


def summary(found: Sequence[SettingMeans], law: str) -> str:
    """How the medians over the base's are distributed, and where the law loses."""
    ratios = sorted(each.over_base(law) for each in found)
    least, *quartiles, most = np.quantile(ratios, (0, 0.05, 0.25, 0.5, 0.75, 0.95, 1))
    spread = " ".join(f"{each:.3f}" for each in (least, *quartiles, most))
    gains = sum(ratio < 1 - MARGIN for ratio in ratios)
    losses = sum(ratio > 1 + MARGIN for ratio in ratios)
    return f"| `{law}` | {len(ratios)} | {spread} | {gains} | {losses} |"


def compared(found: Iterator[SettingMeans]) -> Iterator[str]:
    """A Markdown table, line by line, and the summaries."""
    yield f"| setting | dcqcn | {' | '.join(F_LAWS)} | over dcqcn |"
    yield "|---|---|" + "---|" * len(F_LAWS) + "---|"
    all_found = []
    for each in found:
        all_found.append(each)
        cells = [
            f"{median(means):.3f} ({min(means):.3f}..{max(means):.3f})"
            for means in (each.base, *each.scaled.values())
        ]
        ratios = ", ".join(f"{each.over_base(law):.3f}" for law in F_LAWS)
        yield f"| `{each.setting}` | {' | '.join(cells)} | {ratios} |"
    yield ""
    yield "| law | settings | over dcqcn: least, 5, 25, 50, 75, 95 %, most | gains | loses |"
    yield "|---|---|---|---|---|"
    yield from (summary(all_found, law) for law in F_LAWS)


def main(arguments: list[str] | None = None) -> int:
    """Compare."""
    parser = argparse.ArgumentParser(prog="python -m tests.network.against_base", description=__doc__)
    parser.add_argument("--only", default="", help="settings whose names contain this")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", action="store_true", help="by the step mode, not by packets")
    given = parser.parse_args(arguments)
    settings = [each for each in known_settings() + new_settings() if given.only in each]
    course: Course = course_of_packets
    if given.steps:
        settings = [each for each in settings if is_modelled(Case.parse(each))]
        course = course_of_steps
    if not settings:
        parser.error(f"--only: expected a part of a setting's name, got {given.only!r}")
    for line in compared(measured(settings, given.seeds, course, os.cpu_count() or 1)):
        print(line, flush=True)
    return 0


def course_of_packets(case: Case, seed: int) -> NDArray[np.float64]:
    """The mean slowdown of the jobs by iteration."""
    return simulate_packets(case, seed).course


if __name__ == "__main__":
    sys.exit(main())
