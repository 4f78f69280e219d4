"""``mltcp-bench bulk``: its arguments, and its table or JSON document."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from bench.bulk.bulk import BulkResult, alone, beside, summarise
from bench.cli.contest_arguments import add_jobs, add_link, contest_of, link_of
from bench.cli.progress import progress
from bench.compare.approach import Policy, parse_policy
from bench.lab.bottleneck.aqm import VIRTUAL_QUEUE
from mltcp.core.errors import UsageError

_EXAMPLES = """\
examples:
  mltcp-bench bulk --policies reno,mltcp_reno --rate 10gbit --ecn none     throughput and CPU time per byte
  mltcp-bench bulk --jobs vgg16 --policies reno,mltcp_reno                 throughput of a flow beside a job
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``bulk`` to the commands."""
    command = commands.add_parser(
        "bulk",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_jobs(command, policies="reno,mltcp_reno,cubic,mltcp_cubic,dctcp,mltcp_dctcp", iterations=40, repeat=3)
    command.set_defaults(jobs="", execute=execute)
    # Options of `contend` that this command does not have.
    command.set_defaults(stagger=0.0, perturb=None, seed=0, isolated_cc="cubic", ecn_by=VIRTUAL_QUEUE)
    add_link(command)
    command.add_argument(
        "--seconds", type=float, default=10.0, metavar="S", help="duration of the flow (default 10)"
    )
    command.add_argument(
        "--bulk-cc", default="cubic", metavar="NAME", help="the flow's control beside jobs (default cubic)"
    )
    command.add_argument("--json", action="store_true", help="one JSON document instead of the table")


def execute(options: argparse.Namespace) -> int:
    """Run the flow and print its throughput; returns the exit status."""
    if not 1 <= options.seconds <= 3600:
        raise UsageError(f"--seconds: expected 1 to 3600, got {options.seconds:g}")
    policies = [parse_policy(name, "cubic") for name in options.policies.split(",") if name]
    if not policies or any(policy.isolated for policy in policies):
        raise UsageError(
            f"--policies: expected at least one congestion control and no `isolated`, got {options.policies!r}"
        )
    results = _beside(options) if options.jobs else _alone(options, policies)
    if options.json:
        print(json.dumps({"schema": 1, "policies": [asdict(result) for result in results]}))
    else:
        Console(highlight=False).print(_table(results))
    return 0


def _alone(options: argparse.Namespace, policies: Sequence[Policy]) -> list[BulkResult]:
    with progress(len(policies) * options.repeat, options.repeat) as step:
        return summarise(alone(policies, link_of(options), options.seconds, options.repeat, step))


def _beside(options: argparse.Namespace) -> list[BulkResult]:
    contest = contest_of(options)
    with progress(len(contest.approaches) * contest.repeat, contest.repeat) as step:
        return summarise(beside(contest, options.bulk_cc, options.seconds, step))


def _table(results: Sequence[BulkResult]) -> Table:
    table = Table("policy", "Mbit/s", "min..max", "CPU s per GB", "min..max", box=None)
    for result in results:
        (low, high), (cheap, dear) = result.bits_per_s_range, result.cpu_s_per_gb_range
        table.add_row(
            result.policy,
            f"{result.bits_per_s / 1e6:.1f}",
            f"{low / 1e6:.1f}..{high / 1e6:.1f}",
            f"{result.cpu_s_per_gb:.3f}",
            f"{cheap:.3f}..{dear:.3f}",
        )
    return table
