"""The part of ``mltcp-placement profile`` with ``--parameter-server``: service times of the queueing model."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import astuple

from mltcp.core.errors import UsageError
from placement.experiments.console import open_console
from placement.experiments.parameter_server.profile import (
    MOST_CYCLES,
    WARM_UP_CYCLES,
    ServiceProfile,
    profile,
)

_OWN = ("server", "warmup", "cycles")
_OTHERS = ("sender", "bin_ms")


def add_service_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments to ``profile``."""
    group = command.add_argument_group("parameter server")
    group.add_argument(
        "--parameter-server",
        action="store_true",
        help="find S^W, S^U, S^S and S^D of one worker that trains with a parameter server",
    )
    group.add_argument(
        "--server",
        metavar="ADDRESS[:PORT]",
        help="of the parameter server (default: the host that accepted the connections)",
    )
    group.add_argument(
        "--warmup", type=int, metavar="N", help=f"cycles to leave out first (default {WARM_UP_CYCLES})"
    )
    group.add_argument(
        "--cycles", type=int, metavar="N", help=f"cycles to average at most (default {MOST_CYCLES})"
    )


def check_arguments(options: argparse.Namespace) -> None:
    """Raise UsageError for arguments of the other kind of profile."""
    refused, where = (_OTHERS, "without") if options.parameter_server else (_OWN, "with")
    for name in refused:
        if getattr(options, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')}: expected only {where} --parameter-server")


def read_service(options: argparse.Namespace, on_packets: Callable[[int], None]) -> ServiceProfile:
    """Read the capture."""
    return profile(
        options.capture,
        server=options.server,
        warm_up=WARM_UP_CYCLES if options.warmup is None else options.warmup,
        most_cycles=MOST_CYCLES if options.cycles is None else options.cycles,
        on_packets=on_packets,
    )


def show_service(found: ServiceProfile) -> None:
    """Print the times as a table."""
    from rich.table import Table

    console = open_console()
    console.print(
        f"{found.worker} with parameter server {found.server}: {found.cycles} cycles of "
        f"{1000 * found.service.cycle_s:.5g} ms, {1 / found.service.cycle_s:.4g} mini-batches/s; "
        f"gradients of {found.gradient_bytes / 1e6:.4g} MB, weights of {found.weights_bytes / 1e6:.4g} MB",
        soft_wrap=True,
    )
    table = Table("", "phase", box=None, pad_edge=False)
    for heading in ("mean ms", "deviation ms", "of the cycle"):
        table.add_column(heading, justify="right")
    names = (("S^W", "worker"), ("S^U", "uplink"), ("S^S", "server"), ("S^D", "downlink"))
    for (symbol, name), time_s, deviation_s in zip(
        names, astuple(found.service), found.deviation, strict=True
    ):
        share = time_s / found.service.cycle_s
        table.add_row(symbol, name, f"{1000 * time_s:.5g}", f"{1000 * deviation_s:.3g}", f"{share:.1%}")
    console.print(table)
