"""The ``mltcp`` command: eBPF congestion controls, the daemon, and the jobs of this host."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from mltcp.core.exit_status import exit_status
from mltcp.core.subcommands import Subcommand, add_subcommands, named_subcommand

SUBCOMMANDS = tuple(
    Subcommand(name, f"mltcp.cli.{module}", text)
    for name, module, text in (
        ("probe", "probe", "check the requirements of the kernel mode; exit status 0 only if all are met"),
        ("load", "controls", "register congestion controls (all of MLTCP's when none is named)"),
        ("unload", "controls", "unregister congestion controls (all when none is named)"),
        ("status", "status", "show controls, jobs and flows"),
        ("run", "run", "run a program with its TCP connections under MLTCP"),
        (
            "attach",
            "attach",
            "make the connections of an existing cgroup, such as a container's, flows of a job",
        ),
        ("detach", "attach", "end that"),
        ("daemon", "daemon", "serve the jobs of this host; the only part that needs privileges"),
        (
            "restore",
            "restore",
            "undo the changes that a killed daemon has left; a running one undoes its own",
        ),
        ("top", "top", "watch the jobs of this host, as its daemon sees them"),
    )
)

_EXAMPLES = """\
examples:
  mltcp probe                                  can this host run MLTCP in the kernel, and if not, what is missing
  mltcp load                                   register mltcp_reno, mltcp_cubic and mltcp_dctcp
  mltcp run --job bert -- torchrun train.py    every TCP connection of this program becomes a flow of the job bert
  mltcp status                                 controls, jobs, flows, bytes_ratio, learned values
  mltcp unload                                 leave nothing behind
  mltcp daemon --interface eth0                pace the jobs of this host with tc
  mltcp top                                    watch them
"""


def _parser(named: Subcommand | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mltcp",
        description="MLTCP in an unmodified Linux kernel: congestion controls that know training jobs.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_subcommands(parser, SUBCOMMANDS, named)
    return parser


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options of a command line; ``execute`` runs it."""
    return _parser(named_subcommand(SUBCOMMANDS, arguments)).parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point; returns the exit status.

    0 success, 1 failure, 2 bad usage, 130 interrupted; ``run``: that of the program.
    """
    options = parse(sys.argv[1:] if arguments is None else arguments)
    return exit_status("mltcp", lambda: int(options.execute(options)))
