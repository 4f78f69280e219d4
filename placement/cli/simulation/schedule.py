"""``mltcp-placement schedule``: schedulers with and without Cassini on traces of jobs with demand phases."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from mltcp.core.errors import UsageError
from mltcp.core.policy_names import check_names
from mltcp.core.subcommands import add_command
from placement.cli.simulation.arguments import add_output, parse_seeds
from placement.experiments.cassini import ALL, Gain, PhasedJobs, gains_of, traces_of
from placement.experiments.comparison import ComparisonPlan, PolicyComparison, digest, run_plans
from placement.model.cluster import Cluster
from placement.simulator.fluid_executor import FluidSettings
from placement.simulator.network.network_cluster import NetworkCluster
from placement.simulator.network.topologies import load_network, network_named
from placement.simulator.scheduled_cluster import two_tier

_MOST_SEEDS = 10_000
_DEFAULTS = {"racks": 12, "servers": 2, "gpus": 1, "oversubscription": 2.0, "nic_gbps": 50.0}
_DEFAULT = "themis,themis+cassini,pollux,pollux+cassini,random,ideal"

_EXAMPLES = f"""\
examples:
  mltcp-placement schedule --trace poisson --seeds 0:5
  mltcp-placement schedule --trace dynamic --schedulers themis,themis+cassini --seeds 0:20 --json
  mltcp-placement schedule --trace my-jobs.json --racks 6 --servers 4
  mltcp-placement schedule --trace poisson --topology leaf-spine:6x4:2:1            routes by ECMP, not a tree
  mltcp-placement schedule --seeds 0:20 -o kept          may be interrupted, and goes on from there

schedulers: {ALL.allowed}
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``schedule`` to the commands."""
    command = add_command(commands, "schedule", execute, _EXAMPLES)
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
    add_output(command)


def _add_cluster(command: argparse.ArgumentParser) -> None:
    cluster = command.add_argument_group("cluster")
    cluster.add_argument("--racks", type=int, metavar="N", help="(default 12)")
    cluster.add_argument("--servers", type=int, metavar="N", help="of a rack (default 2)")
    cluster.add_argument("--gpus", type=int, metavar="N", help="of a server (default 1)")
    cluster.add_argument("--oversubscription", type=float, metavar="X", help="of the uplinks (default 2)")
    cluster.add_argument("--nic-gbps", type=float, metavar="X", help="(default 50)")
    cluster.add_argument(
        "--topology",
        metavar="TOPOLOGY",
        help="instead: any network of `mltcp-placement network`, with its routes; a name or a JSON file",
    )
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
    workload = plan.workload
    comparison = plan.result(run_plans([plan], 1, options.output))  # one process: decisions are timed
    gains = gains_of(comparison, options.trace)
    if options.json:
        print(json.dumps(_document(options.trace, plan, comparison, gains), allow_nan=False))
        return 0
    seeds = len(plan.traces)
    gpus = len(workload.settings.cluster.gpus)
    title = f"{options.trace}, {seeds} seed{'s' if seeds > 1 else ''}, {gpus} GPUs"
    comparison.show(workload, title, "scheduler")
    for gain in gains:
        print(gain)
    return 0


def plan_of(options: argparse.Namespace) -> ComparisonPlan[PhasedJobs]:
    """Build the comparison's plan from the arguments.

    Raises:
        UsageError: an invalid argument.
    """
    for name in ("migration", "lease"):
        if not 0 <= getattr(options, name) <= 1e6:
            raise UsageError(
                f"--{name.replace('_', '-')}: expected 0 to 1000000, got {getattr(options, name)}"
            )
    settings = FluidSettings(
        *_cluster(options),
        round(options.migration * 1e9),
        options.noise,
        congestion_loss=options.congestion_loss,
    )
    schedulers = tuple(name.strip() for name in options.schedulers.split(",") if name.strip())
    check_names(schedulers, "--schedulers")
    for name in schedulers:
        ALL.parse(name)
    seeds = parse_seeds(options.seeds, _MOST_SEEDS)
    traces = traces_of(options.trace, seeds, options.jobs, options.load, len(settings.cluster.gpus))
    workload = PhasedJobs(settings, round(options.lease * 1e9))
    return ComparisonPlan(workload, schedulers, traces, options.baseline)


def _cluster(options: argparse.Namespace) -> tuple[Cluster, int]:
    """The cluster, and the rate of a NIC of speed 1."""
    given = {name: value for name in _DEFAULTS if (value := getattr(options, name)) is not None}
    if options.topology is not None:
        for name in given:
            raise UsageError(f"--{name.replace('_', '-')}: expected without --topology, which contains it")
        is_file = options.topology.endswith(".json")
        network = load_network(Path(options.topology)) if is_file else network_named(options.topology)
        cluster = NetworkCluster.of(network, digest(repr(network)))
        return cluster, cluster.nic_bps
    racks, servers, gpus, over, nic_gbps = {**_DEFAULTS, **given}.values()
    if not 0 <= nic_gbps <= 1e6:
        raise UsageError(f"--nic-gbps: expected 0 to 1000000, got {nic_gbps}")
    return two_tier(int(racks), int(servers), int(gpus), over), round(nic_gbps * 1e9)


def _document(
    trace: str, plan: ComparisonPlan[PhasedJobs], comparison: PolicyComparison, gains: tuple[Gain, ...]
) -> dict[str, Any]:
    workload = plan.workload
    settings = workload.settings
    found = {
        "trace": trace,
        "seeds": [each.seed for each in plan.traces],
        "servers": len(settings.cluster.servers),
        "switches": len(settings.cluster.switches),
        "gpus": len(settings.cluster.gpus),
        "nic_gbps": settings.nic_bps / 1e9,
        "noise": settings.noise,
        "congestion_loss": settings.congestion_loss,
        "schedulers": {
            name: [{"policy": name, **{key: run[key] for key in workload.shown}} for run in runs]
            for name, runs in comparison.runs.items()
        },
        "gains": [gain.document() for gain in gains],
    }
    if comparison.baseline is not None:
        found["against_baseline"] = {
            name: workload.against(comparison, name)["against_baseline"] for name in comparison.others
        }
    return found
