"""``mltcp-bench holding``: whether congestion controls keep jobs apart whose periods differ."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from bench.cli.contest_arguments import (
    add_link,
    add_measurement,
    add_runs,
    check_counts,
    link_of,
    progress,
    retry_busy_of,
)
from bench.command_line import option
from bench.compare.approach import Approach, parse_policy
from bench.compare.contest import Contest
from bench.compare.engine import run_contests
from bench.compare.holding import (
    HoldingResult,
    HoldingSweep,
    document,
    holding_result,
    parse_mismatches,
    print_table,
)
from bench.compare.results.journal import keep_in, read_result
from bench.compare.results.runs import ISOLATED
from bench.workloads.profile import load
from mltcp.core.errors import UsageError
from mltcp.core.policy_names import parse_names
from mltcp.core.subcommands import add_command

_POLICIES = "cubic,mltcp_cubic,mltcp_reno,mltcp_dctcp"
_FEWEST_ITERATIONS = 5
_EXAMPLES = """\
examples:
  mltcp-bench holding                                      two jobs, periods 0, 1, 2, 3 and 5 % apart, four controls
  mltcp-bench holding --policies cubic,mltcp_cubic --mismatch 0,3 --repeat 10 -o report
  mltcp-bench holding --jobs 3 --mismatch 0,1,3            three jobs, the second and the third once and twice as far
  mltcp-bench holding --policies mltcp_reno,mltcp_reno@remaining:increase=1
  mltcp-bench holding --from report/result.json -o report  the table and the picture of an earlier sweep
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``holding`` to the commands."""
    command = add_command(commands, "holding", execute, _EXAMPLES)
    option(command, "--policies", _POLICIES, "congestion controls to try")
    option(command, "--mismatch", "0,1,2,3,5", "differences of the periods in percent", "P,P,...")
    option(command, "--jobs", 2, "jobs on the link", "N")
    command.add_argument(
        "--profile", default="vgg16", metavar="NAME", help="the job: a DNN profile by name or JSON file"
    )
    command.add_argument(
        "--fraction", type=float, help="share of the link that each job needs alone (default 0.86 / jobs)"
    )
    add_runs(command, iterations=50, repeat=3)
    add_link(command)
    add_measurement(command)
    command.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="write result.json after every run, and holding.png"
    )
    command.add_argument(
        "--from", dest="earlier", type=Path, metavar="FILE", help="show the result.json of an earlier sweep"
    )
    command.set_defaults(hosts=None)


def execute(options: argparse.Namespace) -> int:
    """Run the sweep and print its result; returns the exit status."""
    result = _run(options) if options.earlier is None else _shown_again(options.earlier)
    files = _written(result, options.output)
    if options.json:
        print(json.dumps({**document(result), "files": files}, allow_nan=False))
    else:
        print_table(result)
        for path in files:
            print(f"wrote {path}")
    return 0


def _run(options: argparse.Namespace) -> HoldingResult:
    contests = sweep_of(options).contests(template_of(options))
    keep, retry_busy = keep_in(options.output), retry_busy_of(options)
    with progress(sum(contest.total_iterations for contest in contests), options.repeat) as step:
        return holding_result(run_contests(contests, step, keep, retry_busy))


def _shown_again(path: Path) -> HoldingResult:
    return holding_result([one.measured for one in read_result(path).sets])


def sweep_of(options: argparse.Namespace) -> HoldingSweep:
    """The sweep that the arguments describe. Raises UsageError: one is out of range or unknown."""
    return HoldingSweep(
        load(options.profile), options.jobs, parse_mismatches(options.mismatch), options.fraction
    )


def template_of(options: argparse.Namespace) -> Contest:
    """The policies, the link and the lengths that the arguments describe.

    Raises:
        UsageError: an argument is out of range or unknown.
    """
    check_counts(options, "iterations", "repeat")
    if options.iterations < _FEWEST_ITERATIONS:
        raise UsageError(f"--iterations: expected {_FEWEST_ITERATIONS} or more, got {options.iterations}")
    names = [ISOLATED, *(name for name in options.policies.split(",") if name and name != ISOLATED)]
    if len(names) == 1:
        raise UsageError("--policies: expected one or more congestion controls, got none")
    return Contest(
        jobs=(),
        approaches=parse_names(",".join(names), lambda name: Approach(name, parse_policy(name, "cubic"))),
        link=link_of(options),
        iterations=options.iterations,
        repeat=options.repeat,
        ranks=options.ranks,
        ecn_by=options.ecn_by,
    )


def _written(result: HoldingResult, directory: Path | None) -> list[str]:
    if directory is None:
        return []
    from bench.compare.holding_picture import write_picture

    return [str(write_picture(result, directory))]
