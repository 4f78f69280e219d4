"""``mltcp-bench contend``: jobs on one bottleneck under several congestion controls, against each job alone."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from bench.cli.contest_arguments import (
    add_hosts,
    add_jobs,
    add_link,
    add_measurement,
    contest_of,
    retry_busy_of,
    source_of,
)
from bench.cli.progress import progress
from bench.compare.engine import run_contests
from bench.compare.report.text import CONTEND, print_report
from bench.compare.results.figures import pooled_baselines
from bench.compare.results.results import CompareResult, SetResult, contend_document, set_result

_POLICIES = "isolated,reno,mltcp_reno,cubic,mltcp_cubic,dctcp,mltcp_dctcp"
_EXAMPLES = """\
examples:
  mltcp-bench contend --jobs vgg16,vgg16                     two jobs on one link, each policy against the job alone
  mltcp-bench contend --jobs vgg16,resnet50 --policies isolated,cubic,mltcp_cubic --plot plots
  mltcp-bench contend --jobs vgg16,vgg16 --perturb 20:0.15   every 20 iterations one job is delayed
  mltcp-bench contend --jobs my-model.json,train --json      a profile of your own beside a small real training
  mltcp-bench contend --policies isolated,mltcp_reno,mltcp_reno@quadratic,mltcp_reno@falling_linear
  mltcp-bench contend --policies isolated,dcqcn,mltcp_dcqcn   rates from a daemon on every host (docs/daemon.md)
  mltcp-bench contend --hosts hosts.json --rate 10gbit --policies isolated,cubic,mltcp_cubic   on real hosts, by ssh
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``contend`` to the commands."""
    command = commands.add_parser(
        "contend",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_jobs(command, policies=_POLICIES, iterations=80, repeat=3)
    add_link(command)
    command.add_argument(
        "--stagger", type=float, default=0.0, metavar="S", help="start each job this much later"
    )
    command.add_argument("--perturb", metavar="N:S", help="every N iterations delay a job by up to S seconds")
    command.add_argument("--seed", type=int, default=0, help="seed of the perturbation (default 0)")
    command.add_argument(
        "--isolated-cc",
        default="cubic",
        metavar="NAME",
        help="congestion control of isolated jobs (default cubic)",
    )
    add_measurement(command)
    add_hosts(command)
    command.add_argument("--plot", type=Path, metavar="DIR", help="write pictures (PNG) there")
    command.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Run the contest and print its result; returns the exit status."""
    contest, retry_busy = contest_of(options), retry_busy_of(options)
    source = source_of(options, [contest])
    with progress(contest.total_iterations, contest.repeat) as step:
        (measured,) = run_contests([contest], step, lambda so_far: None, retry_busy, source)
    result = set_result(measured, pooled_baselines)
    plots = _plots(result, options.plot)
    if options.json:
        print(json.dumps({**contend_document(result), "plots": plots}, allow_nan=False))
    else:
        print_report(CompareResult((result,)), CONTEND, files=plots)
    return 0


def _plots(result: SetResult, directory: Path | None) -> list[str]:
    if directory is None:
        return []
    from bench.compare.report.plots import contend_pictures, write_pictures

    return [str(path) for path in write_pictures(contend_pictures(result), directory)]
