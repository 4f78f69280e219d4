"""``mltcp-placement simulate``: its arguments and its output."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from mltcp.core.atomic_files import check_writable, write_atomically
from mltcp.core.errors import UsageError
from mltcp.core.subcommands import add_command
from placement.cli.simulation.arguments import TOOL, add_cut, add_setting, check_seed, cut_of, setting_of
from placement.experiments.ada_srsf import print_outcome
from placement.experiments.simulation import PolicyName, Simulation, SimulationModel, run_simulation
from placement.experiments.workers import Workers
from placement.policies.catalogue import TAKES_KAPPA, placement_names
from placement.simulator.outcome import Outcome
from placement.traces.job_trace import check_fits
from placement.traces.read import FORMATS, read
from placement.traces.trace import tell_left_out

_MOST_INTERVALS = 100_000

_EXAMPLES = """\
examples:
  mltcp-placement simulate --trace trace.csv                      LWF-1 with Ada-SRSF on 16 servers of 4 GPUs
  mltcp-placement simulate --trace trace.csv --placement first-fit --communication srsf-2 --json
  mltcp-placement simulate --trace trace.csv --model published --defect     as the published simulator does
  mltcp-placement simulate --trace trace.csv --cluster cluster.json --contention fit.json
  mltcp-placement simulate --trace helios:cluster_log.csv --from 24 --hours 48 --servers 128 --gpus 8
  mltcp-placement simulate --trace trace.csv --intervals 400 -o run.json && mltcp-placement plot gantt run.json -o g.svg

Times are in seconds of the trace. Traces at a hundredth of the length (scale10) are reported in the paper's seconds:
what was simulated, times 100 (`time_scale` of the JSON).
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``simulate`` to the commands."""
    command = add_command(commands, "simulate", execute, _EXAMPLES)
    command.add_argument("--trace", required=True, metavar="[FORMAT:]FILE", help="the jobs")
    command.add_argument("--format", choices=FORMATS, help="of the trace (default: told from its content)")
    add_cut(command)
    policy = command.add_argument_group("policy")
    policy.add_argument(
        "--placement",
        default="lwf",
        metavar="NAME",
        help=f"{', '.join(placement_names())} (default lwf)",
    )
    policy.add_argument(
        "--kappa", type=int, metavar="N", help="of lwf: larger jobs are kept together (default 1)"
    )
    policy.add_argument(
        "--communication",
        default="ada-srsf",
        metavar="NAME",
        help="srsf-N, for N transfers at a time, ada-srsf, ... (default ada-srsf)",
    )
    policy.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of what is left to chance (default 0)"
    )
    add_setting(command)
    model = command.add_argument_group("model")
    model.add_argument(
        "--model",
        choices=("exact", "published"),
        default="exact",
        help="exact, or by the rules of the paper's published simulator (default exact)",
    )
    model.add_argument(
        "--defect",
        action="store_true",
        help="with --model published: a transfer that AdaDUAL asks about moves on at no cost, as published",
    )
    output = command.add_argument_group("output")
    output.add_argument(
        "--intervals",
        type=int,
        default=0,
        metavar="N",
        help="note the use of GPUs and links over N intervals",
    )
    output.add_argument("--json", action="store_true", help="one JSON document instead of the tables")
    output.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="write the JSON document there as well"
    )


def execute(options: argparse.Namespace) -> int:
    """Simulate and print the outcome; returns the exit status."""
    what = simulation_of(options)
    if not 0 <= options.intervals <= _MOST_INTERVALS:
        raise UsageError(f"--intervals: expected 0 to {_MOST_INTERVALS}, got {options.intervals}")
    if options.intervals and what.policy.model is not SimulationModel.EXACT:
        raise UsageError("--intervals: expected only the exact model, which records the use over time")
    if options.output is not None:
        check_writable(options.output)
    outcome = _simulate(what, options.intervals)
    text = json.dumps(document(what, outcome), allow_nan=False) + "\n"
    if options.output is not None:
        write_atomically(options.output, text.encode())
    if options.json:
        print(text, end="")
    else:
        print_outcome(what, outcome)
    return 0


def simulation_of(options: argparse.Namespace) -> Simulation:
    """Build the simulation that the arguments describe.

    Raises:
        UsageError: an invalid argument, trace or file.
    """
    if options.kappa is not None and options.placement not in TAKES_KAPPA:
        raise UsageError(f"--kappa with --placement {options.placement}: only lwf has one")
    check_seed(options.seed)
    rules = SimulationModel.of(options.model, options.defect)
    kappa = 1 if options.kappa is None else options.kappa
    policy = PolicyName(options.placement, options.communication, kappa, rules)
    setting = setting_of(options)
    setting.check(policy)
    trace = read(options.trace, options.format, cut=cut_of(options))
    tell_left_out(TOOL, trace)
    check_fits(trace, setting.cluster)
    return Simulation(trace, policy, setting, options.seed)


def document(what: Simulation, outcome: Outcome) -> dict[str, Any]:
    """The document that ``--json`` prints: the outcome, the configuration and any use over time."""
    policy = what.policy
    config = {
        "trace": what.trace.name,
        "policy": str(policy),
        "placement": policy.placement,
        "kappa": policy.kappa,
        "communication": policy.communication,
        "model": policy.model.value.partition("-")[0],
        "defect": policy.model is SimulationModel.DEFECT,
        "seed": what.seed,
        **what.setting.document(),
    }
    found = {
        **outcome.document(),
        "time_scale": float(what.trace.seconds_per_simulated_s),
        "left_out": what.trace.left_out.document(),
        "config": config,
    }
    if outcome.use is not None:
        found["use"] = {
            "width_s": outcome.use.width_s,
            "gpus": [_rounded(row) for row in outcome.use.gpus],
            "links": [_rounded(row) for row in outcome.use.links],
            "link_names": [link.name for link in what.setting.cluster.links],
        }
    return found


def _simulate(what: Simulation, intervals: int) -> Outcome:
    """Simulate in another process, because compiled code does not react to Ctrl-C."""
    with Workers(partial(run_simulation, intervals=intervals), 1, fork=True) as workers:
        return next(outcome for _, outcome in workers.results([what]))


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(float(value), 4) for value in values]
