"""``mltcp top``: the jobs of this host, as a table that lives."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from mltcp.daemon.status import DaemonStatus, JobStatus
from mltcp.errors import MltcpError, UsageError

Read = Callable[[], DaemonStatus]

_BAR = 10
_DASH = "-"


@dataclass(frozen=True)
class Column:
    """A column: its head, what it says, what is in it, and by what it is sorted.

    Those with the largest `rank` are dropped first where the terminal is narrow; `width` is what a column takes.
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
    if value is None:
        return _DASH
    for prefix in ("", "k", "M", "G"):
        if abs(value) < 1000:
            return f"{value:.3g} {prefix}{unit}"
        value /= 1000
    return f"{value:.3g} T{unit}"


def _bar(ratio: float) -> str:
    filled = round(ratio * _BAR)
    return "█" * filled + "░" * (_BAR - filled)


COLUMNS = (
    Column(
        "job",
        "the job's name; empty if it is somebody else's",
        lambda j: j.job,
        lambda j: j.job,
        14,
        0,
        False,
    ),
    Column("user", "who runs it", lambda j: j.user, lambda j: j.user, 8, 4, False),
    Column(
        "ranks",
        "its processes on this host that have joined",
        lambda j: str(j.ranks),
        lambda j: j.ranks,
        5,
        6,
    ),
    Column("flows", "its TCP connections on this host", lambda j: str(j.flows), lambda j: j.flows, 5, 5),
    Column(
        "by",
        "what controls it: the eBPF congestion control, tc (its class is paced), or none",
        lambda j: j.control if j.how == "kernel" else j.how,
        lambda j: j.how,
        11,
        3,
        False,
    ),
    Column(
        "F",
        "F(bytes_ratio) now: what its growth is multiplied by",
        lambda j: f"{j.factor:.2f}",
        lambda j: j.factor,
        4,
        1,
    ),
    Column(
        "bytes_ratio",
        "how much of this iteration's bytes have been acknowledged",
        lambda j: _bar(j.bytes_ratio),
        lambda j: j.bytes_ratio,
        _BAR + 1,
        2,
        False,
    ),
    Column(
        "iterations", "how many have finished", lambda j: str(j.iterations), lambda j: j.iterations, 10, 7
    ),
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
        "typical over the best seen (the least median of five)",
        lambda j: _DASH if j.slowdown is None else f"{j.slowdown:.3f}",
        lambda j: j.slowdown or 0,
        8,
        1,
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
        "segments sent again, since each flow came",
        lambda j: str(j.retransmits),
        lambda j: j.retransmits,
        7,
        4,
    ),
    Column(
        "marks",
        "segments that came back ECN-marked",
        lambda j: _amount(j.marks, "").strip(),
        lambda j: j.marks,
        6,
        4,
    ),
)

_TOLD_BY_ALL = ("user", "ranks", "flows", "by")


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``top`` to the commands."""
    names = ", ".join(column.name for column in COLUMNS)
    top = commands.add_parser("top", help="watch the jobs of this host, as its daemon sees them")
    top.add_argument("--interval", type=float, default=1.0, metavar="S", help="between looks (default 1)")
    top.add_argument("--sort", default="job", metavar="COLUMN", help=f"of {names} (default job)")
    top.add_argument("--once", action="store_true", help="show it once; so does a pipe")
    top.add_argument("--json", action="store_true", help="the daemon's status as one JSON document")
    top.add_argument("--describe", action="store_true", help="what every column means")


def execute(options: argparse.Namespace, read: Read) -> int:
    """Show the table until Ctrl-C, which is how one leaves it: exit status 0.

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
        raise UsageError(f"--interval {options.interval:g}: 0.1 to 3600 seconds are allowed")
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
                live.update(screen(status, options.sort, console.width, trouble), refresh=True)
                time.sleep(options.interval)
                try:
                    status, seen_s, trouble = read(), time.monotonic(), ""
                except MltcpError as error:
                    trouble = f"no answer for {time.monotonic() - seen_s:.0f} s: {error}"
    except KeyboardInterrupt:
        return


def screen(status: DaemonStatus, sort: str, width: int, trouble: str = "") -> RenderableType:
    """All that is shown: a line on the daemon, and its jobs."""
    parts: list[RenderableType] = [Text(headline(status), style="bold", overflow="ellipsis", no_wrap=True)]
    if trouble:
        parts.append(Text(trouble, style="red"))
    parts.append(table_of(status.jobs, sort, width) if status.jobs else Text("no jobs"))
    return Group(*parts)


def headline(status: DaemonStatus) -> str:
    """The daemon in one line."""
    text = f"mltcpd {status.pid}, up {_duration(status.uptime_s)}, {len(status.jobs)} jobs"
    text += f", {100 * status.daemon_cpu:.1f} % CPU"
    if status.pacing != "off":
        where = ", ".join(f"{each.name} {each.state}" for each in status.interfaces)
        text += f"; {status.law} every {1000 * status.interval_s:g} ms"
        text += f" ({100 * status.control_cpu:.1f} % CPU) on {where}"
    elif status.controls:
        text += f"; {', '.join(status.controls)}"
    return text


def table_of(jobs: Sequence[JobStatus], sort: str, width: int) -> Table:
    """The jobs, in as many columns as the width has room for."""
    columns = fitting(width)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(
            column.name, justify="right" if column.right else "left", no_wrap=True, min_width=column.width
        )
    key = next(column.key for column in COLUMNS if column.name == sort)
    for job in sorted(jobs, key=lambda job: (not job.detail, key(job), job.number)):
        table.add_row(*(_cell(column, job) for column in columns), style=_style(job))
    return table


def fitting(width: int) -> list[Column]:
    """The columns that a terminal of this width has room for, the most important ones."""
    kept = list(COLUMNS)
    while len(kept) > 1 and sum(column.width + 2 for column in kept) > width:
        kept.remove(max(reversed(kept), key=lambda column: column.rank))
    return kept


def _cell(column: Column, job: JobStatus) -> str:
    if job.detail or column.name in _TOLD_BY_ALL:
        return escape(column.cell(job)[: max(column.width, 20)])
    return ""


def _style(job: JobStatus) -> str:
    if not job.detail:
        return "dim"
    return "yellow" if job.slowdown is not None and job.slowdown > 1.1 else ""


def _duration(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
