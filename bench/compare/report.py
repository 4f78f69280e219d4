"""A comparison for people: a table a set and one of its jobs, and one plain sentence a set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TextIO

from rich.box import HORIZONTALS
from rich.console import Console
from rich.table import Table

from bench.compare.contend_report import ABSENT, ROOMY, WIDE
from bench.compare.contend_results import ISOLATED
from bench.compare.results import ApproachResult, CompareResult, SetResult, Settling


def print_report(result: CompareResult, file: TextIO | None = None, files: Sequence[str] = ()) -> None:
    """Print the tables and sentences, and which files were written, to the file or to standard output.

    On a terminal with rules and bold type; elsewhere as plain text, never cut to a width.
    """
    console = Console(file=file, highlight=False)
    if not console.is_terminal:
        console = Console(file=file, highlight=False, width=WIDE, no_color=True)
    for one in result.sets:
        console.print(heading(one), style="bold", soft_wrap=True)
        for table in (approach_table(one), job_table(one)):
            table.box = HORIZONTALS if console.is_terminal else None
            table.padding = (0, 1 if console.width >= ROOMY else 0, 0, 0)
            console.print(table)
            console.print()
        console.print(sentence(one), soft_wrap=True)
        console.print()
    for path in files:
        console.print(f"written: {path}", soft_wrap=True)


def approach_table(result: SetResult) -> Table:
    """One row an approach: iteration times, slowdowns over isolated, completion times, and what it costs."""
    repeated = any(len(each.runs) > 1 for each in result.approaches)
    columns = [name for name, _ in _columns(result, repeated)]
    table = _table("Policies (slowdown: iteration time over isolated)", ["policy"], columns)
    for each in result.approaches:
        table.add_row(each.approach, *(cell(each) for _, cell in _columns(result, repeated)))
    return table


def job_table(result: SetResult) -> Table:
    """One row a job and approach: iteration times in milliseconds, slowdown, completion time, marks."""
    columns = ["mean\nms", "99th\nms", "slow-\ndown", "2nd\nhalf", "JCT\ns", "marks\n/iter.", "retr.\n/iter."]
    table = _table("Jobs", ["policy", "job"], columns)
    for each in result.approaches:
        for index, job in enumerate(each.jobs):
            figures = job.figures
            table.add_row(
                each.approach if index == 0 else "",
                job.job,
                milliseconds(figures.mean_s),
                milliseconds(figures.p99_s),
                ratio(figures.slowdown),
                ratio(figures.steady_slowdown),
                f"{figures.jct_s:.1f}",
                f"{figures.marks_per_iteration:.1f}",
                f"{figures.retransmits_per_iteration:.1f}",
            )
    return table


def sentence(result: SetResult) -> str:
    """What came off best, against the first approach that is neither isolated nor that one."""
    contended = [each for each in result.approaches if each.approach != ISOLATED]
    if len(contended) < 2:
        return "One approach alone has nothing to be compared with."
    base, *others = contended
    best = min(others, key=compared)
    gain = compared(base) / compared(best)
    overlapping = _overlap(base, best)
    said = (
        f"{result.name}: under {best.approach} an iteration took {_amount(best)}, against {_amount(base)} under "
        f"{base.approach}: {gain:.2f}x"
    )
    return said + (", but the ranges of their repeats overlap." if overlapping else ".")


def compared(each: ApproachResult) -> float:
    """What approaches are compared by: the mean slowdown or, with no yardstick, the mean time in seconds."""
    return each.figures.mean_s if each.figures.slowdown is None else each.figures.slowdown


def milliseconds(seconds: float | None) -> str:
    """In whole milliseconds from a hundred on, else with a decimal."""
    if seconds is None:
        return ABSENT
    return f"{1e3 * seconds:.0f}" if seconds >= 0.1 else f"{1e3 * seconds:.1f}"


def ratio(value: float | None) -> str:
    """With three decimals."""
    return ABSENT if value is None else f"{value:.3f}"


def settling(found: Settling | None) -> str:
    """Iterations and seconds until all jobs have settled."""
    if found is None:
        return ABSENT
    if found.iterations is None or found.seconds is None:
        return "never"
    return f"{found.iterations} it., {found.seconds:.1f} s"


def spread(each: ApproachResult) -> str:
    """The smallest and the largest mean slowdown of a repeat."""
    low, high = each.lowest.slowdown, each.highest.slowdown
    return ABSENT if low is None or high is None else f"{low:.2f}..{high:.2f}"


def _columns(result: SetResult, repeated: bool) -> list[tuple[str, Callable[[ApproachResult], str]]]:
    columns: list[tuple[str, Callable[[ApproachResult], str]]] = [
        ("mean\nms", lambda each: milliseconds(each.figures.mean_s)),
        ("99th\nms", lambda each: milliseconds(each.figures.p99_s)),
        ("slow-\ndown", lambda each: ratio(each.figures.slowdown)),
    ]
    if repeated:
        columns.append(("min..max", spread))
    columns += [
        ("2nd\nhalf", lambda each: ratio(each.figures.steady_slowdown)),
        ("99th\npct", lambda each: ratio(each.figures.p99_slowdown)),
        ("JCT\ns", lambda each: f"{each.figures.jct_s:.1f}"),
        ("make-\nspan s", lambda each: f"{each.makespan_s:.1f}"),
        ("marks\n/iter.", lambda each: f"{each.figures.marks_per_iteration:.1f}"),
        ("retr.\n/iter.", lambda each: f"{each.figures.retransmits_per_iteration:.1f}"),
        ("deci-\nsion ms", lambda each: milliseconds(each.decision_s)),
    ]
    if result.measured.change is not None:
        columns.append(("settled\nafter", lambda each: settling(each.settling)))
    return columns


def heading(result: SetResult) -> str:
    """The set, how compatible it is, and what changed in mid-run."""
    measured = result.measured
    parts = [result.name]
    if measured.score is not None:
        parts.append(f"compatibility {measured.score:.2f}")
    if measured.change is not None:
        change = measured.change
        parts.append(
            f"{change.job} computes {change.factor:g} times as long from iteration {change.iteration} on"
        )
    return ", ".join(parts)


def _amount(each: ApproachResult) -> str:
    if each.figures.slowdown is None:
        return f"{each.figures.mean_s:.3f} s"
    return f"{each.figures.slowdown:.2f}x its isolated time"


def _overlap(base: ApproachResult, best: ApproachResult) -> bool:
    if len(base.runs) < 2 or len(best.runs) < 2:
        return False
    low, high = base.lowest.slowdown or base.lowest.mean_s, base.highest.slowdown or base.highest.mean_s
    best_low, best_high = (
        best.lowest.slowdown or best.lowest.mean_s,
        best.highest.slowdown or best.highest.mean_s,
    )
    return low <= best_high and best_low <= high


def _table(title: str, names: Sequence[str], numbers: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", pad_edge=False)
    for column in names:
        table.add_column(column, no_wrap=True, vertical="bottom")
    for column in numbers:
        table.add_column(column, no_wrap=True, justify="right")
    return table
