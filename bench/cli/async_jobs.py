"""``mltcp-bench async-jobs``: jobs of asynchronous SGD that change their workers live, under several schedulers."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from bench.cli.contest_arguments import add_link, link_of
from bench.command_line import option
from bench.live_jobs.async_jobs import (
    AsyncJobsPlan,
    compare_async_jobs,
    document,
    models_of,
    outcomes,
    parse_kept,
    print_table,
    scheduling_policy,
)
from bench.live_jobs.async_lab import HOSTS, LINK, MOST_SERVERS, SLOTS, ClusterShape, lab_trace, models
from bench.live_jobs.async_profile import UPDATES
from bench.live_jobs.comparison import write_results
from bench.workloads.parameter_server.log import FEWEST_UPDATES
from mltcp.core.errors import UsageError, shown
from mltcp.core.policy_names import parse_names
from mltcp.core.progress import progress_bar
from mltcp.core.quantities import parse_number
from mltcp.core.subcommands import add_command
from placement.experiments.run_journal import kept_runs
from placement.policies.schedulers.response.catalogue import RESPONSE_SCHEDULERS
from placement.traces.async_sgd import draw_trace, read_trace
from placement.traces.trace import tell_left_out

POLICIES = "hell+fill,equi,srpt"
CONTROLS = ("cubic", "reno", "bbr")
_EXAMPLES = """\
examples:
  mltcp-bench async-jobs -o runs                             20 jobs under hell+fill, equi and srpt; resumable
  mltcp-bench async-jobs --table -o runs                     the same, and X(1..16) of each kind measured before
  mltcp-bench async-jobs --policies node-price,hell+marginal --seed 2 --load 0.5
  mltcp-bench async-jobs --trace mine.csv --scale 2          columns arrival_units, model and epochs

A kind of job is a model of Table III of the HELL paper at the size of the lab. Before the first run each kind is
profiled with one worker; the queueing model, and with --table the measured throughput, gives the speeds with which the
simulator predicts the same trace. Changes of workers cost nothing in the prediction.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``async-jobs`` to the commands."""
    command = add_command(commands, "async-jobs", execute, _EXAMPLES)
    option(command, "--policies", POLICIES, "schedulers")
    source = command.add_mutually_exclusive_group()
    source.add_argument(
        "--trace", type=Path, metavar="FILE", help="a table with the columns arrival_units, model and epochs"
    )
    option(source, "--seed", 1, "of the trace that is drawn")
    option(command, "--jobs", 20, "of a drawn trace", "N")
    option(command, "--load", "0.6", "lambda E[S(1)] / W, with all slots W", "X")
    option(command, "--scale", "1", "factor for the sizes of jobs, and so for all times", "X")
    command.add_argument(
        "--throughput",
        default="hybrid",
        choices=models_of(table=True),
        help="the model of throughput that schedulers are told (default hybrid); measured needs --table",
    )
    option(command, "--updates", UPDATES, "gradients of the profile with one worker", "N")
    command.add_argument(
        "--table",
        action="store_true",
        help="measure X(1), ..., X(W) of each kind before the runs, and predict from that too",
    )
    option(command, "--hosts", HOSTS, "", "N")
    option(command, "--slots", SLOTS, "of a host", "N")
    option(command, "--control", CONTROLS[0], "congestion control", choices=CONTROLS)
    add_link(command, LINK)
    command.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="DIR",
        help="keep the profile and all runs there, and draw pictures; what it has is not run again",
    )
    command.add_argument("--json", action="store_true", help="one JSON document instead of the tables")


def execute(options: argparse.Namespace) -> int:
    """Run the comparison and print it; returns the exit status."""
    plan = plan_of(options)
    total = plan.profiling.steps + len(plan.policies) * len(plan.trace.jobs)
    with kept_runs(options.output, parse_kept) as journal, progress_bar(total) as bar:
        profile, results = compare_async_jobs(plan, journal, bar.advance)
    found, files = document(plan, profile, results), []
    if options.output is not None:
        file, shape = options.output / "async-jobs.json", plan.shape
        files = write_results(file, found, shape.hosts, shape.slots, outcomes(plan, results))
    if options.json:
        print(json.dumps({**found, "files": files}, allow_nan=False))
    else:
        print_table(plan, profile, results)
        for path in files:
            print(f"wrote {path}")
    return 0


def plan_of(options: argparse.Namespace) -> AsyncJobsPlan:
    """The comparison that the arguments describe. Raises UsageError: one is out of range or unknown."""
    policies = parse_names(options.policies, _policy_name)
    if options.throughput not in models_of(options.table):
        raise UsageError(f"--throughput: expected --table with measured, got {options.throughput} without it")
    if options.updates < FEWEST_UPDATES:
        raise UsageError(f"--updates: expected {FEWEST_UPDATES} or more, got {options.updates}")
    shape = ClusterShape(link_of(options), options.hosts, options.slots, options.control)
    if options.trace is None:
        if not 1 <= options.jobs <= MOST_SERVERS:
            raise UsageError(f"--jobs: expected 1 to {MOST_SERVERS}, got {options.jobs}")
        drawn = draw_trace(models(), options.jobs, options.seed)
    else:
        drawn = read_trace(options.trace, models())
        tell_left_out("mltcp-bench", drawn)
        if len(drawn) > MOST_SERVERS:
            raise UsageError(f"--trace: expected 1 to {MOST_SERVERS} jobs, got {len(drawn)}")
    load = parse_number(options.load, field="--load", lowest=0)
    scale = parse_number(options.scale, field="--scale", lowest=0)
    trace = lab_trace(drawn, shape.link, shape.gpus, load, scale)
    return AsyncJobsPlan(
        trace, policies, shape, options.throughput, options.updates, options.table, options.seed
    )


def _policy_name(text: str) -> str:
    if text not in RESPONSE_SCHEDULERS:
        raise UsageError(f"--policies: expected {', '.join(RESPONSE_SCHEDULERS)}, got {shown(text)}")
    return scheduling_policy(text).name
