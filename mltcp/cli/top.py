"""``mltcp top``: a live table of the jobs of this host."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from mltcp.core.errors import MltcpError, UsageError
from mltcp.core.quantities import format_duration, with_si_prefix
from mltcp.daemon.client.client import Client
from mltcp.daemon.client.status import OTHERS, DaemonStatus, InterfaceStatus, JobStatus

Read = Callable[[], DaemonStatus]

_BAR = 10
_DASH = "-"
_WIDEST_TEXT = 31  # the longest name of a job
_GAP = 2
_PROBLEMS = {
    "absent": "there is no such interface now",
    "left alone": "jobs are not paced there: its root qdisc was removed or replaced",
}
_CHANGES_SHOWN = 5
_LOSSES_SHOWN = 5
_LEAST_SHOWN = 0.02
_UNRECOGNISED_SHOWN = 5


@dataclass(frozen=True)
class Column:
    """A column: its name, its description, the text of its cells, and its sort key.

    On a narrow terminal, columns with the largest `rank` are dropped first; `width` is the least width of a column.
    Columns of numbers, aligned right, get the width they need; text, aligned left, is truncated.
    """

    name: str
    help: str
    cell: Callable[[JobStatus], str]
    key: Callable[[JobStatus], float | str]
    width: int
    rank: int
    right: bool = True


def _seconds(value: float | None) -> str:
    if value is None:
        return _DASH
    return f"{value:.3f} s" if value < 100 else f"{value:.0f} s"


def _amount(value: float | None, unit: str) -> str:
    return _DASH if value is None else with_si_prefix(value, unit)


def _bar(ratio: float) -> str:
    filled = round(ratio * _BAR)
    return "█" * filled + "░" * (_BAR - filled)


COLUMNS = (
    Column(
        "job",
        "the job's name and its label; for a job of another user, the user, if the column user is not shown",
        lambda j: f"{j.job} {j.label}".rstrip(),
        lambda j: j.job,
        14,
        0,
        False,
    ),
    Column("user", "the user who runs it", lambda j: j.user, lambda j: j.user, 8, 4, False),
    Column(
        "ranks",
        "its registered processes, and cgroups, on this host",
        lambda j: str(j.ranks),
        lambda j: j.ranks,
        5,
        6,
    ),
    Column("flows", "its TCP connections on this host", lambda j: str(j.flows), lambda j: j.flows, 5, 5),
    Column(
        "by",
        "its control: the eBPF congestion control, tc (its class is paced), or none",
        lambda j: j.control if j.how == "kernel" and j.control else j.how,
        lambda j: j.how,
        11,
        3,
        False,
    ),
    Column(
        "F",
        "F(bytes_ratio) now, by which the increase is multiplied",
        lambda j: f"{j.factor:.2f}",
        lambda j: j.factor,
        4,
        1,
    ),
    Column(
        "bytes_ratio",
        "the acknowledged share of this iteration's bytes",
        lambda j: _bar(j.bytes_ratio),
        lambda j: j.bytes_ratio,
        _BAR + 1,
        2,
        False,
    ),
    Column("iterations", "finished iterations", lambda j: str(j.iterations), lambda j: j.iterations, 10, 7),
    Column(
        "now",
        "the last iteration's time",
        lambda j: _seconds(j.iteration_s),
        lambda j: j.iteration_s or 0,
        8,
        1,
    ),
    Column(
        "typical",
        "the median of the last fifteen iterations",
        lambda j: _seconds(j.typical_iteration_s),
        lambda j: j.typical_iteration_s or 0,
        8,
        2,
    ),
    Column(
        "slowdown",
        "typical over the best iteration time (the least median of five)",
        lambda j: _DASH if j.slowdown is None else f"{j.slowdown:.3f}",
        lambda j: j.slowdown or 0,
        8,
        1,
    ),
    Column(
        "lost",
        "the part of its time that jobs on the same link have taken; a line says which",
        lambda j: _DASH if j.loss is None else f"{j.loss.lost:.1%}",
        lambda j: 0.0 if j.loss is None else j.loss.lost,
        6,
        4,
    ),
    Column(
        "sent",
        "bytes acknowledged, per second",
        lambda j: _amount(j.bytes_per_s, "B/s"),
        lambda j: j.bytes_per_s,
        10,
        3,
    ),
    Column(
        "rate",
        "the rate of its class, if it is paced",
        lambda j: _amount(j.rate_bps, "bit/s"),
        lambda j: j.rate_bps or 0,
        11,
        5,
    ),
    Column(
        "retrans",
        "retransmitted segments, since each flow was added",
        lambda j: str(j.retransmits),
        lambda j: j.retransmits,
        7,
        4,
    ),
    Column(
        "marks",
        "ECN-marked segments",
        lambda j: _amount(j.marks, "").strip(),
        lambda j: j.marks,
        6,
        4,
    ),
)

_VISIBLE_TO_ALL = ("user", "ranks", "flows", "by")


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``top`` to the commands."""
    names = ", ".join(column.name for column in COLUMNS)
    top = commands.add_parser("top")
    top.add_argument(
        "--interval", type=float, default=1.0, metavar="S", help="time between updates (default 1)"
    )
    top.add_argument("--sort", default="job", metavar="COLUMN", help=f"sort by one of {names} (default job)")
    top.add_argument("--once", action="store_true", help="print the table once, as into a pipe")
    top.add_argument("--json", action="store_true", help="the daemon's status as one JSON document")
    top.add_argument("--describe", action="store_true", help="print the meaning of every column")
    top.set_defaults(execute=lambda options: execute(options, read_status))


def read_status() -> DaemonStatus:
    """The status of this host's daemon.

    Raises:
        NoDaemonError: no daemon answers.
    """
    with Client() as client:
        return client.status()


def execute(options: argparse.Namespace, read: Read) -> int:
    """Show the table until Ctrl-C; returns the exit status, 0.

    Raises:
        MltcpError: no daemon answers.
    """
    if options.describe:
        print("\n".join(f"{column.name:12} {column.help}" for column in COLUMNS))
        return 0
    if options.sort not in (column.name for column in COLUMNS):
        raise UsageError(
            f"unknown column {options.sort!r}; choose from {', '.join(column.name for column in COLUMNS)}"
        )
    if not 0.1 <= options.interval <= 3600:
        raise UsageError(f"--interval: expected 0.1 to 3600 seconds, got {options.interval:g}")
    status = read()
    if options.json:
        print(json.dumps(status.document(), indent=2))
    elif options.once or not sys.stdout.isatty():
        console = Console(highlight=False)
        console.print(screen(status, options.sort, console.width))
    else:
        _watch(status, read, options)
    return 0


def _watch(status: DaemonStatus, read: Read, options: argparse.Namespace) -> None:
    console = Console(highlight=False)
    seen_s, trouble = time.monotonic(), ""
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                shown = screen(status, options.sort, console.width, trouble, console.height)
                live.update(shown, refresh=True)
                time.sleep(options.interval)
                try:
                    status, seen_s, trouble = read(), time.monotonic(), ""
                except MltcpError as error:
                    trouble = f"no answer for {time.monotonic() - seen_s:.0f} s: {error}"
    except KeyboardInterrupt:
        return


def screen(
    status: DaemonStatus, sort: str, width: int, trouble: str = "", height: int | None = None
) -> RenderableType:
    """The screen: a line on the daemon, problems, and its jobs, or as many as fit the height."""
    parts: list[RenderableType] = [Text(headline(status), style="bold", overflow="ellipsis", no_wrap=True)]
    wrong = [_problem_of(each) for each in status.interfaces if each.state in _PROBLEMS]
    wrong += [f"{name} is not loaded: {_plain(why)}" for name, why in status.refused_controls.items()]
    for line in [*wrong, *([trouble] if trouble else [])]:
        parts.append(Text(line, style="red", overflow="ellipsis", no_wrap=True))
    for change in status.outside_changes[-_CHANGES_SHOWN:]:
        when = time.strftime("%F %T", time.localtime(change.at_s))
        line = f"{when} {_plain(change.what)}"
        parts.append(Text(line, style="yellow", overflow="ellipsis", no_wrap=height is not None))
    names = {OTHERS: "others"} | {
        job.number: _plain(job.job) if job.detail else f"a job of {_plain(job.user)}" for job in status.jobs
    }
    told = [job for job in status.jobs if job.aside or (job.loss and job.loss.lost >= _LEAST_SHOWN)]
    told.sort(key=lambda job: job.loss.lost if job.loss else 0.0, reverse=True)
    for job in told[:_LOSSES_SHOWN]:
        parts.append(Text(_loss(job, names), style="yellow", overflow="ellipsis", no_wrap=height is not None))
    if waiting := [_plain(job.job) for job in status.jobs if _is_unrecognised(job)]:
        line = _unrecognised(sorted(waiting))
        parts.append(Text(line, style="dim", overflow="ellipsis", no_wrap=height is not None))
    if not status.jobs:
        return Group(*parts, Text("no jobs"))
    room = None if height is None else max(1, height - len(parts) - 1)
    jobs = _sorted(status.jobs, sort)
    if room is None or len(jobs) <= room:
        return Group(*parts, table_of(jobs, width))
    shown = jobs[: max(1, room - 1)]
    return Group(*parts, table_of(shown, width), Text(f"and {len(jobs) - len(shown)} more", style="dim"))


def _problem_of(interface: InterfaceStatus) -> str:
    return f"{_plain(interface.name)} {interface.state}: {_PROBLEMS[interface.state]}"


def _loss(job: JobStatus, names: Mapping[int, str]) -> str:
    """A line that says what a job has lost to whom on which link, and whether it stands aside."""
    said, loss = [], job.loss
    if loss is not None and loss.to:
        to = ", ".join(
            f"{each.lost:.1%} to {names.get(each.number, 'one that has ended')}" for each in loss.to
        )
        said.append(f"loses {loss.lost:.1%} ± {loss.error:.1%} of its time on {_plain(loss.link)}: {to}")
    if job.aside:
        said.append(f"stands aside: {_plain(job.aside_why)}")
    return f"{_plain(job.job)} {'; it '.join(said)}"


def _is_unrecognised(job: JobStatus) -> bool:
    """Whether a job has connections under a control of MLTCP that does not know the job's iterations yet: F is 1."""
    under_mltcp = job.detail and job.how != "none" and job.flows > 0
    # Where they are known, F is seldom 1, and the first of them may still be under way.
    return under_mltcp and (job.total_bytes == 0 or (job.iterations == 0 and job.factor == 1.0))


def _unrecognised(names: Sequence[str]) -> str:
    """A line on jobs whose iterations are not known."""
    more = len(names) - _UNRECOGNISED_SHOWN
    shown = ", ".join(names[:_UNRECOGNISED_SHOWN]) + (f" and {more} more" if more > 0 else "")
    return f"iterations not recognised yet, so F is 1: {shown}; it takes about five of equal bytes"


def headline(status: DaemonStatus) -> str:
    """A line that describes the daemon."""
    text = f"mltcpd {status.pid}, up {format_duration(status.uptime_s)}, {len(status.jobs)} jobs"
    text += f", {100 * status.daemon_cpu:.1f} % CPU"
    if status.pacing != "off":
        where = ", ".join(f"{each.name} {each.state}" for each in status.interfaces)
        text += f"; {status.law} every {1000 * status.interval_s:g} ms"
        text += f" ({100 * status.control_cpu:.1f} % CPU) on {where}"
    elif status.controls:
        text += f"; {', '.join(status.controls)}"
    return text


def _sorted(jobs: Sequence[JobStatus], sort: str) -> list[JobStatus]:
    """The jobs sorted by a column, numbers with the largest first; jobs of other users come last."""
    key = next(column.key for column in COLUMNS if column.name == sort)

    def place(job: JobStatus) -> tuple[bool, float, str, int]:
        value = key(job)
        number, text = (0.0, value) if isinstance(value, str) else (-value, "")
        return not job.detail, number, text, job.number

    return sorted(jobs, key=place)


def table_of(jobs: Sequence[JobStatus], width: int) -> Table:
    """The table of jobs, with as many columns as fit the width."""
    columns = fitting(width, jobs)
    widths = _widths(columns, jobs, width)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(
            column.name, justify="right" if column.right else "left", no_wrap=True, width=widths[column.name]
        )
    for job in jobs:
        cells = [_cell(column, job) for column in columns]
        if not job.detail and all(column.name != "user" for column in columns):
            cells[0] = f"({_plain(job.user)})"
        table.add_row(*(Text(cell) for cell in cells), style=_style(job))
    return table


def fitting(width: int, jobs: Sequence[JobStatus] = ()) -> list[Column]:
    """The most important columns, as many as fit a terminal of this width with these jobs."""
    kept = list(COLUMNS)
    least = {column.name: _least(column, jobs) for column in COLUMNS}
    while len(kept) > 1 and sum(least[column.name] + _GAP for column in kept) - _GAP > width:
        kept.remove(max(reversed(kept), key=lambda column: column.rank))
    return kept


def _least(column: Column, jobs: Sequence[JobStatus]) -> int:
    """The least width of a column; numbers are never truncated."""
    return max([column.width, *(len(_cell(column, job)) for job in jobs if column.right)])


def _widths(columns: Sequence[Column], jobs: Sequence[JobStatus], width: int) -> dict[str, int]:
    """The width of each column; columns of text get the rest of the terminal, as far as they need it."""
    widths = {column.name: _least(column, jobs) for column in columns}
    left = width - sum(each + _GAP for each in widths.values()) + _GAP
    for column in columns:
        if not column.right:
            wanted = max((cell_len(_cell(column, job)) for job in jobs), default=0)
            more = max(0, min(left, min(wanted, _WIDEST_TEXT) - widths[column.name]))
            widths[column.name] += more
            left -= more
    return widths


def _cell(column: Column, job: JobStatus) -> str:
    return _plain(column.cell(job)) if job.detail or column.name in _VISIBLE_TO_ALL else ""


def _plain(text: str) -> str:
    """The text without characters that would move the cursor or end the line."""
    return "".join(each if each.isprintable() else "?" for each in text)


def _style(job: JobStatus) -> str:
    if not job.detail:
        return "dim"
    return "yellow" if job.slowdown is not None and job.slowdown > 1.1 else ""
