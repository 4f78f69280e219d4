"""The ``mltcp-bench`` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from bench.cli import allreduce as allreduce_command
from bench.cli import bulk as bulk_command
from bench.cli import compare as compare_command
from bench.cli import contend as contend_command
from bench.cli import contention as contention_command
from bench.cli import perf as perf_command
from mltcp.core.errors import MltcpError, UsageError
from mltcp.core.signals import exit_on_sigterm


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mltcp-bench",
        description="Benchmarks of congestion controls for training jobs, in a lab on this machine and between hosts.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    contend_command.add_parser(commands)
    compare_command.add_parser(commands)
    bulk_command.add_parser(commands)
    allreduce_command.add_parser(commands)
    contention_command.add_parser(commands)
    perf_command.add_parser(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point; returns the exit status (0 well, 1 failure, 2 bad usage, 130 interrupted)."""
    options = _parser().parse_args(arguments)
    exit_on_sigterm()
    try:
        return int(options.execute(options))
    except UsageError as error:
        print(f"mltcp-bench: {error}", file=sys.stderr)
        return 2
    except MltcpError as error:
        print(f"mltcp-bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("mltcp-bench: interrupted; the lab is gone", file=sys.stderr)
        return 130
