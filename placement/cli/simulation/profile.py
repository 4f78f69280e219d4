"""``mltcp-placement profile`` as a command: the demand profile of a job from a packet capture, or its service times."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import astuple
from functools import partial
from pathlib import Path
from typing import Any

from mltcp.core.atomic_files import check_writable, write_atomically
from mltcp.core.demand import demand_document
from mltcp.core.errors import UsageError
from mltcp.core.quantities import check_number, with_si_prefix
from mltcp.core.subcommands import add_command
from placement.cassini.capture import BIN_NS, Captured, captured
from placement.experiments.console import open_console
from placement.experiments.service_profile import MOST_CYCLES, WARM_UP_CYCLES, ServiceProfile
from placement.experiments.service_profile import profile as service_profile

_OWN = ("server", "warmup", "cycles")
_OTHERS = ("sender", "bin_ms")

_EXAMPLES = """\
examples:
  tcpdump -i eth0 -s 96 -w job.pcap                      on one of the job's hosts, for ten iterations or more
  mltcp-placement profile job.pcap -o job.json
  mltcp-placement profile job.pcap --sender 10.0.0.7 --bin-ms 0.2 --json
  mltcp-placement circle job.json other.json             what the profile is for

  asynchronous SGD with one worker, captured on the host of the parameter server, for 10 to 200 mini-batches:
  tcpdump -i eth0 -s 96 -w trace.pcap tcp
  mltcp-placement profile --parameter-server trace.pcap -o ps.json
  mltcp-placement throughput --profile ps.json --workers 1:30
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``profile`` to the commands."""
    command = add_command(commands, "profile", execute, _EXAMPLES)
    command.add_argument("capture", type=Path, metavar="CAPTURE")
    command.add_argument(
        "--sender", metavar="ADDRESS", help="whose packets count (default: who sent most bytes)"
    )
    command.add_argument("--bin-ms", type=float, metavar="MS", help=f"resolution (default {BIN_NS / 1e6:g})")
    _add_service_arguments(command)
    command.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the profile there")
    command.add_argument("--json", action="store_true", help="print the profile as one JSON document")


def _bin_ns(bin_ms: float) -> int:
    return round(check_number(bin_ms, field="--bin-ms", lowest=0.001, highest=1000) * 1e6)


def execute(options: argparse.Namespace) -> int:
    """Read the capture and write or print the profile; returns the exit status."""
    if options.output is not None:
        check_writable(options.output)
    _check_arguments(options)
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn

    columns = (SpinnerColumn(), TextColumn("{task.completed:,.0f} packets"))
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("packets")

        def on_packets(number: int) -> None:
            progress.update(task, completed=number)

        if options.parameter_server:
            service = _read_service(options, on_packets)
            content, show = service.document(), partial(_show_service, service)
        else:
            found = captured(
                options.capture,
                sender=options.sender,
                bin_ns=BIN_NS if options.bin_ms is None else _bin_ns(options.bin_ms),
                on_packets=on_packets,
            )
            content, show = document(found, options.capture.stem), partial(_show, found)
    text = json.dumps(content, indent=1) + "\n"
    if options.output is not None:
        write_atomically(options.output, text.encode())
    if options.json:
        print(text, end="")
    else:
        show()
    return 0


def document(found: Captured, name: str) -> dict[str, Any]:
    """The profile as `circle` and the service read it, with its origin."""
    return {
        "name": name,
        "sender": found.sender,
        "packets": found.packets,
        "iterations": round(found.iterations, 3),
        "likeness": round(found.likeness, 4),
        "iteration_s": found.demand.iteration_ns / 1e9,
        **demand_document(found.demand),
    }


def _show(found: Captured) -> None:
    from rich.table import Table

    console = open_console()
    console.print(
        f"{found.sender}: iterations of {found.demand.iteration_ns / 1e6:.5g} ms, "
        f"{found.demand.bits / 8e6:.4g} MB each ({found.iterations:.1f} of them, {100 * found.likeness:.0f} % alike)",
        soft_wrap=True,
    )
    table = Table(box=None, pad_edge=False)
    for column in ("from ms", "to ms", "bandwidth"):
        table.add_column(column, justify="right")
    begin_ns = 0
    for phase in found.demand.phases:
        end_ns = begin_ns + phase.duration_ns
        rate = with_si_prefix(phase.bandwidth_bps, "bit/s") if phase.bandwidth_bps else "silent"
        table.add_row(f"{begin_ns / 1e6:.5g}", f"{end_ns / 1e6:.5g}", rate)
        begin_ns = end_ns
    console.print(table)


# -- of a worker with a parameter server -------------------------------------------------------------------------------


def _add_service_arguments(command: argparse.ArgumentParser) -> None:
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


def _check_arguments(options: argparse.Namespace) -> None:
    """Raise UsageError for arguments of the other kind of profile."""
    refused, where = (_OTHERS, "without") if options.parameter_server else (_OWN, "with")
    for name in refused:
        if getattr(options, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')}: expected only {where} --parameter-server")


def _read_service(options: argparse.Namespace, on_packets: Callable[[int], None]) -> ServiceProfile:
    """Read the capture."""
    return service_profile(
        options.capture,
        server=options.server,
        warm_up=WARM_UP_CYCLES if options.warmup is None else options.warmup,
        most_cycles=MOST_CYCLES if options.cycles is None else options.cycles,
        on_packets=on_packets,
    )


def _show_service(found: ServiceProfile) -> None:
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
