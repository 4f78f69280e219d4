"""``mltcp-placement jobs``: schedulers of whole jobs with deadlines, at the rates of a throughput model."""

from __future__ import annotations

import argparse
import os
import re
from fractions import Fraction

from mltcp.core.errors import UsageError, shown
from mltcp.core.policy_names import parse_names
from mltcp.core.progress import progress_bar
from placement.experiments.jobs.report import print_jobs
from placement.experiments.jobs.results import text
from placement.experiments.jobs.runs import Drawn, Given, Traces, run_policies
from placement.model.throughput.ring import BETWEEN_BYTES_PER_S, INSIDE_BYTES_PER_S, RingAllReduce
from placement.policies.schedulers.registry import NAMES
from placement.simulator.rates.run import GPUS, NODES, RatesSettings, check_fits
from placement.traces.deadlines.drs import DrsMix

_DEFAULT = "drs,norm,edf,fifo,themis-batch"
_DRS = "drs"
_MOST_SEEDS = 100_000
_MOST_S = 10**8
_NS_PER_S = 10**9
_SEEDS = re.compile(r"(\d{1,9})(?::(\d{1,9}))?")
_NUMBER = re.compile(r"\d{1,20}(\.\d{1,20})?([eE]\+?\d{1,2})?")
_DRAWN = ("rate", "hours", "fat", "urgent")

_EXAMPLES = f"""\
examples:
  mltcp-placement jobs --workload drs --seeds 0:100 --rate 4
  mltcp-placement jobs --workload drs --seeds 0:10 --policies drs,norm,edf-late-last-node --json
  mltcp-placement jobs --workload drs --seeds 0:100 --policies drs,themis-leases --bandwidth 5e9,3e9 --restart-cost 60

policies: {NAMES.allowed}
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``jobs`` to the commands."""
    command = commands.add_parser(
        "jobs",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    traces = command.add_argument_group("traces")
    traces.add_argument(
        "--workload", choices=(_DRS,), default=_DRS, help="the table of workloads (default drs)"
    )
    which = traces.add_mutually_exclusive_group()
    which.add_argument(
        "--seeds", metavar="A:B", help="draw a trace for each seed from A up to B (default 0:10)"
    )
    traces.add_argument("--rate", type=float, metavar="X", help="jobs an hour (default 4)")
    traces.add_argument("--hours", type=float, metavar="X", help="for which jobs arrive (default 24)")
    traces.add_argument("--fat", type=float, metavar="X", help="the share of fat models (default 0.2)")
    traces.add_argument("--urgent", type=float, metavar="X", help="the share of urgent jobs (default 0.1)")
    command.add_argument("--policies", default=_DEFAULT, metavar="NAMES", help=f"(default {_DEFAULT})")
    cluster = command.add_argument_group("cluster")
    cluster.add_argument("--nodes", type=int, default=NODES, metavar="N", help=f"(default {NODES})")
    cluster.add_argument("--gpus", type=int, default=GPUS, metavar="N", help=f"of a node (default {GPUS})")
    cluster.add_argument(
        "--bandwidth",
        default=f"{INSIDE_BYTES_PER_S},{BETWEEN_BYTES_PER_S}",
        metavar="IN,OUT",
        help="byte/s inside a node and between nodes (default 10e9,6e9)",
    )
    cluster.add_argument(
        "--restart-cost", default="0", metavar="S", help="seconds that a restart holds GPUs (default 0)"
    )
    command.add_argument("--json", action="store_true", help="one JSON document instead of the table")
    command.add_argument(
        "--processes", type=int, metavar="N", help="that run at a time (default: one a core)"
    )
    command.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Run the comparison and print it; returns the exit status."""
    policies = parse_names(options.policies, lambda name: str(NAMES.parse(name)))
    settings = settings_of(options)
    traces = _traces(options)
    if isinstance(traces, Given):
        for trace in traces.given:
            check_fits(trace, settings.nodes * settings.gpus)
    steps = len(policies) * len(list(traces.chunks()))
    with progress_bar(steps, transient=True) as bar:
        results = run_policies(policies, traces, settings, _processes(options), bar.advance)
    if options.json:
        print(text(options.workload, results))
    else:
        print_jobs(f"{options.workload}, {settings.nodes} nodes of {settings.gpus} GPUs", results)
    return 0


def settings_of(options: argparse.Namespace) -> RatesSettings:
    """Build the cluster and the throughput model from the arguments.

    Raises:
        UsageError: an invalid argument.
    """
    inside, between = _bandwidths(options.bandwidth)
    restart_ns = round(_number(options.restart_cost, "--restart-cost", _MOST_S) * _NS_PER_S)
    return RatesSettings(RingAllReduce(inside, between), options.nodes, options.gpus, restart_ns)


def _traces(options: argparse.Namespace) -> Traces:
    given = {name: getattr(options, name) for name in _DRAWN if getattr(options, name) is not None}
    return Drawn(DrsMix(**given), _seeds(options.seeds or "0:10"))


def _bandwidths(given: str) -> tuple[int, int]:
    parts = given.split(",")
    if len(parts) != 2:
        raise UsageError(f"--bandwidth: expected two numbers such as 10e9,6e9, got {shown(given)}")
    inside, between = (int(_number(part, "--bandwidth", 10**18)) for part in parts)
    return inside, between


def _number(given: str, field: str, most: int) -> Fraction:
    if not _NUMBER.fullmatch(given.strip()) or (value := Fraction(given.strip())) > most:
        raise UsageError(f"{field}: expected a number from 0 to {most}, got {shown(given)}")
    return value


def _seeds(given: str) -> tuple[int, ...]:
    match = _SEEDS.fullmatch(given)
    if match is None:
        raise UsageError(f"--seeds: expected a number or a range such as 0:100, got {shown(given)}")
    first = int(match[1])
    last = first + 1 if match[2] is None else int(match[2])
    if not 0 < last - first <= _MOST_SEEDS:
        raise UsageError(f"--seeds: expected 1 to {_MOST_SEEDS} seeds, got {shown(given)}")
    return tuple(range(first, last))


def _processes(options: argparse.Namespace) -> int:
    if options.processes is None:
        return len(os.sched_getaffinity(0))
    if options.processes < 1:
        raise UsageError(f"--processes: expected 1 or more, got {options.processes}")
    return int(options.processes)
