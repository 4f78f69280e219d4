"""``mltcp-placement jobs --workload contention``: jobs that slow each other down, in rounds."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from mltcp.core.atomic_files import write_atomically
from mltcp.core.errors import UsageError, shown
from mltcp.core.policy_names import parse_names
from mltcp.core.progress import progress_bar
from mltcp.core.quantities import NS_PER_S
from placement.cli.simulation.arguments import TOOL
from placement.cli.simulation.jobs_arguments import given_or, parse_number, parse_processes, parse_seeds
from placement.experiments.contention.report import print_rounds
from placement.experiments.contention.results import RoundsPolicyResult, text
from placement.experiments.contention.runs import run_policies, tasks_of
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

DEFAULT = "fifo-packed-none,srsf-first-ratio,greedy,reopt"
"""The policies that run unless others are given."""

WORKLOAD = "contention"
OPTIONS = ("mix", "table", "combination", "published_loop")
"""The options of this workload alone; None or False where they are not given."""

EXAMPLES = """\
  mltcp-placement jobs --workload contention --seeds 0:20 --load 0.6 --policies srsf-first-ratio,greedy,reopt-look
  mltcp-placement jobs --workload contention --trace simulate_trace0 --policies fifo-packed-none,greedy --json
  mltcp-placement jobs --workload contention --seeds 0:20 --load 0.7 --restart-cost 30 --table measured --policies reopt
  mltcp-placement jobs --workload contention --seeds 40:60 --load 0.6 --policies greedy,learned:policy/policy.npz
  mltcp-placement jobs --workload contention --seeds 0:9 --policies srtf-first-none,rl-base:policy.npz -o results
  mltcp-placement jobs --workload contention --trace simulate_trace0 --published-loop
"""

DESCRIPTION = f"""\
Jobs of contention run in rounds of 300 s on 4 nodes of 8 GPUs, and slow each other down on shared nodes, by a table of
measured ratios. They arrive by a Poisson process of the load, or all at time 0 without one. Traces have the columns
job_id, arrival_s, model, gpus and perhaps total_samples; shipped are {", ".join(SHIPPED)}. -o writes jobs.json and a
picture of completion times, contention and utilization (Figures 5 to 8). learned:FILE, learned-look:FILE, rl-base:FILE
and rl-hybrid:FILE are policies that were trained (see mltcp-placement learn and learn-published).
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
    settings, traces = _settings(options, table), _traces(options, table)
    policies = _policies(options)
    for trace in traces:
        trace.check_rows(table)
    results = _run(policies, traces, settings, options.published_loop, parse_processes(options.processes))
    document, title = (
        _text(results, settings, traces, options.trace is not None),
        _title(options, traces, settings),
    )
    if options.output is not None:
        _write(options.output, document, title, results)
    if options.json:
        print(document)
    else:
        print_rounds(title, results)
    return 0


def _text(
    results: Sequence[RoundsPolicyResult],
    settings: RoundsSettings,
    traces: Sequence[ContentionTrace],
    were_read: bool,
) -> str:
    restart_s = settings.restart_ns / NS_PER_S
    return text(results, restart_s, left_out_document(traces) if were_read else None)


def _write(folder: Path, document: str, title: str, results: Sequence[RoundsPolicyResult]) -> None:
    from placement.plots.contention import contention_figure  # matplotlib takes 0.3 s to import
    from placement.plots.style import write

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--output: {folder}: {error.strerror or error}") from None
    write_atomically(folder / "jobs.json", document.encode() + b"\n")
    write(lambda: contention_figure(title.partition(";")[0], results), folder / "contention.svg")


def _run(
    policies: Sequence[str],
    traces: Sequence[ContentionTrace],
    settings: RoundsSettings,
    published: bool,
    processes: int,
) -> list[RoundsPolicyResult]:
    """Run the policies, with a bar where it takes long."""
    steps = len(tasks_of(policies, traces, settings, published))
    if steps == 1:
        return run_policies(policies, traces, settings, published, 1)
    with progress_bar(steps, transient=True) as bar:
        return run_policies(policies, traces, settings, published, processes, bar.advance)


def _policies(options: argparse.Namespace) -> tuple[str, ...]:
    if not options.published_loop:
        return parse_names(
            given_or(options.policies, DEFAULT),
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


def _traces(options: argparse.Namespace, table: SensitivityTable) -> list[ContentionTrace]:
    if options.trace is None:
        mix = ContentionMix(options.load, options.mix or "normal")
        return [mix.trace(seed, table) for seed in parse_seeds(given_or(options.seeds, "0:10"))]
    for name in ("load", "mix"):
        if getattr(options, name) is not None:
            raise UsageError(f"--{name}: expected only without --trace, got {getattr(options, name)}")
    traces = [read_trace(str(given), table) for given in options.trace]
    tell_left_out(TOOL, *traces)
    return traces


def _title(options: argparse.Namespace, traces: Sequence[ContentionTrace], settings: RoundsSettings) -> str:
    if options.trace is not None:
        what = ", ".join(trace.name for trace in traces)
    else:
        when = "all jobs at time 0" if options.load is None else f"load {options.load:g}"
        what = f"{options.mix or 'normal'} mix, {when}, {len(traces)} traces"
    cost = f"; a restart costs {settings.restart_ns / NS_PER_S:g} s" if settings.restart_ns else ""
    return f"contention, {what}; {settings.nodes} nodes of {settings.gpus} GPUs{cost}"
