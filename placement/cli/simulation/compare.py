"""``mltcp-placement compare``: its arguments and its output."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from mltcp.core.errors import UsageError
from mltcp.core.subcommands import add_command
from placement.cli.simulation.arguments import (
    TOOL,
    add_output,
    add_processes,
    add_setting,
    check_seed,
    parse_processes,
    setting_of,
)
from placement.experiments.ada_srsf import (
    AllReduceJobs,
    SeededTrace,
    compare,
    comparison_document,
    plan_document,
    plan_of,
    print_comparison,
)
from placement.experiments.comparison import ComparisonPlan, PolicyComparison
from placement.experiments.simulation import PolicyName, Setting, SimulationModel, parse_policies
from placement.traces.job_trace import JOBS, SCALES, check_fits, scaled
from placement.traces.read import FORMATS, read
from placement.traces.trace import left_out_document, tell_left_out

_POLICIES = (
    "lwf-1+srsf-1,lwf-1+ada-srsf,lwf-1+srsf-2,lwf-1+srsf-3,"
    "random+ada-srsf,first-fit+ada-srsf,list-scheduling+ada-srsf"
)

_EXAMPLES = """\
examples:
  mltcp-placement compare --fresh 100                              seven policies on 100 traces as the paper's
  mltcp-placement compare --fresh 100 -o comparison                the same; may be interrupted, and goes on from there
  mltcp-placement compare --trace a.csv b.csv --policies lwf-1+srsf-1,lwf-2+srsf-1 --json
  mltcp-placement compare --fresh 100 --scale 10 --policies lwf-1+srsf-1@published,lwf-1+ada-srsf@published,\\
lwf-1+ada-srsf@published-defect                                    with the published simulator, and with its defect

A policy is PLACEMENT+COMMUNICATION, such as lwf-1+ada-srsf (lwf with kappa 1), random+srsf-2 or first-fit+ada-srsf,
and may name its model: @exact, @published or @published-defect. All are run on every trace, and compared with the
baseline trace by trace: the difference is the mean over traces of the relative difference of the average JCT; its
95 % confidence interval is Student's.

What is finished is kept in the folder of -o, whatever ends the command: the same command again goes on from there, one
with more policies or traces adds those, and `mltcp-placement plot` draws it. Without -o nothing is kept.

Times are in seconds of the trace; those of traces at a hundredth of the length (--scale 10) are in the paper's seconds.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``compare`` to the commands."""
    command = add_command(commands, "compare", execute, _EXAMPLES)
    traces = command.add_argument_group("traces")
    which = traces.add_mutually_exclusive_group(required=True)
    which.add_argument("--trace", type=Path, nargs="+", metavar="FILE", help="read them")
    which.add_argument("--fresh", type=int, metavar="N", help="or draw N, as the paper's were drawn")
    traces.add_argument("--format", choices=FORMATS, help="of --trace (default: told from the content)")
    traces.add_argument(
        "--scale",
        type=int,
        choices=SCALES,
        help="of --fresh: 1000 is the full length, 10 a hundredth (default 1000)",
    )
    traces.add_argument(
        "--first-seed", type=int, metavar="N", help="of --fresh; the others follow (default 0)"
    )
    traces.add_argument(
        "--jobs", type=int, metavar="N", help=f"of each of --fresh; more arrive for longer (default {JOBS})"
    )
    _add_policies(command)
    add_setting(command)
    add_output(command)
    add_processes(command)


def _add_policies(command: argparse.ArgumentParser) -> None:
    policies = command.add_argument_group("policies")
    policies.add_argument(
        "--policies", default=_POLICIES, metavar="NAMES", help="(default: those of the paper)"
    )
    policies.add_argument(
        "--model",
        choices=[each.value for each in SimulationModel],
        default=SimulationModel.EXACT.value,
        help="of policies that name none (default exact)",
    )
    policies.add_argument(
        "--seed",
        type=int,
        metavar="N",
        help="of what is left to chance (default 0; on a trace of --fresh, that of the trace)",
    )


def execute(options: argparse.Namespace) -> int:
    """Run the comparison and print it; returns the exit status."""
    processes = parse_processes(options.processes)
    plan = plan_of_arguments(options)
    comparison = compare(plan, processes, options.output)
    if options.json:
        print(json.dumps(document(plan, comparison), allow_nan=False))
    else:
        print_comparison(comparison)
    return 0


def plan_of_arguments(options: argparse.Namespace) -> ComparisonPlan[AllReduceJobs]:
    """Build the comparison's plan from the arguments.

    Raises:
        UsageError: an invalid argument, trace or file.
    """
    rules = SimulationModel(options.model)
    policies = parse_policies(options.policies, rules)
    if options.seed is not None:
        check_seed(options.seed)
    baseline = PolicyName.parse(options.baseline, rules) if options.baseline else policies[0]
    setting = setting_of(options)
    for policy in policies:  # before traces are drawn
        setting.check(policy)
    entries = _fresh(options, setting) if options.trace is None else _read(options)
    for entry in entries:
        check_fits(entry.trace, setting.cluster)
    return plan_of(policies, entries, setting, baseline)


def document(plan: ComparisonPlan[AllReduceJobs], comparison: PolicyComparison) -> dict[str, Any]:
    """The document that ``--json`` prints: the comparison and its configuration."""
    planned = plan_document(plan)
    return {
        **comparison_document(comparison, plan.workload),
        "traces": planned["traces"],
        "left_out": left_out_document(each.trace for each in plan.traces),
        "config": planned["setting"],
    }


def _read(options: argparse.Namespace) -> tuple[SeededTrace, ...]:
    for name in ("scale", "first_seed", "jobs"):
        if getattr(options, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')} with --trace: only --fresh has one")
    seed = 0 if options.seed is None else options.seed
    traces = [read(path, options.format) for path in options.trace]
    tell_left_out(TOOL, *traces)
    return tuple(SeededTrace(trace, seed) for trace in traces)


def _fresh(options: argparse.Namespace, setting: Setting) -> tuple[SeededTrace, ...]:
    if options.format is not None:
        raise UsageError("--format with --fresh: only --trace has one")
    if options.fresh < 1:
        raise UsageError(f"--fresh: expected 1 or more, got {options.fresh}")
    first = options.first_seed or 0
    scale = options.scale or 1000
    jobs = JOBS if options.jobs is None else options.jobs
    gpus = len(setting.cluster.gpus)
    return tuple(
        SeededTrace(scaled(jobs, seed, scale, gpus), seed if options.seed is None else options.seed)
        for seed in range(first, first + options.fresh)
    )
