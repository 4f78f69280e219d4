"""``mltcp-placement jobs --workload contention``: jobs that slow each other down, in rounds."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from mltcp.core.errors import UsageError, shown
from mltcp.core.policy_names import parse_names
from mltcp.core.quantities import NS_PER_S
from placement.cli.simulation.arguments import TOOL, given_or, parse_number, parse_processes, parse_seeds
from placement.experiments.comparison import ComparisonPlan, PolicyComparison, run_plans, write_document
from placement.experiments.contention import ContentionRounds
from placement.model.throughput_table import (
    COMBINATIONS,
    SensitivityTable,
    TableModel,
    published_table,
    read_table,
)
from placement.policies.schedulers.registry import LEARNED, NAMES
from placement.simulator.rates.rounds.published_loop import POLICIES
from placement.simulator.rates.rounds.run import GPUS, NODES, RoundsSettings
from placement.traces.contention import MIXES, SHIPPED, ContentionMix, ContentionTrace, read_trace
from placement.traces.trace import left_out_document, tell_left_out

DEFAULT_POLICIES = "fifo-packed-none,srsf-first-ratio,greedy,reopt"

WORKLOAD = "contention"
OPTIONS = ("load", "gpus", "restart_cost", "mix", "table", "combination", "published_loop")
"""The options of this workload that another does not have; None or False where they are not given."""

_AT_A_TIME = 5

EXAMPLES = """\
  mltcp-placement jobs --workload contention --seeds 0:20 --load 0.6 --policies srsf-first-ratio,greedy,reopt-look
  mltcp-placement jobs --workload contention --trace simulate_trace0 --policies fifo-packed-none,greedy --json
  mltcp-placement jobs --workload contention --seeds 0:20 --load 0.7 --restart-cost 30 --table measured --policies reopt
  mltcp-placement jobs --workload contention --seeds 40:60 --load 0.6 --policies greedy,greedy-look,learned,learned-look
  mltcp-placement jobs --workload contention --seeds 0:9 --policies srtf-first-none,rl-base:policy.npz -o results
  mltcp-placement jobs --workload contention --trace simulate_trace0 --published-loop
"""

DESCRIPTION = f"""\
Jobs of contention run in rounds of 300 s on 4 nodes of 8 GPUs, and slow each other down on shared nodes, by a table of
measured ratios. They arrive by a Poisson process of the load, or all at time 0 without one. Traces have the columns
job_id, arrival_s, model, gpus and perhaps total_samples; shipped are {", ".join(SHIPPED)}. -o writes jobs.json and a
picture of completion times, contention and utilization (Figures 5 to 8). learned and learned-look decide by a network
that is shipped, alone or guiding a look-ahead; learned:FILE, learned-look:FILE, rl-base:FILE and rl-hybrid:FILE are
policies of one's own (see mltcp-placement learn and learn-published).
"""

_MOST_S = 10**8


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments that only this workload has."""
    group = command.add_argument_group("contention")
    group.add_argument("--mix", choices=tuple(MIXES), help="of models (default normal)")
    group.add_argument(
        "--table",
        type=Path,
        metavar="DIR",
        help="of throughputs and ratios, as CSV (default: the published one)",
    )
    group.add_argument(
        "--combination",
        choices=COMBINATIONS,
        help="of the ratios beside several neighbours (default minimum)",
    )
    group.add_argument(
        "--published-loop",
        action="store_true",
        help=f"the loop of the paper's public code, faults included; its policies are {', '.join(POLICIES)}",
    )


def execute(options: argparse.Namespace) -> int:
    """Run the comparison and print it; returns the exit status."""
    table = published_table() if options.table is None else read_table(options.table)
    workload, traces = (
        ContentionRounds(_settings(options, table), options.published_loop),
        _traces(options, table),
    )
    policies = _policies(options)
    for trace in traces:
        trace.check_rows(table)
    plan = ComparisonPlan(workload, policies, traces, options.baseline, _AT_A_TIME)
    comparison = plan.result(run_plans([plan], parse_processes(options.processes), options.output))
    document, title = json.dumps(_document(options, plan, comparison), allow_nan=False), _title(options, plan)
    if options.output is not None:
        _write(options.output, document, title, comparison)
    if options.json:
        print(document)
    else:
        comparison.show(workload, title)
    return 0


def _document(
    options: argparse.Namespace, plan: ComparisonPlan[ContentionRounds], comparison: PolicyComparison
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "workload": WORKLOAD,
        "restart_cost_s": plan.workload.settings.restart_ns / NS_PER_S,
        "policies": comparison.documents(plan.workload),
    }
    if options.trace is not None:
        found["left_out"] = left_out_document(plan.traces)
    return found


def _write(folder: Path, document: str, title: str, comparison: PolicyComparison) -> None:
    from placement.plots.style import write  # matplotlib takes 0.3 s to import
    from placement.plots.whole_jobs import contention_figure

    write_document(folder, "jobs.json", document)
    what = title.partition(";")[0].removeprefix(f"{WORKLOAD}, ")
    write(
        lambda: contention_figure(f"Jobs that slow each other down: {what}", comparison),
        folder / "contention.svg",
    )


def _policies(options: argparse.Namespace) -> tuple[str, ...]:
    if not options.published_loop:
        return parse_names(
            given_or(options.policies, DEFAULT_POLICIES),
            lambda name: name if name.startswith(LEARNED) else str(NAMES.parse(name)),
        )
    names = parse_names(given_or(options.policies, ",".join(POLICIES)), str)
    for name in names:
        if name not in POLICIES:
            raise UsageError(
                f"--policies of --published-loop: expected some of {', '.join(POLICIES)}, got {shown(name)}"
            )
    return names


def _settings(options: argparse.Namespace, table: SensitivityTable) -> RoundsSettings:
    restart_ns = round(
        parse_number(given_or(options.restart_cost, "0"), "--restart-cost", _MOST_S) * NS_PER_S
    )
    if options.published_loop and (options.nodes, options.gpus, restart_ns) != (None, None, 0):
        raise UsageError("--published-loop: expected no --nodes, --gpus and --restart-cost, got one")
    return RoundsSettings(
        TableModel(table, options.combination or "minimum"),
        NODES if options.nodes is None else options.nodes,
        GPUS if options.gpus is None else options.gpus,
        restart_ns=restart_ns,
    )


def _traces(options: argparse.Namespace, table: SensitivityTable) -> tuple[ContentionTrace, ...]:
    if options.trace is None:
        mix = ContentionMix(options.load, options.mix or "normal")
        seeds = parse_seeds(given_or(options.seeds, "0:10"))
        return tuple(mix.trace(seed, table) for seed in seeds)
    for name in ("load", "mix"):
        if getattr(options, name) is not None:
            raise UsageError(f"--{name}: expected only without --trace, got {getattr(options, name)}")
    traces = tuple(read_trace(str(given), table) for given in options.trace)
    tell_left_out(TOOL, *traces)
    return traces


def _title(options: argparse.Namespace, plan: ComparisonPlan[ContentionRounds]) -> str:
    settings = plan.workload.settings
    if options.trace is not None:
        what = ", ".join(trace.name for trace in plan.traces)
    else:
        when = "all jobs at time 0" if options.load is None else f"load {options.load:g}"
        what = f"{options.mix or 'normal'} mix, {when}, {len(plan.traces)} traces"
    cost = f"; a restart costs {settings.restart_ns / NS_PER_S:g} s" if settings.restart_ns else ""
    return f"contention, {what}; {settings.nodes} nodes of {settings.gpus} GPUs{cost}"
