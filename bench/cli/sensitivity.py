"""``mltcp-bench sensitivity``: how much jobs slow each other down on shared hosts, pair by pair."""

from __future__ import annotations

import argparse
import json
import re
from datetime import date
from pathlib import Path

from bench.cli.contest_arguments import add_link, link_of, whole_numbers
from bench.compare.approach import parse_policy
from bench.lab.link import Link
from bench.sensitivity.measure import measured
from bench.sensitivity.plan import SensitivityPlan, SensitivityPoint, layouts_of
from bench.sensitivity.report import document, print_report
from bench.sensitivity.result import table_of, write_table
from mltcp.core.errors import UsageError
from mltcp.core.policy_names import parse_names
from mltcp.core.progress import progress_bar
from mltcp.core.subcommands import add_command
from placement.model.throughput_table import published_table

_POLICIES = "cubic,mltcp_cubic"
_EXAMPLES = """\
examples:
  mltcp-bench sensitivity -o report                                30 layouts, 465 pairs, two controls: about 5 hours
  mltcp-bench sensitivity --models FSDP,MoE --gpus 2 --seconds 5 -o report
  mltcp-bench sensitivity --policies cubic --repeat 2 -o report
  mltcp-bench sensitivity --demand 1 --seconds 3 -o report         the 153 pairs that fit
  mltcp-bench sensitivity --demand 1.3:inf --policies cubic -o report   those that ask for more than 1.3 links
  mltcp-placement jobs --workload contention --seeds 0:20 --load 0.6 --table report/cubic --policies greedy,reopt

Six models of the paper (Table I of its text) run alone and in pairs on four hosts of one link each; -o keeps each run,
and a measurement that was interrupted goes on if the command is given again. DIR/CONTROL has the table in the format of
the published one, which --table of mltcp-placement reads.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``sensitivity`` to the commands."""
    command = add_command(commands, "sensitivity", execute, _EXAMPLES)
    add = command.add_argument
    add("--policies", default=_POLICIES, help=f"congestion controls, a table for each (default {_POLICIES})")
    add("--models", default="", metavar="M,...", help="some of the table (default all)")
    add("--gpus", default="", metavar="N,...", help="sizes of jobs (default all)")
    add(
        "--demand",
        default="inf",
        metavar="[X:]Y",
        help="only pairs that ask for up to Y links, and for more than X",
    )
    add("--seconds", type=float, default=15.0, help="of each measurement, at least (default %(default)s)")
    add(
        "--iterations",
        type=int,
        default=10,
        metavar="N",
        help="longer where that is needed for so many of a job, or of both of a pair (default %(default)s)",
    )
    add("--warm-up", type=float, default=3.0, metavar="S", help="before it (default %(default)s)")
    add("--repeat", type=int, default=1, metavar="N", help="of the pairs (default 1)")
    add("--seed", type=int, default=0, help="of the order and the phases (default 0)")
    add_link(command, Link(100_000_000, 200_000, 30_000))
    add("-o", "--output", type=Path, required=True, metavar="DIR", help="for runs and tables")
    add("--json", action="store_true", help="one JSON document instead of the tables")


def execute(options: argparse.Namespace) -> int:
    """Measure what is missing, write the tables and print them; returns the exit status."""
    plan = plan_of(options)
    with progress_bar(sum(1 for _ in plan.points())) as bar:

        def step(point: SensitivityPoint, missing: int) -> None:
            bar.remaining(f"{point.control}: {' beside '.join(map(str, point.layouts))}", missing)

        runs = measured(plan, options.output, step)
    tables = [table_of(policy.name, runs, plan.seed) for policy in plan.policies]
    files = [
        str(path)
        for table in tables
        for path in write_table(
            table,
            plan.table,
            options.output / re.sub(r"[^A-Za-z0-9_.-]", "-", table.control),
            "mltcp-bench sensitivity",
            date.today(),
        )
    ]
    if options.json:
        print(json.dumps(document(tables, plan.table, files)))
    else:
        print_report(tables, plan.table, files)
    return 0


def _range_of_demand(text: str) -> tuple[float, float]:
    """``Y`` or ``X:Y``. Raises UsageError: it is neither."""
    above, _, most = text.rpartition(":")
    try:
        return float(above or 0), float(most)
    except ValueError:
        raise UsageError(f"--demand: expected Y or X:Y, in links, got {text!r}") from None


def plan_of(options: argparse.Namespace) -> SensitivityPlan:
    """The measurement that the arguments describe. Raises UsageError: one is out of range or unknown."""
    table = published_table()
    models = [name for name in options.models.split(",") if name]
    return SensitivityPlan(
        layouts_of(table, models, whole_numbers(options.gpus, "--gpus")),
        table,
        tuple(parse_names(options.policies, lambda name: parse_policy(name, "cubic"))),
        link_of(options),
        options.seconds,
        options.iterations,
        options.warm_up,
        options.repeat,
        options.seed,
        _range_of_demand(options.demand),
    )
