"""``mltcp-placement jobs``: schedulers of whole jobs, at the rates of a throughput model.

Each workload is a module with its options: `deadline_jobs`, the jobs with deadlines of the DRS evaluation;
`async_jobs`, those without; and `contention`, those that slow each other down.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from types import MappingProxyType

from mltcp.core.errors import UsageError, shown
from mltcp.core.subcommands import add_command
from placement.cli.simulation import async_jobs, contention, deadline_jobs
from placement.cli.simulation.arguments import add_output, add_processes

_WORKLOADS = MappingProxyType(
    {"drs": deadline_jobs, async_jobs.WORKLOAD: async_jobs, contention.WORKLOAD: contention}
)

_EXAMPLES = f"""\
examples:
{deadline_jobs.EXAMPLES}{contention.EXAMPLES}
-o keeps finished runs in DIR, whatever ends the command: the same command again goes on from there. All means are over
traces; the differences from --baseline are those on the same trace.

{deadline_jobs.DESCRIPTION}
{contention.DESCRIPTION}
{async_jobs.EXAMPLES}
policies: {async_jobs.NAMES.allowed}
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``jobs`` to the commands."""
    command = add_command(commands, "jobs", execute, _EXAMPLES)
    traces = command.add_argument_group("traces")
    traces.add_argument(
        "--workload", choices=tuple(_WORKLOADS), default="drs", help="the workload (default drs)"
    )
    which = traces.add_mutually_exclusive_group()
    which.add_argument(
        "--trace",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="read them: a table with deadlines, Philly or PAI; of contention, a table or a shipped trace's name",
    )
    which.add_argument(
        "--seeds",
        metavar="A:B",
        help="draw a trace for each seed from A up to B (default 0:10; async-sgd 1:4)",
    )
    command.add_argument(
        "--policies",
        metavar="NAMES",
        help=f"(default {deadline_jobs.DEFAULT_POLICIES}; async-sgd {async_jobs.DEFAULT_POLICIES}; "
        f"contention {contention.DEFAULT_POLICIES})",
    )
    cluster = command.add_argument_group("cluster")
    cluster.add_argument(
        "--nodes",
        type=int,
        metavar="N",
        help=f"(default {deadline_jobs.NODES}; async-sgd {async_jobs.NODES})",
    )
    cluster.add_argument(
        "--gpus", type=int, metavar="N", help=f"of a node (default {deadline_jobs.GPUS}; contention 8)"
    )
    cluster.add_argument("--restart-cost", metavar="S", help="seconds that a restart holds GPUs (default 0)")
    add_output(command)
    add_processes(command)
    for workload in _WORKLOADS.values():
        workload.add_arguments(command)


def execute(options: argparse.Namespace) -> int:
    """Run the comparison and print it; returns the exit status."""
    chosen = _WORKLOADS[options.workload]
    for name, workload in _WORKLOADS.items():
        for option in workload.OPTIONS:
            given = getattr(options, option)
            # 0 is given, too.
            if option not in chosen.OPTIONS and given is not None and given is not False:
                raise UsageError(
                    f"--{option.replace('_', '-')}: expected only with --workload {name}, got {shown(given)}"
                )
    return chosen.execute(options)
