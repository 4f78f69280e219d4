"""A `contend` result for people: two tables and one plain sentence of what was gained."""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import fmean
from typing import TextIO

from rich.box import HORIZONTALS
from rich.console import Console
from rich.table import Table

from bench.compare.contend_results import ContendResult, PolicyResult

PREFIX = "mltcp_"
NUMBER_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
ABSENT = "-"
ROOMY, WIDE = 100, 200


def print_report(result: ContendResult, file: TextIO | None = None, pictures: Sequence[str] = ()) -> None:
    """Print both tables, where the pictures are, and the sentence, to the file or to standard output.

    On a terminal with rules and bold type, fit for 80 columns; elsewhere as plain text, never cut to a width.
    """
    console = Console(file=file, highlight=False)
    if not console.is_terminal:
        console = Console(file=file, highlight=False, width=WIDE, no_color=True)
    for table in (policy_table(result), job_table(result)):
        table.box = HORIZONTALS if console.is_terminal else None
        table.padding = (0, 1 if console.width >= ROOMY else 0, 0, 0)
        console.print(table)
        console.print()
    for path in pictures:
        console.print(f"picture: {path}", soft_wrap=True)
    console.print(gain_sentence(result), soft_wrap=True)


def policy_table(result: ContendResult) -> Table:
    """One row a policy: slowdowns over isolated, convergence, and what the link saw."""
    repeated = any(len(policy.runs) > 1 for policy in result.policies)
    columns = ["mean", *(["min..max"] if repeated else []), "2nd\nhalf", "99th\npct", "con-\nverged"]
    columns += ["link\nused", "re-\ntrans.", "ECN\nmarks", "drops"]
    table = _table("Policies (slowdown: iteration time over isolated)", ["policy"], columns)
    for policy in result.policies:
        table.add_row(
            *_policy_row(policy, repeated), style="bold" if policy.policy.startswith(PREFIX) else None
        )
    return table


def job_table(result: ContendResult) -> Table:
    """One row a policy and job: iteration times in seconds, and the job's own slowdown."""
    columns = ["mean", "median", "99th\npct", "slowdown", "2nd\nhalf"]
    table = _table("Jobs (iteration time in seconds)", ["policy", "job"], columns)
    for policy in result.policies:
        for index, job in enumerate(policy.jobs):
            times = (f"{time_s:.3f}" for time_s in (job.mean_s, job.median_s, job.p99_s))
            ratios = (_ratio(job.slowdown), _ratio(job.steady_slowdown))
            table.add_row(policy.policy if index == 0 else "", job.job, *times, *ratios)
    return table


def gain_sentence(result: ContendResult) -> str:
    """One sentence: the best `mltcp_X` of the run (shortest iterations) against its own base control X.

    A saving is a share of the base's iteration time. Less than half a per cent either way is called no
    difference; where repeats were run and the two ranges overlap, the sentence says so.
    """
    pairs = _pairs(result)
    if not pairs:
        return "No mltcp_ policy was run beside its base control, so there is no gain to state."
    best, base = min(pairs, key=lambda pair: _compared(pair[0]))
    mine, other = _compared(best), _compared(base)
    saved = round(100 * (other - mine) / other)
    return (
        f"Under {best.policy} {_jobs_in_words([job.job for job in best.jobs])} {_how_long(best)}, "
        f"against {_amount(base)} under {base.policy}: {_gain_in_words(saved)}{_doubt(best, base)}."
    )


def _table(title: str, names: Sequence[str], numbers: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", pad_edge=False)
    for column in names:
        table.add_column(column, no_wrap=True, vertical="bottom")
    for column in numbers:
        table.add_column(column, no_wrap=True, justify="right")
    return table


def _policy_row(policy: PolicyResult, repeated: bool) -> list[str]:
    figures, lowest, highest = policy.figures, policy.lowest, policy.highest
    return [
        policy.policy,
        _ratio(figures.mean_slowdown),
        *([_spread(lowest.mean_slowdown, highest.mean_slowdown)] if repeated else []),
        _ratio(figures.steady_slowdown),
        _ratio(figures.p99_slowdown),
        _convergence(figures.mean_slowdown, figures.convergence_iterations),
        f"{100 * figures.utilization:.0f} %",
        str(figures.retransmits),
        str(figures.ecn_marks),
        str(figures.drops),
    ]


def _ratio(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.3f}"


def _spread(lowest: float | None, highest: float | None) -> str:
    return ABSENT if lowest is None or highest is None else f"{lowest:.2f}..{highest:.2f}"


def _convergence(slowdown: float | None, iterations: int | None) -> str:
    if slowdown is None:
        return ABSENT
    return "never" if iterations is None else str(iterations)


def _pairs(result: ContendResult) -> list[tuple[PolicyResult, PolicyResult]]:
    pairs = []
    for policy in result.policies:
        base = result.policy(policy.policy.removeprefix(PREFIX))
        if base is not None and base is not policy:
            pairs.append((policy, base))
    return pairs


def _compared(policy: PolicyResult) -> float:
    """What policies are compared by: the mean slowdown or, with no yardstick, the mean time in seconds."""
    slowdown = policy.figures.mean_slowdown
    return slowdown if slowdown is not None else fmean(job.mean_s for job in policy.jobs)


def _how_long(policy: PolicyResult) -> str:
    if policy.figures.mean_slowdown is None:
        return f"took {_amount(policy)} per iteration"
    return f"ran {_amount(policy)} {'their' if len(policy.jobs) > 1 else 'its'} isolated time"


def _amount(policy: PolicyResult) -> str:
    unit = " s" if policy.figures.mean_slowdown is None else "x"
    return f"{_compared(policy):.2f}{unit}"


def _gain_in_words(saved_percent: int) -> str:
    if saved_percent == 0:
        return "no difference"
    return f"{abs(saved_percent)} % {'less' if saved_percent > 0 else 'more'} time per iteration"


def _doubt(best: PolicyResult, base: PolicyResult) -> str:
    if len(best.runs) < 2 or len(base.runs) < 2:
        return ""
    (low, high), (base_low, base_high) = _range_s(best), _range_s(base)
    return ", but the ranges of their repeats overlap" if low <= base_high and base_low <= high else ""


def _range_s(policy: PolicyResult) -> tuple[float, float]:
    """The smallest and the largest mean iteration time that a repeat of the policy had."""
    means_s = [fmean(time_s for job in run.jobs for time_s in job.iteration_s) for run in policy.runs]
    return min(means_s), max(means_s)


def _jobs_in_words(names: Sequence[str]) -> str:
    """Like "two vgg16 jobs" if the names differ in a final number alone, else the names themselves."""
    parts = [re.fullmatch(r"(.+)[-_.#/:](\d+)", name) for name in names]
    stems = {part.group(1) for part in parts if part}
    numbers = sorted(int(part.group(2)) for part in parts if part)
    # Only a running number is one of ours: resnet-50 beside resnet-101 are two different jobs.
    if (
        len(names) > 1
        and len(stems) == 1
        and numbers in (list(range(len(names))), list(range(1, len(names) + 1)))
    ):
        count = NUMBER_WORDS[len(names)] if len(names) < len(NUMBER_WORDS) else str(len(names))
        return f"{count} {stems.pop()} jobs"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
