"""``mltcp-placement profile`` as a command: the demand profile of a job from a packet capture, or its service times."""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

from mltcp.core.atomic_files import check_writable, write_atomically
from mltcp.core.demand import demand_document
from mltcp.core.quantities import with_si_prefix
from placement.cassini.capture import BIN_NS, Captured, captured
from placement.cli.command import add_command
from placement.cli.parameter_server.service_profile import (
    add_service_arguments,
    check_arguments,
    read_service,
    show_service,
)
from placement.experiments.console import open_console

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
    add_service_arguments(command)
    command.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the profile there")
    command.add_argument("--json", action="store_true", help="print the profile as one JSON document")


def execute(options: argparse.Namespace) -> int:
    """Read the capture and write or print the profile; returns the exit status."""
    if options.output is not None:
        check_writable(options.output)
    check_arguments(options)
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn

    columns = (SpinnerColumn(), TextColumn("{task.completed:,.0f} packets"))
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("packets")

        def on_packets(number: int) -> None:
            progress.update(task, completed=number)

        if options.parameter_server:
            service = read_service(options, on_packets)
            content, show = service.document(), partial(show_service, service)
        else:
            found = captured(
                options.capture,
                sender=options.sender,
                bin_ns=BIN_NS if options.bin_ms is None else round(options.bin_ms * 1e6),
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
