"""``mltcp-bench async``: asynchronous SGD with a real parameter server, measured and predicted."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

from bench.async_sgd.comparison import ControlComparison, compare, document, print_report
from bench.async_sgd.lab import server_address
from bench.async_sgd.measure import measured, updates_missing
from bench.async_sgd.sweep import AsyncSweep, SweepPoint, parse_variants, parse_workers
from bench.cli.contest_arguments import add_link, check_counts, link_of
from bench.command_line import option
from bench.lab.bottleneck import MARKERS, VIRTUAL_QUEUE
from bench.lab.link import Link
from bench.workloads.parameter_server.job import add_work, shares_of, work_of
from mltcp.core.errors import UsageError
from mltcp.core.progress import progress_bar
from mltcp.core.subcommands import add_command
from placement.experiments.service_profile import profile as capture_profile
from placement.model.service_times import load_service

_CONTROLS = "cubic,reno,bbr,mltcp_reno,mltcp_cubic,mltcp_dctcp"
_EXAMPLES = """\
examples:
  mltcp-bench async -o report                          K = 1..8 under six controls, three repeats; resumable
  mltcp-bench async --workers 1..5 --controls cubic,mltcp_reno --worker-s 0.6 -o report
  mltcp-bench async --workers 1,3,4 --controls mltcp_reno,mltcp_reno@ratio=job,mltcp_reno@remaining
  mltcp-bench async --workers 1,5,8 --controls cubic@together,cubic,mltcp_reno@remaining:start=look --acks-first
  mltcp-bench async --train --model perceptron --workers 1..4 --controls cubic,mltcp_reno
  mltcp-bench async --workers 1 --controls cubic --repeat 1 --capture k1.pcap
  mltcp-bench async --workers 2..8 --profile ps.json -o report

A run with one worker gives the four service times, from which the queueing model predicts the others; with --capture
the packets give them, too, as `mltcp-placement profile --parameter-server FILE --server 10.77.255.1` does. A control
may have a modifier ratio=: worker (the default: each worker is a job of its own, with its own bytes_ratio), job (all
are one job, which shares one in the server) or flow (connections without a job). With the modifier together a server
sends its weights to all workers that wait at once, and not to one after the other.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``async`` to the commands."""
    command = add_command(commands, "async", execute, _EXAMPLES)
    option(command, "--workers", "1..8", "numbers of workers", "K")
    option(command, "--controls", _CONTROLS, "congestion controls to try")
    option(command, "--updates", 150, "gradients of a run", "N")
    option(command, "--repeat", 3, "how often each point runs, interleaved", "N")
    add_work(command, worker_s="0.085", server_s="0.052", size="500kb", replay=True)
    add_link(command, Link(20_000_000, 60_000, 15_000))
    command.add_argument(
        "--acks-first",
        action="store_true",
        help="acknowledgements overtake data in the bottleneck's queue, as in a switch with a class of their own",
    )
    command.add_argument(
        "--ecn-by",
        default=VIRTUAL_QUEUE,
        choices=MARKERS,
        help="the mechanism that marks (default virtual_queue)",
    )
    option(command, "--backend", "mltcp", "", choices=("mltcp", "gloo"))
    command.add_argument(
        "--profile", type=Path, metavar="FILE", help="service times in JSON, instead of those of one worker"
    )
    command.add_argument(
        "--capture", type=Path, metavar="FILE", help="packets of the first run with one worker (pcap)"
    )
    command.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="DIR",
        help="keep all runs and draw pictures there; runs that it has are not repeated",
    )
    command.add_argument("--json", action="store_true", help="one JSON document instead of the tables")


def execute(options: argparse.Namespace) -> int:
    """Run the sweep and print its result; returns the exit status."""
    sweep = sweep_of(options)
    profile = None if options.profile is None else load_service(options.profile)
    if profile is None and 1 not in sweep.workers:
        raise UsageError("--workers: expected 1 among the numbers, or --profile, got neither")
    with progress_bar(updates_missing(sweep, options.output)) as bar:

        def step(point: SweepPoint) -> None:
            bar.advance(f"K = {point.workers}, {point.variant}, repeat {point.repeat + 1} of {sweep.repeat}")

        runs = measured(sweep, options.output, step, options.capture)
    comparisons = compare(runs, profile, sweep.shares)
    packets = None if options.capture is None else capture_profile(options.capture, server=server_address())
    files = _pictures(comparisons, options.output, options.acks_first)
    if options.json:
        captured = None if packets is None else packets.document()
        print(json.dumps({**document(comparisons), "capture": captured, "files": files}, allow_nan=False))
    else:
        print_report(comparisons, packets, files)
    return 0


def sweep_of(options: argparse.Namespace) -> AsyncSweep:
    """The sweep that the arguments describe. Raises UsageError: one is out of range or unknown."""
    check_counts(options, "updates", "repeat")
    return AsyncSweep(
        work=work_of(options),
        workers=parse_workers(options.workers),
        variants=parse_variants(options.controls),
        link=replace(link_of(options), acks_first=options.acks_first),
        updates=options.updates,
        repeat=options.repeat,
        shares=shares_of(options),
        backend=options.backend,
        ecn_by=options.ecn_by,
        seed=options.seed,
    )


def _pictures(
    comparisons: tuple[ControlComparison, ...], directory: Path | None, acks_first: bool
) -> list[str]:
    if directory is None:
        return []
    from bench.async_sgd.pictures import write_pictures

    return [str(path) for path in write_pictures(comparisons, directory, acks_first)]
