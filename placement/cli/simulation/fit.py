"""``mltcp-placement fit``: its arguments and its output, the constants of eq. 5."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mltcp.core.subcommands import add_command
from placement.experiments.console import open_console
from placement.experiments.fit import Constant, Fit, fit, read_measurements

if TYPE_CHECKING:
    from rich.table import Table

_EXAMPLES = """\
examples:
  mltcp-bench contention -o contention.csv && mltcp-placement fit contention.csv    measured in the lab
  mltcp-placement fit contention.csv -o contention.svg                              points and fitted lines
  mltcp-placement fit contention.csv --json

The file is CSV with the header job_num,msg_size,avg_latency: how many all-reduces ran at the same time, the size of
each in bytes, and their mean time in microseconds. T = a + k*b*M + (k-1)*eta*M, none negative, is fitted to it by the
least squares of relative errors.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``fit`` to the commands."""
    command = add_command(commands, "fit", execute, _EXAMPLES)
    command.add_argument("measurements", type=Path, metavar="CSV", help="job_num,msg_size,avg_latency")
    command.add_argument(
        "-o", "--output", type=Path, metavar="PICTURE", help="write an SVG, PNG or PDF there"
    )
    command.add_argument("--json", action="store_true", help="one JSON document instead of the table")


def execute(options: argparse.Namespace) -> int:
    """Fit the constants and print them; returns the exit status."""
    measurements = read_measurements(options.measurements)
    found = fit(measurements)
    if options.output is not None:
        from placement.plots.fit import write_picture

        write_picture(found, measurements, options.output)
    if options.json:
        print(json.dumps(document(found), allow_nan=False))
    else:
        _show(found, options.output)
    return 0


def document(found: Fit) -> dict[str, Any]:
    """The document that ``--json`` prints; the three constants are named as in `Contention`."""
    return {
        "schema": 1,
        "latency_ns": asdict(found.latency_ns),
        "ns_per_byte": asdict(found.ns_per_byte),
        "penalty_ns_per_byte": asdict(found.penalty_ns_per_byte),
        "penalty_identified": found.penalty_identified,
        "r_squared": found.r_squared,
        "relative_error": found.relative_error,
        "measurements": found.measurements,
        "points": found.points,
        "jobs": list(found.jobs),
        "sizes_bytes": list(found.sizes_bytes),
        "warnings": list(found.warnings),
    }


def _show(found: Fit, picture: Path | None) -> None:
    console = open_console()
    console.print(_table(found))
    console.print()
    explained = "" if found.r_squared is None else f"R² {found.r_squared:.4f}, "
    console.print(
        f"{explained}relative error {found.relative_error:.2%} (root mean square) over {found.points} points: "
        f"{_count(found.jobs, 'value')} of k, {_count(found.sizes_bytes, 'size')}, "
        f"{found.measurements} measurements",
        soft_wrap=True,
    )
    if picture is not None:
        console.print(f"picture: {picture}", soft_wrap=True)
    for warning in found.warnings:
        print(f"mltcp-placement: warning: {warning}", file=sys.stderr)


def _table(found: Fit) -> Table:
    from rich.table import Table

    table = Table("constant", "unit", box=None, pad_edge=False)
    for heading in ("value", "std. error", "95 % interval"):
        table.add_column(heading, justify="right")
    rows = (
        ("a", "ns", found.latency_ns),
        ("b", "ns/byte", found.ns_per_byte),
        ("eta", "ns/byte", found.penalty_ns_per_byte),
    )
    for name, unit, constant in rows:
        table.add_row(name, unit, *_figures(constant))
    return table


def _figures(constant: Constant) -> tuple[str, str, str]:
    if constant.standard_error is None or constant.low is None or constant.high is None:
        return f"{constant.value:.5g}", "-", "unknown"
    return (
        f"{constant.value:.5g}",
        f"{constant.standard_error:.2g}",
        f"{constant.low:.4g} to {constant.high:.4g}",
    )


def _count(values: tuple[int, ...], what: str) -> str:
    return f"{len(values)} {what}{'' if len(values) == 1 else 's'}"
