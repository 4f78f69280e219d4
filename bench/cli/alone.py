"""``mltcp-bench alone``: whether a job that is alone on its link loses anything under MLTCP."""

from __future__ import annotations

import argparse
import json
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from bench.alone.cell import Cell, default_cells
from bench.alone.measure import AlonePlan, measured
from bench.alone.report import comparisons, document, print_report
from bench.compare.approaches.policy import parse_policy
from mltcp.core.errors import UsageError
from mltcp.core.policy_names import parse_names
from mltcp.core.progress import progress_bar

_CONTROLS = "mltcp_reno,mltcp_cubic,mltcp_dctcp"
_EXAMPLES = """\
examples:
  mltcp-bench alone -o report                                       every cell, three controls, five rounds
  mltcp-bench alone --cells 1g-10ms,1g-10ms-long --rounds 3 -o report
  mltcp-bench alone --controls mltcp_reno,mltcp_reno@start=kernel --cells 1g-10ms-long -o report

Each control of MLTCP is compared with its base (reno, cubic, plain DCTCP) in the same cell, one after the other, in an
order that changes with the round. -o keeps each round: a measurement that was interrupted goes on if the command is
given again. docs/alone.md explains the columns.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``alone`` to the commands."""
    command = commands.add_parser(
        "alone", epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command.add_argument(
        "--cells", default="", metavar="NAME,...", help="some of the table (default all); `list` names them"
    )
    command.add_argument(
        "--controls", default=_CONTROLS, metavar="NAME,...", help="controls of MLTCP (default %(default)s)"
    )
    command.add_argument(
        "--rounds", type=int, default=5, metavar="N", help="of each cell (default %(default)s)"
    )
    command.add_argument(
        "--iterations", type=int, metavar="N", help="that count (default: 2 to 5, by the pause)"
    )
    command.add_argument("-o", "--output", type=Path, metavar="DIR", help="for the rounds")
    command.add_argument("--json", action="store_true", help="one JSON document instead of the table")
    command.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Measure what is missing and print the table; returns the exit status."""
    if options.cells == "list":
        for cell in default_cells():
            print(f"{cell.name:24} {cell.summary}")
        return 0
    plan = plan_of(options)
    with ExitStack() as stack:
        folder = options.output or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="mltcp-alone-"))
        )
        with progress_bar(plan.steps) as bar:
            rounds = measured(plan, folder, bar.remaining)
    found = comparisons(plan, rounds)
    if options.json:
        print(json.dumps(document(found, rounds), allow_nan=False))
    else:
        print_report(found, rounds)
    return 0


def plan_of(options: argparse.Namespace) -> AlonePlan:
    """The table that the arguments describe. Raises UsageError: one is out of range or unknown."""
    controls = parse_names(options.controls, lambda name: parse_policy(name, "cubic"), "--controls")
    cells = _cells(options.cells)
    if options.iterations is not None:
        cells = tuple(replace(cell, iterations=options.iterations) for cell in cells)
    return AlonePlan(cells, controls, options.rounds)


def _cells(text: str) -> tuple[Cell, ...]:
    known = {cell.name: cell for cell in default_cells()}
    names = [name.strip() for name in text.split(",") if name.strip()] or list(known)
    for name in names:
        if name not in known:
            raise UsageError(f"--cells: expected some of {', '.join(known)}, got {name!r}")
    return tuple(known[name] for name in names)
