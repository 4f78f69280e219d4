"""``mltcp-placement jobs --workload drs``: schedulers of jobs with deadlines."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from mltcp.core.errors import UsageError, shown
from mltcp.core.policy_names import parse_names
from mltcp.core.quantities import NS_PER_S
from placement.cli.simulation.arguments import (
    TOOL,
    given_or,
    parse_number,
    parse_processes,
    parse_seeds,
)
from placement.experiments.bound import TraceBound, bound_of
from placement.experiments.comparison import (
    ComparisonPlan,
    Drawn,
    PolicyComparison,
    TraceRun,
    run_plans,
    trace_of,
    write_document,
)
from placement.experiments.console import open_console
from placement.experiments.deadline_jobs import SWEEPS, DeadlineJobs, Sweep, run_trace
from placement.model.throughput import BETWEEN_BYTES_PER_S, INSIDE_BYTES_PER_S, RingAllReduce, Workload
from placement.policies.schedulers.registry import NAMES
from placement.simulator.rates.timed_job import GPUS, NODES, RatesSettings
from placement.traces.deadlines import WORKLOAD_COLUMNS, WORKLOADS, DrsMix, read, read_workloads
from placement.traces.trace import check_gpus, left_out_document, tell_left_out

DEFAULT_POLICIES = "drs,norm,edf,fifo,themis-batch"
_MOST_S = 10**8
_DRAWN_AT_A_TIME = 10
_DRAWN = ("rate", "hours", "fat", "urgent")

OPTIONS = (*_DRAWN, "workloads", "gpus", "bandwidth", "restart_cost", "figures", "bound")
"""The options of this workload that another does not have; None or False where they are not given."""

EXAMPLES = """\
  mltcp-placement jobs --workload drs --seeds 0:100 --rate 4
  mltcp-placement jobs --workload drs --seeds 0:10 --policies drs,norm,edf-late-last-node --json
  mltcp-placement jobs --workload drs --seeds 0:100 --policies drs,themis-leases --bandwidth 5e9,3e9 --restart-cost 60
  mltcp-placement jobs --workload drs --trace mine.csv --policies drs,edf-late-last-node
  mltcp-placement jobs --trace mine.csv --workloads models.csv --policies drs,elastic-mh -o mine
  mltcp-placement jobs --trace cluster_job_log.json --nodes 50 --gpus 8 --urgent 0.2 --policies drs,norm
  mltcp-placement jobs --seeds 0:100 -o results          Figures 7 to 12; may be interrupted, and goes on from there
  mltcp-placement jobs --seeds 0:100 --policies edf-late-last-node,edf-efficient --baseline edf-late-last-node --bound
  mltcp-placement jobs --seeds 0:100 --figures 7,10 -o results    only some of them
"""

DESCRIPTION = f"""\
A trace is a table (CSV) with the columns job_id, arrival_s, workload (one of those of the DRS evaluation) and alpha or
deadline_s (on the clock of arrival_s), or a recorded trace of Philly (JSON) or PAI (its folder or a table), whose
priorities are drawn by the paper's rule. -o writes jobs.json and figures.json, and draws Figures 5 and 7 to 12 and the
jobs on each GPU on the first trace.

policies: {NAMES.allowed}
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options of this workload."""
    group = command.add_argument_group("jobs with deadlines (--workload drs)")
    group.add_argument("--rate", type=float, metavar="X", help="jobs an hour (default 4)")
    group.add_argument(
        "--workloads",
        metavar="FILE",
        help=f"of --trace, in place of the paper's: a table (CSV) with {', '.join(WORKLOAD_COLUMNS)}",
    )
    group.add_argument("--hours", type=float, metavar="X", help="for which jobs arrive (default 24)")
    group.add_argument("--fat", type=float, metavar="X", help="the share of fat models (default 0.2)")
    group.add_argument("--urgent", type=float, metavar="X", help="the share of urgent jobs (default 0.1)")
    group.add_argument(
        "--bandwidth",
        metavar="IN,OUT",
        help="byte/s inside a node and between nodes (default 10e9,6e9)",
    )
    group.add_argument(
        "--figures",
        metavar="LIST",
        help=f"of -o: the experiments to run besides, of {', '.join(map(str, SWEEPS))} (default: all of seeds)",
    )
    group.add_argument(
        "--bound", action="store_true", help="show how many deadlines any schedule can meet at most"
    )


def execute(options: argparse.Namespace) -> int:
    """Run the comparison and print it; returns the exit status."""
    plan, sweeps = plan_of(options), _sweeps(options)
    swept = {sweep: sweep.plans(plan) for sweep in sweeps}
    plans = [plan, *(each for plans in swept.values() for each in plans)]
    runs = run_plans(plans, parse_processes(options.processes), options.output)
    comparison = plan.result(runs)
    if options.output is not None:
        _write(options.output, plan, swept, runs, _workloads_of(options))
    settings = plan.workload.settings
    bounds = [bound_of(trace_of(trace), settings) for trace in plan.traces] if options.bound else []
    if options.json:
        read_traces = plan.traces if options.trace is not None else None
        print(json.dumps(_document(plan, comparison, bounds, read_traces), allow_nan=False))
        return 0
    comparison.show(plan.workload, _title(options, plan))
    if bounds:
        rate = fmean(each.guarantee_rate for each in bounds)
        open_console().print(f"upper bound of the guarantee rate under any policy: {rate:.3f}")
    return 0


def plan_of(options: argparse.Namespace) -> ComparisonPlan[DeadlineJobs]:
    """Build the comparison's plan from the arguments.

    Raises:
        UsageError: an invalid argument, trace or file.
    """
    policies = parse_names(given_or(options.policies, DEFAULT_POLICIES), lambda name: str(NAMES.parse(name)))
    baseline = None if options.baseline is None else str(NAMES.parse(options.baseline))
    given = {name: getattr(options, name) for name in _DRAWN if getattr(options, name) is not None}
    mix, workload = DrsMix(**given), DeadlineJobs(settings_of(options))
    if options.trace is None:
        if options.workloads is not None:
            raise UsageError(f"--workloads: expected only with --trace, got {shown(options.workloads)}")
        drawn = tuple(Drawn(mix, seed) for seed in parse_seeds(given_or(options.seeds, "0:10")))
        return ComparisonPlan(workload, policies, drawn, baseline, _DRAWN_AT_A_TIME)
    for name in given:
        if name != "urgent":
            raise UsageError(f"--{name}: expected only without --trace, got {given[name]:g}")
    traces = tuple(read(path, _workloads_of(options), mix) for path in options.trace)
    tell_left_out(TOOL, *traces)
    for trace in traces:
        check_gpus(trace, workload.settings.nodes * workload.settings.gpus)
    return ComparisonPlan(workload, policies, traces, baseline)


def _workloads_of(options: argparse.Namespace) -> tuple[Workload, ...]:
    return WORKLOADS if options.workloads is None else read_workloads(Path(options.workloads))


def settings_of(options: argparse.Namespace) -> RatesSettings:
    """Build the cluster and the throughput model from the arguments.

    Raises:
        UsageError: an invalid argument.
    """
    inside, between = INSIDE_BYTES_PER_S, BETWEEN_BYTES_PER_S
    if options.bandwidth is not None:
        inside, between = _bandwidths(options.bandwidth)
    restart_ns = round(
        parse_number(given_or(options.restart_cost, "0"), "--restart-cost", _MOST_S) * NS_PER_S
    )
    nodes = NODES if options.nodes is None else options.nodes
    gpus = GPUS if options.gpus is None else options.gpus
    return RatesSettings(RingAllReduce(inside, between), nodes, gpus, restart_ns)


def _bandwidths(given: str) -> tuple[int, int]:
    parts = given.split(",")
    if len(parts) != 2:
        raise UsageError(f"--bandwidth: expected two numbers such as 10e9,6e9, got {shown(given)}")
    inside, between = (int(parse_number(part, "--bandwidth", 10**18)) for part in parts)
    return inside, between


def _sweeps(options: argparse.Namespace) -> tuple[Sweep, ...]:
    if options.figures is None:
        return tuple(SWEEPS.values()) if options.output is not None and options.trace is None else ()
    if options.output is None or options.trace is not None:
        raise UsageError(
            f"--figures: expected only with -o and without --trace, got {shown(options.figures)}"
        )
    known = {str(figure): sweep for figure, sweep in SWEEPS.items()}
    names = [name.strip() for name in options.figures.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise UsageError(f"--figures: expected some of {', '.join(known)}, got {shown(name)}")
    return tuple(known[name] for name in dict.fromkeys(names))


def _document(
    plan: ComparisonPlan[DeadlineJobs],
    comparison: PolicyComparison,
    bounds: Sequence[TraceBound] = (),
    read_traces: Sequence[Any] | None = None,
) -> dict[str, Any]:
    """The JSON document; what was not asked for is not in it."""
    found: dict[str, Any] = {"workload": "drs", "policies": comparison.documents(plan.workload)}
    if read_traces is not None:
        found["left_out"] = left_out_document(read_traces)
    if bounds:
        rate = fmean(each.guarantee_rate for each in bounds)
        found["bound"] = {"guarantee_rate": rate, "traces": [asdict(each) for each in bounds]}
    return found


def _title(options: argparse.Namespace, plan: ComparisonPlan[DeadlineJobs]) -> str:
    if options.trace is not None:
        what = ", ".join(trace.name for trace in plan.traces)
    else:
        what = f"drs, {plan.traces[0].mix.rate:g} jobs an hour, {len(plan.traces)} traces"
    settings = plan.workload.settings
    return f"{what}; {settings.nodes} nodes of {settings.gpus} GPUs"


def _write(
    folder: Path,
    plan: ComparisonPlan[DeadlineJobs],
    swept: Mapping[Sweep, Sequence[ComparisonPlan[DeadlineJobs]]],
    runs: Mapping[str, TraceRun],
    workloads: Sequence[Workload],
) -> None:
    """Write the documents, and draw the figures of the paper and the jobs on each GPU on the first trace."""
    # matplotlib takes 0.3 s to import: only -o pays for it.
    from placement.plots import timelines, whole_jobs
    from placement.plots.style import write

    comparison = replace(plan.result(runs), baseline=None)
    results = {sweep: [each.result(runs) for each in plans] for sweep, plans in swept.items()}
    figures = [sweep.document(each, plan.policies) for sweep, each in results.items()]
    write_document(folder, "jobs.json", json.dumps(_document(plan, comparison), allow_nan=False))
    write_document(folder, "figures.json", json.dumps(figures, allow_nan=False))
    settings, trace = plan.workload.settings, trace_of(plan.traces[0])
    write(lambda: whole_jobs.epoch_figure(settings.model, workloads, settings.gpus), folder / "figure5.svg")
    for sweep, comparisons in results.items():
        write(
            lambda sweep=sweep, comparisons=comparisons: whole_jobs.sweep_figure(sweep, comparisons),  # type: ignore[misc]
            folder / f"figure{sweep.figure}.svg",
        )
    outcomes = {policy: run_trace(trace, settings, policy) for policy in plan.policies}
    write(lambda: whole_jobs.utilization_figure(outcomes), folder / "figure12.svg")
    for policy, outcome in outcomes.items():
        timeline = whole_jobs.gantt_timeline(outcome, settings.nodes, settings.gpus)
        write(
            lambda timeline=timeline: timelines.gantt_figure(timeline),  # type: ignore[misc]
            folder / f"gantt-{policy}.svg",
        )
