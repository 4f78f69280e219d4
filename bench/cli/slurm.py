"""``mltcp-bench slurm``: jobs through the placement service and a Slurm of its own on this machine."""

from __future__ import annotations

import argparse
import dataclasses
import json

from bench.soak.slurm_trial import TrialPlan, TrialResult, run_trial
from mltcp.core.errors import UsageError
from mltcp.core.progress import progress_bar

_EXAMPLES = """\
examples:
  mltcp-bench slurm --jobs 20 --nodes 2             a short trial
  mltcp-bench slurm                                 200 jobs on 8 nodes with 4 GPUs each
  mltcp-bench slurm --kills 10 --seed 1 --json      and each of service, slurmctld, slurmd and munged killed ten times
  mltcp-bench slurm --restarts 10                   the service, with tokens, ended and killed ten times in all

Everything runs on this machine, in a directory of its own, beside a Slurm that it may have: munged, slurmctld, a
slurmd a node, slurmdbd with a database, and the placement service with --engine slurm. GPUs are null devices. The exit
status is 1 if a job was lost, ended by a restart of the service or ran twice, a GPU was given twice or not given back,
or accounting and the service do not agree.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``slurm`` to the commands."""
    command = commands.add_parser(
        "slurm", epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    plan = TrialPlan()
    command.add_argument("--jobs", type=int, default=plan.jobs, metavar="N", help="default %(default)s")
    command.add_argument("--nodes", type=int, default=plan.nodes, metavar="N", help="default %(default)s")
    command.add_argument(
        "--gpus", type=int, default=plan.gpus, metavar="N", help="of each node (default %(default)s)"
    )
    command.add_argument(
        "--kills", type=int, default=0, metavar="N", help="how often each daemon is killed (default 0)"
    )
    command.add_argument(
        "--restarts",
        type=int,
        default=0,
        metavar="N",
        help="how often the service is ended or killed, by turns, and started again; it then has tokens and short "
        "leases, and a tenth of the jobs have agents (default 0)",
    )
    command.add_argument(
        "--no-accounting",
        action="store_true",
        help="without slurmdbd and its database: squeue is asked instead of sacct",
    )
    command.add_argument("--seed", type=int, default=0, help="of all choices (default 0)")
    command.add_argument("--json", action="store_true", help="one JSON document instead of the report")
    command.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Run the trial and print what it found; returns the exit status."""
    plan = plan_of(options)
    with progress_bar(plan.jobs) as bar:
        result = run_trial(plan, lambda left: bar.remaining("jobs", left))
    if options.json:
        print(json.dumps({"schema": 1, **dataclasses.asdict(plan), **dataclasses.asdict(result)}))
    else:
        print("\n".join(_lines(plan, result)))
    return 1 if result.breaches else 0


def plan_of(options: argparse.Namespace) -> TrialPlan:
    """The trial that the arguments describe. Raises UsageError: one is out of range."""
    for name, value, lowest, highest in (
        ("--jobs", options.jobs, 1, 10_000),
        ("--nodes", options.nodes, 1, 64),
        ("--gpus", options.gpus, 1, 64),
        ("--kills", options.kills, 0, 1000),
        ("--restarts", options.restarts, 0, 1000),
    ):
        if not lowest <= value <= highest:
            raise UsageError(f"{name}: expected {lowest} to {highest}, got {value}")
    return TrialPlan(
        options.jobs,
        options.nodes,
        options.gpus,
        options.kills,
        options.restarts,
        options.seed,
        not options.no_accounting,
    )


def _lines(plan: TrialPlan, result: TrialResult) -> list[str]:
    kills = ", ".join(f"{count} {name}" for name, count in result.kills.items() if count) or "none"
    median_ms, largest_ms = result.handover_ms
    restarts = (
        f"; {result.restarts} restarts of the service under tokens, {result.agents} jobs with agents"
        if plan.restarts
        else ""
    )
    resumed = f"; {result.resumed} nodes put back that Slurm had drained" if result.resumed else ""
    return [
        f"{result.finished} of {plan.jobs} jobs finished in {result.seconds:.0f} s; killed: {kills}{restarts}{resumed}",
        f"placement to the end of sbatch: median {median_ms:.0f} ms, largest {largest_ms:.0f} ms",
        *(f"BROKEN: {breach}" for breach in result.breaches),
        f"{len(result.breaches)} invariants broken" if result.breaches else "all invariants held",
    ]
