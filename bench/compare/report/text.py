"""The report of a comparison as text: a table of approaches, one of jobs, warnings, and a sentence on the gain."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TextIO

from rich.box import HORIZONTALS
from rich.console import Console
from rich.table import Table

from bench.compare.results.figures import Figures, Settling
from bench.compare.results.results import ApproachResult, CompareResult, JobFigures, SetResult
from bench.compare.results.runs import ISOLATED, HostFacts, HostUse

PREFIX = "mltcp_"
_NUMBER_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_ABSENT = "-"
_ROOMY, _WIDE = 100, 200

ApproachColumn = tuple[str, Callable[[ApproachResult], str]]
JobColumn = tuple[str, Callable[[Figures], str]]
Pair = tuple[ApproachResult, ApproachResult]


@dataclass(frozen=True)
class Layout:
    """The content of a report.

    Attributes:
        approach_columns: of the table of approaches, for a set of jobs.
        job_title: of the table of jobs.
        job_columns: of the table of jobs.
        pairs: the pairs of approach and base whose gain is stated.
        every_pair: state the gain of each pair and when its jobs ran as if alone; else that of the fastest, as such.
        no_pair: the sentence if there are none.
    """

    approach_columns: Callable[[SetResult], list[ApproachColumn]]
    job_title: str
    job_columns: Sequence[JobColumn]
    pairs: Callable[[SetResult], list[Pair]]
    every_pair: bool
    no_pair: str


def print_report(
    result: CompareResult, layout: Layout, file: TextIO | None = None, files: Sequence[str] = ()
) -> None:
    """Print the tables, the files that were written, and the sentences, to the file or to standard output.

    On a terminal with rules and bold type, fit for 80 columns; elsewhere as plain text, never cut to a width.
    """
    console = Console(file=file, highlight=False)
    if not console.is_terminal:
        console = Console(file=file, highlight=False, width=_WIDE, no_color=True)
    for one in result.sets:
        if heading(one):
            console.print(heading(one), style="bold", soft_wrap=True)
        for table in (approach_table(one, layout), job_table(one, layout), *host_tables(one)):
            table.box = HORIZONTALS if console.is_terminal else None
            table.padding = (0, 1 if console.width >= _ROOMY else 0, 0, 0)
            console.print(table)
            console.print()
        for sentence in lab_sentences(one):
            console.print(sentence, soft_wrap=True)
        for warning in warnings(one):
            console.print(f"! {warning}", soft_wrap=True)
    for path in files:
        console.print(f"{'picture' if path.endswith('.png') else 'written'}: {path}", soft_wrap=True)
    for one in result.sets:
        for sentence in gain_sentences(one, layout):
            console.print(sentence, soft_wrap=True)


def heading(result: SetResult) -> str:
    """The name of the set, its compatibility, and the change during the runs; empty for a set without a name."""
    measured = result.measured
    parts = [result.name] if result.name else []
    if measured.score is not None:
        parts.append(f"compatibility {measured.score:.2f}")
    if measured.change is not None:
        change = measured.change
        parts.append(
            f"{change.job} computes {change.factor:g} times as long from iteration {change.iteration} on"
        )
    return ", ".join(parts)


def approach_table(result: SetResult, layout: Layout) -> Table:
    """One row for each approach; a column with the spread of the slowdown is added if runs were repeated."""
    columns = layout.approach_columns(result)
    table = _table(
        "Policies (slowdown: iteration time over isolated)", ["policy"], [name for name, _ in columns]
    )
    for each in result.approaches:
        style = "bold" if each.approach.startswith(PREFIX) else None
        table.add_row(each.approach, *(cell(each) for _, cell in columns), style=style)
    return table


def job_table(result: SetResult, layout: Layout) -> Table:
    """One row for each approach and job."""
    table = _table(layout.job_title, ["policy", "job"], [name for name, _ in layout.job_columns])
    for each in result.approaches:
        for index, job in enumerate(each.jobs):
            cells = (cell(job.figures) for _, cell in layout.job_columns)
            table.add_row(each.approach if index == 0 else "", job.job, *cells)
    return table


def host_tables(result: SetResult) -> list[Table]:
    """The facts of real hosts, and what they counted in all runs together; none in a lab."""
    hosts = result.measured.hosts
    if not hosts:
        return []
    uses = [use for run in result.measured.runs for use in run.hosts]
    return [
        facts_table(hosts),
        _uses_table([[use for use in uses if use.host == host.name] for host in hosts]),
    ]


def facts_table(hosts: Sequence[HostFacts]) -> Table:
    """The facts of real hosts, a row for each."""
    table = _table(
        "Hosts",
        ["host", "address", "interface", "driver", "kernel"],
        ["MTU", "Gbit/s", "processors", "clock\nahead s", "round\ntrip ms"],
    )
    for host in hosts:
        table.add_row(
            *(host.name, host.address, host.interface, host.driver or _ABSENT, host.kernel),
            str(host.mtu),
            _ABSENT if host.speed_bps is None else f"{host.speed_bps / 1e9:g}",
            str(host.processors),
            f"{host.clock_offset_s:+.3f}",
            f"{1e3 * host.round_trip_s:.2f}",
        )
    return table


def _uses_table(uses: Sequence[Sequence[HostUse]]) -> Table:
    table = _table(
        "Counters of the hosts, all runs together (load of other programs: the highest)",
        ["host"],
        ["sent\nMB", "received\nMB", "drops", "ECN\nmarks", "re-\ntrans.", "load"],
    )
    for own in filter(None, uses):
        table.add_row(
            own[0].host,
            f"{sum(use.sent_bytes for use in own) / 1e6:.1f}",
            f"{sum(use.received_bytes for use in own) / 1e6:.1f}",
            str(sum(use.drops for use in own)),
            str(sum(use.ce_packets for use in own)),
            str(sum(use.retransmits for use in own)),
            f"{100 * max(use.other_load for use in own):.0f} %",
        )
    return table


def lab_sentences(result: SetResult) -> list[str]:
    """How much jobs lose to the lab itself: alone, against ideal links and hosts; nothing where that is not known."""
    alone = result.approach(ISOLATED)
    ideal_s = {job.job: job.ideal_s for job in alone.runs[0].jobs if job.ideal_s} if alone else {}
    if alone is None or not ideal_s:
        return []
    jobs = {each.job: each.figures for each in alone.jobs if each.job in ideal_s}
    lost = {job: figures.mean_s / ideal_s[job] for job, figures in jobs.items()}
    retransmits = {job: figures.retransmits_per_iteration for job, figures in jobs.items()}
    return [
        f"Alone, an iteration takes {_mean_and_most(lost, '.3f')} of its time on ideal links and hosts, "
        f"and {_mean_and_most(retransmits, '.2f')} segments are retransmitted in it."
    ]


def _mean_and_most(values: dict[str, float], form: str) -> str:
    most = max(values, key=values.__getitem__)
    return f"{fmean(values.values()):{form}} ({most}: {values[most]:{form}})"


def warnings(result: SetResult) -> list[str]:
    """One for each run that other programs disturbed."""
    return [
        f"other programs used {100 * (run.other_load or 0):.0f} % of the processors during: "
        f"{run.approach} (repeat {run.repeat + 1})"
        for run in result.disturbed
    ]


def gain_sentences(result: SetResult, layout: Layout) -> list[str]:
    """What the layout's pairs of approach and base have shown, one line each.

    A saving is a share of the base's iteration time. Less than half a per cent either way is called no difference; if
    both were repeated and the ranges of their repeats overlap, the sentence says so; as it does if other programs ran.
    """
    pairs = layout.pairs(result)
    if not pairs:
        return [layout.no_pair]
    if layout.every_pair:
        said = [f"{_gain(*pair)}.{_alone_in_words(*pair)}{_beside_others(result, *pair)}" for pair in pairs]
    else:
        fastest, base = min(pairs, key=lambda pair: pair[0].compared)
        of = (
            f", the fastest of {_number_in_words(len(pairs))} beside {base.approach},"
            if len(pairs) > 1
            else ""
        )
        said = [f"{_gain(fastest, base, of)}.{_beside_others(result, fastest, base)}"]
    return [f"{result.name}: {each}" if result.name else each[0].upper() + each[1:] for each in said]


def milliseconds(seconds: float | None) -> str:
    """In whole milliseconds from a hundred on, else with a decimal."""
    if seconds is None:
        return _ABSENT
    return f"{1e3 * seconds:.0f}" if seconds >= 0.1 else f"{1e3 * seconds:.1f}"


def ratio(value: float | None) -> str:
    """With three decimals."""
    return _ABSENT if value is None else f"{value:.3f}"


def _contend_columns(result: SetResult) -> list[ApproachColumn]:
    return [
        ("mean", lambda each: ratio(each.figures.slowdown)),
        *_spread_column(result),
        ("2nd\nhalf", lambda each: ratio(each.figures.steady_slowdown)),
        ("99th\npct", lambda each: ratio(each.figures.p99_slowdown)),
        ("con-\nverged", _convergence),
        ("link\nused", lambda each: f"{100 * (each.figures.utilization or 0):.0f} %"),
        ("re-\ntrans.", lambda each: str(each.figures.retransmits)),
        ("ECN\nmarks", lambda each: str(each.figures.ecn_marks)),
        ("drops", lambda each: str(each.figures.drops)),
    ]


def _compare_columns(result: SetResult) -> list[ApproachColumn]:
    columns: list[ApproachColumn] = [
        ("mean\nms", lambda each: milliseconds(each.figures.mean_s)),
        ("99th\nms", lambda each: milliseconds(each.figures.p99_s)),
        ("slow-\ndown", lambda each: ratio(each.figures.slowdown)),
        *_spread_column(result),
        ("2nd\nhalf", lambda each: ratio(each.figures.steady_slowdown)),
        ("99th\npct", lambda each: ratio(each.figures.p99_slowdown)),
        ("JCT\ns", lambda each: f"{each.figures.jct_s:.1f}"),
        ("make-\nspan s", lambda each: f"{each.makespan_s:.1f}"),
        ("marks\n/iter.", lambda each: f"{each.figures.marks_per_iteration:.1f}"),
        ("retr.\n/iter.", lambda each: f"{each.figures.retransmits_per_iteration:.1f}"),
        ("deci-\nsion ms", lambda each: milliseconds(each.decision_s)),
    ]
    if result.measured.change is not None:
        columns.append(("settled\nafter", lambda each: _settling(each.settling)))
    return columns


def _spread_column(result: SetResult) -> list[ApproachColumn]:
    """The smallest and the largest mean slowdown of a repeat, if anything was repeated."""
    if all(len(each.runs) == 1 for each in result.approaches):
        return []

    def spread(each: ApproachResult) -> str:
        low, high = each.spread
        return _ABSENT if each.figures.slowdown is None else f"{low:.2f}..{high:.2f}"

    return [("min..max", spread)]


_CONTEND_JOB_COLUMNS: Sequence[JobColumn] = (
    ("mean", lambda figures: f"{figures.mean_s:.3f}"),
    ("median", lambda figures: f"{figures.median_s:.3f}"),
    ("99th\npct", lambda figures: f"{figures.p99_s:.3f}"),
    ("slowdown", lambda figures: ratio(figures.slowdown)),
    ("2nd\nhalf", lambda figures: ratio(figures.steady_slowdown)),
)
_COMPARE_JOB_COLUMNS: Sequence[JobColumn] = (
    ("mean\nms", lambda figures: milliseconds(figures.mean_s)),
    ("99th\nms", lambda figures: milliseconds(figures.p99_s)),
    ("slow-\ndown", lambda figures: ratio(figures.slowdown)),
    ("2nd\nhalf", lambda figures: ratio(figures.steady_slowdown)),
    ("JCT\ns", lambda figures: f"{figures.jct_s:.1f}"),
    ("marks\n/iter.", lambda figures: f"{figures.marks_per_iteration:.1f}"),
    ("retr.\n/iter.", lambda figures: f"{figures.retransmits_per_iteration:.1f}"),
)


def _with_base(result: SetResult) -> list[Pair]:
    """Each `mltcp_X` with its base control X."""
    bases = [(each, result.approach(each.approach.removeprefix(PREFIX))) for each in result.approaches]
    return [(each, base) for each, base in bases if base is not None and base is not each]


def _with_first(result: SetResult) -> list[Pair]:
    """Each approach but the first with the first, isolated jobs aside."""
    return [(each, result.contended[0]) for each in result.contended[1:]]


CONTEND = Layout(
    _contend_columns,
    "Jobs (iteration time in seconds)",
    _CONTEND_JOB_COLUMNS,
    _with_base,
    every_pair=True,
    no_pair="No mltcp_ policy was run beside its base control, so there is no gain to state.",
)
COMPARE = Layout(
    _compare_columns,
    "Jobs",
    _COMPARE_JOB_COLUMNS,
    _with_first,
    every_pair=False,
    no_pair="Only one policy was run, so there is no gain to state.",
)


def _convergence(each: ApproachResult) -> str:
    if each.figures.slowdown is None:
        return _ABSENT
    iterations = each.figures.convergence_iterations
    return "never" if iterations is None else str(iterations)


def _settling(found: Settling | None) -> str:
    if found is None:
        return _ABSENT
    if found.iterations is None or found.seconds is None:
        return "never"
    return f"{found.iterations} it., {found.seconds:.1f} s"


def _how_long(each: ApproachResult) -> str:
    if each.figures.slowdown is None:
        return f"took {_amount(each)} per iteration"
    return f"ran {_amount(each)} {'their' if len(each.jobs) > 1 else 'its'} isolated time"


def _amount(each: ApproachResult) -> str:
    return f"{each.compared:.2f}{' s' if each.figures.slowdown is None else 'x'}"


def _gain(each: ApproachResult, base: ApproachResult, which: str = "") -> str:
    saved = round(100 * (base.compared - each.compared) / base.compared)
    return (
        f"under {each.approach}{which} {_jobs_in_words(each.jobs)} {_how_long(each)}, against {_amount(base)} "
        f"under {base.approach}: {_gain_in_words(saved)}{_doubt(each, base)}"
    )


def _alone_in_words(each: ApproachResult, base: ApproachResult) -> str:
    """From which iteration on jobs ran as if alone under either: a base may part jobs too, and MLTCP may not."""
    if each.figures.slowdown is None or base.figures.slowdown is None:
        return ""
    who = "They" if len(each.jobs) > 1 else "It"
    if each.figures.convergence_iterations is None and base.figures.convergence_iterations is None:
        return f" {who} ran as if alone under neither."
    first, second = sorted((each, base), key=lambda one: one.figures.convergence_iterations is None)
    return f" {who} ran as if alone {_since(first)}, {_since(second)}."


def _since(each: ApproachResult) -> str:
    iterations = each.figures.convergence_iterations
    if iterations is None:
        return f"never under {each.approach}"
    return f"from {'the start' if iterations == 0 else f'iteration {iterations}'} on under {each.approach}"


def _beside_others(result: SetResult, each: ApproachResult, base: ApproachResult) -> str:
    """A sentence if other programs disturbed a run of either, or one that both are compared with."""
    names = {each.approach, base.approach, ISOLATED}
    loads = [run.other_load or 0 for run in result.disturbed if run.approach in names]
    if not loads:
        return ""
    highest = f"{100 * max(loads):.0f} % of the processors"
    return f" Other programs used up to {highest} meanwhile: run it again without them."


def _gain_in_words(saved_percent: int) -> str:
    if saved_percent == 0:
        return "no difference"
    return f"{abs(saved_percent)} % {'less' if saved_percent > 0 else 'more'} time per iteration"


def _doubt(best: ApproachResult, base: ApproachResult) -> str:
    if len(best.runs) < 2 or len(base.runs) < 2:
        return ""
    (low, high), (base_low, base_high) = best.spread, base.spread
    return ", but the ranges of their repeats overlap" if low <= base_high and base_low <= high else ""


def _jobs_in_words(jobs: Sequence[JobFigures]) -> str:
    """Like "two vgg16 jobs" if the names differ in a final number alone; else the names themselves, if they are few."""
    names = [job.job for job in jobs]
    parts = [re.fullmatch(r"(.+)[-_.#/:](\d+)", name) for name in names]
    stems = {part.group(1) for part in parts if part}
    numbers = sorted(int(part.group(2)) for part in parts if part)
    # Only consecutive numbers were given by us: resnet-50 beside resnet-101 are two different jobs.
    if (
        len(names) > 1
        and len(stems) == 1
        and numbers in (list(range(len(names))), list(range(1, len(names) + 1)))
    ):
        return f"{_number_in_words(len(names))} {stems.pop()} jobs"
    if len(names) >= len(_NUMBER_WORDS):
        return f"{len(names)} jobs"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _number_in_words(number: int) -> str:
    return _NUMBER_WORDS[number] if number < len(_NUMBER_WORDS) else str(number)


def _table(title: str, names: Sequence[str], numbers: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", pad_edge=False)
    for column in names:
        table.add_column(column, no_wrap=True, vertical="bottom")
    for column in numbers:
        table.add_column(column, no_wrap=True, justify="right")
    return table
