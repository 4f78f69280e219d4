"""``mltcp-placement circle``: the compatibility of jobs on a link, with a picture of their circles."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mltcp.core.demand import Demand, load
from mltcp.core.errors import UsageError
from mltcp.core.quantities import parse_rate_bps, with_si_prefix
from mltcp.core.subcommands import add_command
from placement.cassini.circle import ANGLES, TOLERANCE, Circles
from placement.cassini.compatibility import CircleGroup, LinkFit, fit_link
from placement.experiments.console import open_console
from placement.traces.sets import load as load_set
from placement.traces.sets import names as set_names

if TYPE_CHECKING:
    from rich.table import Table

_EXAMPLES = """\
examples:
  mltcp-placement circle vgg.json bert.json -o circles.svg      two jobs' profiles, on a link of 50 Gbit/s
  mltcp-placement circle snapshot4 --angles 360                 a set of jobs that comes with this package
  mltcp-placement circle a.json a.json a.json --capacity 200mbit --json

A JOB is a file with a demand profile, as the mltcp backend writes it (MLTCP_PROFILE), as `mltcp-placement profile`
makes it of a packet capture, or as {"phases": [{"duration_s", "bandwidth_bps"}, ...]}; or it is the name of a set.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``circle`` to the commands."""
    command = add_command(commands, "circle", execute, _EXAMPLES)
    command.add_argument("jobs", nargs="+", metavar="JOB", help="a profile, or a set of jobs")
    command.add_argument(
        "--capacity", metavar="RATE", help="of the link (default 50gbit, or that of the set)"
    )
    add_precision(command)
    command.add_argument(
        "-o", "--output", type=Path, metavar="PICTURE", help="write an SVG, PNG or PDF there"
    )
    command.add_argument("--json", action="store_true", help="one JSON document instead of the table")


def add_precision(command: argparse.ArgumentParser) -> None:
    """Add the arguments of the precision of circles."""
    command.add_argument(
        "--angles", type=int, default=ANGLES, metavar="N", help=f"discrete angles (default {ANGLES})"
    )
    command.add_argument(
        "--tolerance",
        type=float,
        default=TOLERANCE,
        metavar="X",
        help=f"of iteration times without a short common multiple (default {TOLERANCE})",
    )


def execute(options: argparse.Namespace) -> int:
    """Solve the link and print the result; returns the exit status."""
    if options.output is not None:
        from placement.plots.style import check_path

        check_path(options.output)
    names, demands, capacity_bps = _jobs(options.jobs, options.capacity)
    found = fit_link(demands, capacity_bps, angles=options.angles, tolerance=options.tolerance)
    if options.json:
        print(json.dumps(document(names, demands, found), allow_nan=False))
    else:
        _show(names, demands, found)
    if options.output is not None:
        _draw(options.output, names, found)
    return 0


def _draw(path: Path, names: Sequence[str], found: LinkFit) -> None:
    if len(found.groups) > 1:
        apart = "; ".join(", ".join(names[job] for job in group.jobs) for group in found.groups)
        raise UsageError(
            f"{path}: no picture, since the iterations have no common multiple ({apart}); a larger --tolerance may help"
        )
    from placement.plots.circles import write_picture

    (group,) = found.groups
    write_picture(path, names, group.circles, found.capacity_bps, group.compatibility)


def _jobs(given: Sequence[str], capacity: str | None) -> tuple[list[str], list[Demand], int]:
    names: list[str] = []
    demands: list[Demand] = []
    capacity_bps = 50 * 10**9
    for each in given:
        if each in set_names():
            chosen = load_set(each)
            capacity_bps = chosen.capacity_bps
            names += [job.name for job in chosen.jobs]
            demands += [job.demand for job in chosen.jobs]
        else:
            name, demand = load(Path(each))
            names.append(name)
            demands.append(demand)
    numbered = [
        f"{name}-{names[: position + 1].count(name)}" if names.count(name) > 1 else name
        for position, name in enumerate(names)
    ]
    return (
        numbered,
        demands,
        capacity_bps if capacity is None else parse_rate_bps(capacity, field="--capacity"),
    )


def document(names: Sequence[str], demands: Sequence[Demand], found: LinkFit) -> dict[str, Any]:
    """The document that ``--json`` prints."""
    return {
        "capacity_bps": found.capacity_bps,
        "score_before": found.score_at([0] * len(names)),
        "score": found.score,
        "bound": found.bound,
        "proven": found.proven,
        "groups": [_group_document(group, names, demands) for group in found.groups],
    }


def _group_document(group: CircleGroup, names: Sequence[str], demands: Sequence[Demand]) -> dict[str, Any]:
    circles, fit = group.circles, group.compatibility
    return {
        "perimeter_s": circles.perimeter_ns / 1e9,
        "angles": circles.angles,
        "jobs": [
            {
                "name": names[job],
                "iterations_on_circle": circles.repeats[at],
                "iteration_s": demands[job].iteration_ns / 1e9,
                "drift_s": circles.drift_ns[at] / 1e9,
                "rotation_degrees": _degrees(circles, fit.rotations[at]),
                "time_shift_s": fit.shifts_ns[at] / 1e9,
            }
            for at, job in enumerate(group.jobs)
        ],
    }


def _degrees(circles: Circles, rotation: int) -> float:
    return rotation * 360 / circles.angles


def _show(names: Sequence[str], demands: Sequence[Demand], found: LinkFit) -> None:
    console = open_console()
    for group in found.groups:
        of = f" of {group.circles.perimeter_ns / 1e6:.6g} ms"
        console.print(f"circle{of}, link of {with_si_prefix(found.capacity_bps, 'bit/s')}", soft_wrap=True)
        console.print(_table(group, names, demands))
    if len(found.groups) > 1:
        console.print(
            "the circles have no common multiple: their jobs meet in every way, whatever the time shifts",
            soft_wrap=True,
        )
    proof = (
        "no time shifts have a higher one"
        if found.proven
        else f"no time shifts have more than {found.bound:.4g}"
    )
    before = found.score_at([0] * len(names))
    console.print(f"score {found.score:.4g} ({proof}); as they are {before:.4g}", soft_wrap=True)


def _table(group: CircleGroup, names: Sequence[str], demands: Sequence[Demand]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("job", "iteration ms", "on the circle", "drift us", "rotation", "time shift ms"):
        table.add_column(column, justify="left" if column == "job" else "right")
    for at, job in enumerate(group.jobs):
        table.add_row(
            names[job],
            f"{demands[job].iteration_ns / 1e6:.6g}",
            f"{group.circles.repeats[at]}",
            f"{group.circles.drift_ns[at] / 1e3:.4g}",
            f"{_degrees(group.circles, group.compatibility.rotations[at]):.4g}°",
            f"{group.compatibility.shifts_ns[at] / 1e6:.6g}",
        )
    return table
