"""The options of commands that begin a job: its congestion control, its F, and what is known of its iterations."""

from __future__ import annotations

import argparse

from mltcp.control.aggressiveness import Shape
from mltcp.core.errors import UsageError
from mltcp.core.policy_names import DEFAULT_CONTROL, SHORT_NAME, control_name


def add_job_options(command: argparse.ArgumentParser) -> None:
    """Add ``--cc``, ``--total-bytes``, ``--gap``, ``--function``, ``--slope`` and ``--intercept`` to a command."""
    command.add_argument(
        "--cc",
        type=control_name,
        metavar="NAME",
        help=f"congestion control (default {DEFAULT_CONTROL}, also called {SHORT_NAME}, or that of the daemon)",
    )
    command.add_argument(
        "--total-bytes", type=int, metavar="N", help="bytes this host sends per iteration (default: learned)"
    )
    command.add_argument(
        "--gap", type=float, metavar="S", help="a longer silence ends an iteration (default: learned)"
    )
    command.add_argument(
        "--function",
        metavar="F",
        help=f"of {', '.join(s.label for s in Shape)} (default linear, or that of the daemon)",
    )
    command.add_argument("--slope", type=float, help="of F (default 1.75; of remaining 15.67)")
    command.add_argument("--intercept", type=float, help="of F (default 0.25; of remaining 0.33)")


def check_iteration_options(options: argparse.Namespace) -> None:
    """Check ``--total-bytes`` and ``--gap``.

    Raises:
        UsageError: one is out of range.
    """
    if options.total_bytes is not None and options.total_bytes <= 0:
        raise UsageError(f"--total-bytes: expected a positive number of bytes, got {options.total_bytes}")
    if options.gap is not None and not 0 < options.gap < 3600:
        raise UsageError(f"--gap: expected more than 0 and less than 3600 seconds, got {options.gap}")
