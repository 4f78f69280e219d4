"""``mltcp-placement schedule``: schedulers with and without Cassini on traces of jobs with demand phases."""

from __future__ import annotations

import argparse
import json
import re

from mltcp.core.errors import UsageError
from mltcp.core.progress import progress_bar
from placement.experiments.schedule import ALL, SchedulePlan, compare
from placement.experiments.schedule_report import print_schedule
from placement.simulator.fluid_executor import FluidSettings
from placement.simulator.scheduled_cluster import two_tier

_MOST_SEEDS = 10_000
_SEEDS = re.compile(r"(\d{1,9})(?::(\d{1,9}))?")
_DEFAULT = "themis,themis+cassini,pollux,pollux+cassini,random,ideal"

_EXAMPLES = f"""\
examples:
  mltcp-placement schedule --trace poisson --seeds 0:5
  mltcp-placement schedule --trace dynamic --schedulers themis,themis+cassini --seeds 0:20 --json
  mltcp-placement schedule --trace my-jobs.json --racks 6 --servers 4

schedulers: {ALL.allowed}
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``schedule`` to the commands."""
    command = commands.add_parser(
        "schedule",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument(
        "--trace",
        default="poisson",
        metavar="NAME",
        help="poisson or dynamic, drawn for each seed, or the name or file of a set of jobs (default poisson)",
    )
    command.add_argument("--schedulers", default=_DEFAULT, metavar="NAMES", help=f"(default {_DEFAULT})")
    command.add_argument("--seeds", default="0:5", metavar="A:B", help="from A up to B (default 0:5)")
    command.add_argument("--jobs", type=int, default=60, metavar="N", help="of a Poisson trace (default 60)")
    command.add_argument(
        "--load", type=float, default=0.9, metavar="X", help="of a Poisson trace (default 0.9)"
    )
    _add_cluster(command)
    command.add_argument("--json", action="store_true", help="one JSON document instead of the table")
    command.set_defaults(execute=execute)


def _add_cluster(command: argparse.ArgumentParser) -> None:
    cluster = command.add_argument_group("cluster")
    cluster.add_argument("--racks", type=int, default=12, metavar="N", help="(default 12)")
    cluster.add_argument("--servers", type=int, default=2, metavar="N", help="of a rack (default 2)")
    cluster.add_argument("--gpus", type=int, default=1, metavar="N", help="of a server (default 1)")
    cluster.add_argument(
        "--oversubscription", type=float, default=2.0, metavar="X", help="of the uplinks (default 2)"
    )
    cluster.add_argument("--nic-gbps", type=float, default=50.0, metavar="X", help="(default 50)")
    model = command.add_argument_group("model")
    model.add_argument(
        "--noise",
        type=float,
        default=0.005,
        metavar="X",
        help="standard deviation of an iteration over its time (default 0.005)",
    )
    model.add_argument(
        "--congestion-loss",
        type=float,
        default=0.0,
        metavar="X",
        help="share of its capacity that a link loses while more is asked of it than it has (default 0)",
    )
    model.add_argument(
        "--migration", type=float, default=10.0, metavar="S", help="to move a job (default 10 s)"
    )
    model.add_argument("--lease", type=float, default=600.0, metavar="S", help="of Themis (default 600 s)")


def execute(options: argparse.Namespace) -> int:
    """Run the comparison and print it; returns the exit status."""
    plan = plan_of(options)
    with progress_bar(len(plan.seeds) * len(plan.schedulers), transient=True) as bar:
        comparison = compare(plan, bar.remaining)
    if options.json:
        print(json.dumps(comparison.document(), allow_nan=False))
    else:
        print_schedule(comparison)
    return 0


def plan_of(options: argparse.Namespace) -> SchedulePlan:
    """Build the comparison's plan from the arguments.

    Raises:
        UsageError: an invalid argument.
    """
    for name in ("migration", "lease", "nic_gbps"):
        if not 0 <= getattr(options, name) <= 1e6:
            raise UsageError(
                f"--{name.replace('_', '-')}: expected 0 to 1000000, got {getattr(options, name)}"
            )
    setup = FluidSettings(
        two_tier(options.racks, options.servers, options.gpus, options.oversubscription),
        round(options.nic_gbps * 1e9),
        round(options.migration * 1e9),
        options.noise,
        congestion_loss=options.congestion_loss,
    )
    schedulers = tuple(name.strip() for name in options.schedulers.split(",") if name.strip())
    return SchedulePlan(
        options.trace,
        schedulers,
        _seeds(options.seeds),
        setup,
        options.jobs,
        options.load,
        round(options.lease * 1e9),
    )


def _seeds(text: str) -> tuple[int, ...]:
    match = _SEEDS.fullmatch(text)
    if match is None:
        raise UsageError(f"--seeds: expected a number or a range such as 0:5, got {text!r}")
    first = int(match[1])
    last = first + 1 if match[2] is None else int(match[2])
    if not 0 < last - first <= _MOST_SEEDS:
        raise UsageError(f"--seeds: expected 1 to {_MOST_SEEDS} seeds, got {text!r}")
    return tuple(range(first, last))
