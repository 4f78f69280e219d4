"""The ``mltcp-bench`` command."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from mltcp.core.errors import UsageError
from mltcp.core.exit_status import exit_status
from mltcp.core.signals import exit_on_sigterm
from mltcp.core.subcommands import Subcommand, add_subcommands, named_subcommand

EXTRA = "bench"
_MODULES = {"async": "async_sgd", "async-jobs": "async_jobs", "bulk": "contend", "slurm": "soak"}
SUBCOMMANDS = tuple(
    Subcommand(name, f"bench.cli.{_MODULES.get(name, name)}", text, EXTRA)
    for name, text in (
        ("contend", "run jobs on one bottleneck under several policies and compare them with each job alone"),
        ("compare", "run the same jobs under congestion controls, schedulers and gates, and compare them"),
        (
            "demand",
            "what a real model sends in an iteration, measured alone on a link: a picture and a profile",
        ),
        ("holding", "sweep the difference of jobs' periods: where a congestion control holds them apart"),
        (
            "async",
            "asynchronous SGD with a parameter server: throughput measured, and predicted by queueing models",
        ),
        (
            "async-jobs",
            "jobs of asynchronous SGD that change their workers while they run: schedulers, live and predicted",
        ),
        ("bulk", "one long iperf3 flow, alone under several controls or beside jobs under several policies"),
        ("allreduce", "size sweep of collectives as in nccl-tests, for several torch backends in one run"),
        ("alone", "a job alone on a link, under each congestion control and under its MLTCP control"),
        (
            "sensitivity",
            "measure how much jobs on shared hosts slow each other down, for the scheduling policies",
        ),
        (
            "bound",
            "how much of the contention on a link could be taken away: ideal rules, and an optimum by search",
        ),
        (
            "contention",
            "measure all-reduces that share a link, for the contention model of the placement policies",
        ),
        ("perf", "the traffic of a training job, or bulk, between two hosts, with the interface of iperf3"),
        ("soak", "random clients and faults against the daemon and the placement service, for some minutes"),
        ("slurm", "jobs through the placement service and a Slurm of its own here, while daemons are killed"),
        ("cost", "benchmarks of this project's own parts: the daemon, the gate, the placement service, ..."),
    )
)


def _parser(named: Subcommand | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mltcp-bench",
        description="Benchmarks of congestion controls for training jobs, in a lab on this machine and between hosts.",
    )
    add_subcommands(parser, SUBCOMMANDS, named)
    return parser


def _complete(named: Subcommand | None, arguments: Sequence[str]) -> Sequence[str]:
    """The command line with what may be left out: the kind of a comparison."""
    if named is None or named.name != "compare":
        return arguments
    return list(importlib.import_module(named.module).with_kind(arguments))


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options of a command line; ``execute`` runs it.

    Raises:
        UsageError: the kind of comparison that the command line asks for does not know one of its arguments.
    """
    named = named_subcommand(SUBCOMMANDS, arguments)
    parser = _parser(named)
    options, unknown = parser.parse_known_args(_complete(named, arguments))
    if unknown and options.command != "compare":
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if unknown:
        raise UsageError(f"compare {options.kind}: unrecognized arguments: {' '.join(unknown)}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point; returns the exit status: 0 success, 1 failure, 2 bad usage, 130 interrupted."""
    given = sys.argv[1:] if arguments is None else arguments

    def run() -> int:
        try:
            options = parse(given)
        except SystemExit as end:
            named = named_subcommand(SUBCOMMANDS, given)
            if end.code and named is not None and named.name == "perf":
                importlib.import_module(named.module).fail_before_the_test(given)
            raise
        exit_on_sigterm()
        return int(options.execute(options))

    return exit_status("mltcp-bench", run, EXTRA, interrupted="interrupted; the lab has been removed")
