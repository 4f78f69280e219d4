"""``mltcp-placement circle`` as a command: how well jobs fit together on a link, and a picture of it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from placement.cassini.circle import ANGLES, TOLERANCE, Circles, unified
from placement.cassini.compatibility import Compatibility, compatibility, score_at
from placement.cassini.demand import Demand, load
from placement.picture import check_path
from placement.rate import parse_rate_bps, shown_rate
from placement.traces.sets import load as load_set
from placement.traces.sets import names as set_names

_EXAMPLES = """\
examples:
  mltcp-placement circle vgg.json bert.json -o circles.svg      two jobs' profiles, on a link of 50 Gbit/s
  mltcp-placement circle snapshot2 --angles 360                 a set of jobs that comes with this package
  mltcp-placement circle a.json a.json a.json --capacity 200mbit --json

A JOB is a file with a demand profile, as the mltcp backend writes it (MLTCP_PROFILE), as `mltcp-placement profile`
makes it of a packet capture, or as {"phases": [{"duration_s", "bandwidth_bps"}, ...]}; or it is the name of a set.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``circle`` to the commands."""
    command = commands.add_parser(
        "circle",
        help="score how well jobs fit together on a link, and draw their circles before and after rotation",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("jobs", nargs="+", metavar="JOB", help="a profile, or a set of jobs")
    command.add_argument(
        "--capacity", metavar="RATE", help="of the link (default 50gbit, or that of the set)"
    )
    add_precision(command)
    command.add_argument(
        "-o", "--output", type=Path, metavar="PICTURE", help="write an SVG, PNG or PDF there"
    )
    command.add_argument("--json", action="store_true", help="one JSON document instead of the table")
    command.set_defaults(execute=execute)


def add_precision(command: argparse.ArgumentParser) -> None:
    """The arguments that say how finely circles are looked at."""
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
    """Solve and show; returns the exit status."""
    if options.output is not None:
        check_path(options.output)
    names, demands, capacity_bps = _jobs(options.jobs, options.capacity)
    circles = unified(demands, angles=options.angles, tolerance=options.tolerance)
    found = compatibility(circles, capacity_bps)
    if options.output is not None:
        from placement.cassini.drawing import write_picture  # matplotlib takes a second to import

        write_picture(options.output, names, circles, capacity_bps, found)
    if options.json:
        print(json.dumps(document(names, circles, capacity_bps, found), allow_nan=False))
    else:
        _show(names, circles, capacity_bps, found)
    return 0


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
    return numbered, demands, capacity_bps if capacity is None else parse_rate_bps(capacity)


def document(
    names: Sequence[str], circles: Circles, capacity_bps: int, found: Compatibility
) -> dict[str, Any]:
    """What was found, for programs."""
    return {
        "capacity_bps": capacity_bps,
        "perimeter_s": circles.perimeter_ns / 1e9,
        "angles": circles.angles,
        "score_before": score_at(circles, capacity_bps, (0,) * len(names)),
        "score": found.score,
        "bound": found.bound,
        "proven": found.proven,
        "jobs": [
            {
                "name": name,
                "iterations_on_circle": circles.repeats[job],
                "iteration_s": (circles.period_ns(job) - circles.drift_ns[job]) / 1e9,
                "drift_s": circles.drift_ns[job] / 1e9,
                "rotation_degrees": _degrees(circles, found.rotations[job]),
                "time_shift_s": found.shifts_ns[job] / 1e9,
            }
            for job, name in enumerate(names)
        ],
    }


def _degrees(circles: Circles, rotation: int) -> float:
    return rotation * 360 / circles.angles


def _show(names: Sequence[str], circles: Circles, capacity_bps: int, found: Compatibility) -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("job", "iteration ms", "on the circle", "drift us", "rotation", "time shift ms"):
        table.add_column(column, justify="left" if column == "job" else "right")
    for job, name in enumerate(names):
        table.add_row(
            name,
            f"{(circles.period_ns(job) - circles.drift_ns[job]) / 1e6:.6g}",
            f"{circles.repeats[job]}",
            f"{circles.drift_ns[job] / 1e3:.4g}",
            f"{_degrees(circles, found.rotations[job]):.4g}°",
            f"{found.shifts_ns[job] / 1e6:.6g}",
        )
    before = score_at(circles, capacity_bps, (0,) * len(names))
    proof = "no rotation has a higher one" if found.proven else f"no rotation has more than {found.bound:.4g}"
    console = Console(soft_wrap=True, highlight=False)
    console.print(f"circle of {circles.perimeter_ns / 1e6:.6g} ms, link of {shown_rate(capacity_bps)}")
    console.print(table)
    console.print(f"score {found.score:.4g} ({proof}); as they are {before:.4g}")
