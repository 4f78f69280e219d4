"""``mltcp-bench bound``: how much of the contention on a link could be taken away, by ideal sharing rules."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from bench.cli.contest_arguments import check_counts, whole_numbers
from bench.command_line import option
from bench.sensitivity.bound import (
    BoundSettings,
    bound_of,
    document,
    named_layout,
    print_rows,
    sets_of,
    with_measured,
)
from bench.sensitivity.plan import layouts_of
from mltcp.core.errors import UsageError
from mltcp.core.policy_names import parse_names
from mltcp.core.progress import progress_bar
from mltcp.core.subcommands import add_command
from placement.model.throughput_table import published_table, read_table
from placement.simulator.link_order import LinkRule, LinkSettings

_RULES = tuple(rule for rule in LinkRule if rule is not LinkRule.OPTIMUM)
_EXAMPLES = """\
examples:
  mltcp-bench bound                                        465 pairs of 30 layouts, ten rules
  mltcp-bench bound --table docs/tables/cubic,docs/tables/mltcp_cubic
  mltcp-bench bound --jobs MobileNetV3-2-2,DLRM-2-2
  mltcp-bench bound --models MobileNetV3,DLRM --gpus 2 --rules fair,srpt,optimum

The jobs of `mltcp-bench sensitivity`, as bursts on one link that is shared at once by a rule, without windows,
queues or round trips; --table adds what was measured there. The optimum is found by search, in minutes for many pairs.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``bound`` to the commands."""
    command = add_command(commands, "bound", execute, _EXAMPLES)
    add = command.add_argument
    add(
        "--jobs",
        default="",
        metavar="A,B,...",
        help="one set of jobs, each MODEL-GPUS-NODES (default pairs)",
    )
    add("--models", default="", metavar="M,...", help="pairs of these only (default all)")
    add("--gpus", default="", metavar="N,...", help="pairs of these sizes only (default all)")
    add("--table", default="", metavar="DIR,...", help="measured tables, which are shown beside the rules")
    option(command, "--rules", ",".join(rule.label for rule in _RULES), "also `optimum`")
    option(command, "--iterations", 60, "of the longest job", "N")
    option(command, "--offsets", 3, "random ones of each set, averaged", "N")
    option(command, "--noise", 0.02, "standard deviation of each computing time", "PART")
    option(command, "--seed", 0, "of offsets and noise")
    add("--json", action="store_true", help="one JSON document with each set instead of the tables")


def execute(options: argparse.Namespace) -> int:
    """Compute the bound and print it; returns the exit status."""
    check_counts(options, "iterations", "offsets")
    table = published_table()
    settings = BoundSettings(
        parse_names(options.rules, _rule, "--rules"),
        options.offsets,
        LinkSettings(options.iterations, options.noise),
        options.seed,
    )
    if options.jobs:
        sets = [tuple(named_layout(name, table) for name in options.jobs.split(","))]
    else:
        sets = sets_of(layouts_of(table, _words(options.models), whole_numbers(options.gpus, "--gpus")))
    measured = {Path(name).name: read_table(Path(name)) for name in _words(options.table)}
    if measured and any(len(layouts) != 2 for layouts in sets):
        raise UsageError("--table: expected pairs, of which tables are, got another number of --jobs")
    rows = []
    with progress_bar(len(sets)) as bar:
        for layouts in sets:
            row = bound_of(layouts, table, settings)
            rows.append(with_measured(row, measured) if measured else row)
            bar.advance("ideal rules")
    if options.json:
        print(json.dumps(document(rows)))
    else:
        print_rows(rows)
    return 0


def _rule(name: str) -> LinkRule:
    for rule in LinkRule:
        if rule.label == name:
            return rule
    raise UsageError(f"--rules: expected some of {', '.join(rule.label for rule in LinkRule)}, got {name!r}")


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]
