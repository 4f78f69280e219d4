"""``mltcp-placement jobs --workload async-sgd``: schedulers by the mean response time of a stream of training jobs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from mltcp.core.errors import UsageError, shown
from mltcp.core.policy_names import parse_names
from placement.cli.simulation.arguments import TOOL, given_or, parse_processes, parse_seeds
from placement.experiments.async_sgd import NAMES, AsyncMix, AsyncSgd, print_results
from placement.experiments.comparison import (
    ComparisonPlan,
    Drawn,
    PolicyComparison,
    run_plans,
    write_document,
)
from placement.experiments.hell_figures import FIGURES, alpha_high, cells_of, figure_document, print_figure
from placement.policies.schedulers.response.catalogue import Settings
from placement.policies.schedulers.response.widths import ALPHA, ALPHA_HIGH, ALPHA_LOW
from placement.simulator.rates.response.settings import NODES, ResponseSettings
from placement.traces.async_sgd import SETS, read_trace
from placement.traces.trace import left_out_document, tell_left_out

WORKLOAD = "async-sgd"
DEFAULT_POLICIES = "equi,jsq-chunk,knee+fill,hell,hell+fill,hell+marginal,node-price"
DEFAULT_SEEDS = "1:4"
DEFAULT_LOAD = 0.6
JOBS = 44_000

SERVER_NODES = ("free", "charged")
METHODS = ("hybrid", "exact", "approximate", "approximate-capped")

OPTIONS = (
    *("models", "jobs", "load", "servers", "server_node", "throughput", "alpha", "alpha_range", "gamma"),
    "figure",
)
"""The options of this workload that another does not have; None where they are not given."""

EXAMPLES = """\
asynchronous SGD, by mean response time:
  mltcp-placement jobs --workload async-sgd --models four --seeds 1:4 --load 0.6
  mltcp-placement jobs --workload async-sgd --models one --trace mine.csv --load 0.5 --policies hell+fill,jsq-chunk-10
  mltcp-placement jobs --workload async-sgd --figure 12 -o results
A trace is a table (CSV) with the columns arrival_units (in mean times between arrivals), model (one of the set) and
epochs. The first 2,000 jobs of a longer trace do not count.
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options of this workload."""
    group = command.add_argument_group("asynchronous SGD (--workload async-sgd)")
    group.add_argument("--models", choices=tuple(SETS), help="the set of models (default four)")
    group.add_argument("--jobs", type=int, metavar="N", help=f"of a drawn trace (default {JOBS})")
    group.add_argument(
        "--load",
        type=float,
        metavar="X",
        help=f"lambda E[S(1)] / W (default {DEFAULT_LOAD}); of contention, see below",
    )
    group.add_argument(
        "--servers", type=int, metavar="M", help="parameter servers of a job, with 1/M of its parameters each"
    )
    group.add_argument(
        "--server-node",
        choices=SERVER_NODES,
        help="whether the parameter server takes one of a job's nodes (default free)",
    )
    group.add_argument(
        "--throughput",
        choices=METHODS,
        help="how the queueing network is solved (default hybrid)",
    )
    group.add_argument("--alpha", type=float, metavar="X", help=f"KNEE's threshold (default {ALPHA})")
    group.add_argument(
        "--alpha-range",
        metavar="LOW,HIGH",
        help=f"of moldable KNEE, by load (default {ALPHA_LOW},{ALPHA_HIGH}; of one model {ALPHA_LOW},0.1)",
    )
    group.add_argument("--gamma", type=float, metavar="X", help="of early termination (default 0: none)")
    group.add_argument(
        "--figure",
        type=int,
        metavar="N",
        help=f"simulate a figure of the paper: {', '.join(map(str, FIGURES))}",
    )


def execute(options: argparse.Namespace) -> int:
    """Run the comparison or a figure, and print it; returns the exit status."""
    if options.figure is not None:
        return _execute_figure(options)
    workload = AsyncSgd(_settings(options), _parameters(options))
    policies = parse_names(given_or(options.policies, DEFAULT_POLICIES), lambda name: str(NAMES.parse(name)))
    plan = ComparisonPlan(workload, policies, _traces(options), options.baseline)
    comparison = plan.result(run_plans([plan], parse_processes(options.processes), options.output))
    text = json.dumps(_document(options, plan, comparison), allow_nan=False)
    if options.output is not None:
        write_document(options.output, "jobs.json", text)
    if options.json:
        print(text)
    else:
        settings = workload.settings
        title = (
            f"{WORKLOAD}, models: {options.models or 'four'}, load {settings.load:g}, "
            f"{len(plan.traces)} traces, {settings.nodes} nodes"
        )
        print_results(title, comparison)
    return 0


def _execute_figure(options: argparse.Namespace) -> int:
    if options.figure not in FIGURES:
        expected = ", ".join(map(str, FIGURES))
        raise UsageError(f"--figure: expected one of {expected}, got {options.figure}")
    for name in ("trace", "policies", "models", "load", "gamma", "baseline"):
        if getattr(options, name) is not None:
            raise UsageError(f"--{name}: expected only without --figure, which sets it")
    figure = FIGURES[options.figure]
    cells = cells_of(figure, _settings(options), _parameters(options), _jobs(options), _seeds(options))
    runs = run_plans([cell.plan for cell in cells], parse_processes(options.processes), options.output)
    text = json.dumps(figure_document(figure, cells, runs), allow_nan=False)
    if options.output is not None:
        _write(options.output, figure.number, text)
    if options.json:
        print(text)
    else:
        print_figure(figure, cells, runs)
    return 0


def _write(folder: Path, number: int, text: str) -> None:
    from placement.plots.style import write  # matplotlib takes 0.3 s to import
    from placement.plots.whole_jobs import response_figure

    write_document(folder, f"figure{number}.json", text)
    write(lambda: response_figure(json.loads(text)), folder / f"figure{number}.svg")


def _document(
    options: argparse.Namespace, plan: ComparisonPlan[AsyncSgd], comparison: PolicyComparison
) -> dict[str, Any]:
    workload = plan.workload
    first = plan.policies[0]
    return {
        "workload": WORKLOAD,
        "models": options.models or "four",
        "load": workload.settings.load,
        "nodes": workload.settings.nodes,
        **({} if options.servers is None else {"servers": options.servers}),
        "server_node": options.server_node or SERVER_NODES[0],
        "throughput": options.throughput or METHODS[0],
        "left_out": left_out_document(plan.traces if options.trace is not None else ()),
        "policies": [
            document
            | {"to_first": comparison.paired(document["policy"], workload.compared, first).document()}
            for document in comparison.documents(workload)
        ],
    }


def _settings(options: argparse.Namespace) -> ResponseSettings:
    from placement.model.parameter_server import ParameterServer, ServerNode
    from placement.model.queueing import Method  # compiled: slow to import

    servers = 1 if options.servers is None else options.servers
    node = ServerNode(options.server_node or SERVER_NODES[0])
    if servers > 1 and node is ServerNode.CHARGED:
        raise UsageError(f"--servers: expected 1 with --server-node charged, got {servers}")
    model = ParameterServer(
        method=Method(options.throughput or METHODS[0]), server_node=node, servers=servers
    )
    load = DEFAULT_LOAD if options.load is None else options.load
    return ResponseSettings(model, NODES if options.nodes is None else options.nodes, load)


def _parameters(options: argparse.Namespace) -> Settings:
    low, high = ALPHA_LOW, ALPHA_HIGH
    if options.alpha_range is not None:
        try:
            low, high = (float(part) for part in options.alpha_range.split(","))
        except ValueError:
            raise UsageError(
                f"--alpha-range: expected two numbers such as 0.01,0.05, got {shown(options.alpha_range)}"
            ) from None
    settings = Settings(
        alpha=ALPHA if options.alpha is None else options.alpha,
        gamma=0.0 if options.gamma is None else options.gamma,
        alpha_low=low,
        alpha_high=high,
    )
    if options.alpha_range is not None or options.models is None:
        return settings
    return Settings(
        settings.alpha, settings.gamma, alpha_low=low, alpha_high=alpha_high(options.models, settings)
    )


def _traces(options: argparse.Namespace) -> tuple[Any, ...]:
    models = SETS[options.models or "four"]
    if options.trace is None:
        return tuple(Drawn(AsyncMix(models, _jobs(options)), seed) for seed in _seeds(options))
    if options.jobs is not None:
        raise UsageError(f"--jobs: expected only without --trace, got {options.jobs}")
    traces = tuple(read_trace(path, models) for path in options.trace)
    tell_left_out(TOOL, *traces)
    return traces


def _jobs(options: argparse.Namespace) -> int:
    return JOBS if options.jobs is None else int(options.jobs)


def _seeds(options: argparse.Namespace) -> tuple[int, ...]:
    return parse_seeds(given_or(options.seeds, DEFAULT_SEEDS))
