"""``mltcp-bench alone``: whether a job that is alone on its link loses anything under MLTCP."""

from __future__ import annotations

import argparse
import json
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from bench.alone.cell import BASES, MAX_ITERATION_BYTES, AloneCell, default_cells
from bench.alone.report import comparisons, document, print_cells, print_report
from bench.alone.round import AlonePlan, measured
from bench.compare.approach import parse_policy
from bench.lab.link import MAX_RATE_BPS, MIN_RATE_BPS
from mltcp.core.errors import UsageError, shown
from mltcp.core.policy_names import parse_names
from mltcp.core.progress import progress_bar
from mltcp.core.quantities import format_rate, parse_rate_bps, parse_size_bytes
from mltcp.core.subcommands import add_command

_CONTROLS = "mltcp_reno,mltcp_cubic,mltcp_dctcp"
_EXAMPLES = """\
examples:
  mltcp-bench alone --cells list                                    the cells of the table
  mltcp-bench alone -o report                                       all cells, three controls, five rounds: 50 minutes
  mltcp-bench alone --cells 1g-10ms,1g-10ms-long --rounds 3 -o report
  mltcp-bench alone --controls mltcp_reno,mltcp_reno@start=kernel --cells 1g-10ms-long -o report
  mltcp-bench alone --rate 1gbit --rtt 0.01 --pause 1.5 --bytes 25mb --flows 4      a cell of your own
  mltcp-bench alone --rate 100mbit --rtt 0.001 --pause 0.1 --bytes 1mb --no-offloads --tail-loss 1:2 --rto-min 0.005

Each control of MLTCP is compared with its base (reno, cubic, plain DCTCP) in the same cell, one after the other, in an
order that changes with the round. -o keeps each round: a measurement that was interrupted goes on if the command is
given again. docs/alone.md explains the cells and the columns.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``alone`` to the commands."""
    command = add_command(commands, "alone", execute, _EXAMPLES)
    add = command.add_argument
    add("--cells", metavar="NAME,...", help="some of the table (default all); `list` shows them")
    add(
        "--controls",
        metavar="NAME,...",
        help=f"in every cell, such as mltcp_reno@start=keep (default {_CONTROLS}, each where the cell is about it)",
    )
    add("--rounds", type=int, default=5, metavar="N", help="of each cell (default %(default)s)")
    add("--iterations", type=int, metavar="N", help="that count, after the warm-up (default: the cell's)")
    add("-o", "--output", type=Path, metavar="DIR", help="for the rounds")
    add("--json", action="store_true", help="one JSON document instead of the table")
    _add_cell(command)


def _add_cell(command: argparse.ArgumentParser) -> None:
    add = command.add_argument_group("a cell of your own, instead of the table").add_argument
    add("--rate", help="of the link; this option begins such a cell")
    add("--rtt", type=float, default=0.001, metavar="S", help="round trip; 0: the path's (default 0.001)")
    add("--pause", type=float, default=0.35, metavar="S", help="computing (default %(default)s)")
    add("--bytes", default="25mb", metavar="SIZE", help="an iteration, over all flows (default %(default)s)")
    add("--flows", type=int, default=1, metavar="N", help="connections (default %(default)s)")
    add("--no-offloads", action="store_true", help="packets of 1500 bytes instead of 64 KB")
    add(
        "--queue",
        type=float,
        default=0.0,
        metavar="BDP",
        help="drop-tail queue of a switch, in bandwidth-delay products (default: the link is the sender's NIC)",
    )
    add("--mark", type=float, default=0.0, metavar="BDP", help="queue above which packets are marked")
    add("--tail-loss", default="0", metavar="K[:N]", help="drop the last K segments of every Nth iteration")
    add("--rto-min", type=float, default=0.2, metavar="S", help="least RTO (default %(default)s)")
    add("--receiver-ecn", type=int, default=2, metavar="N", help="tcp_ecn of the receiver (default 2)")
    add("--peer", action="store_true", help="the receiver listens under the base control")
    add("--no-slow-start-after-idle", action="store_true", help="tcp_slow_start_after_idle = 0")


def execute(options: argparse.Namespace) -> int:
    """Measure what is missing and print the table; returns the exit status."""
    if options.cells == "list":
        print_cells(default_cells())
        return 0
    plan = plan_of(options)
    with ExitStack() as stack:
        folder = options.output or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="mltcp-alone-"))
        )
        with progress_bar(plan.steps) as bar:
            rounds = measured(plan, folder, bar.remaining)
    found = comparisons(plan, rounds)
    if options.json:
        print(json.dumps(document(found, rounds), allow_nan=False))
    else:
        print_report(found, rounds)
    return 0


def plan_of(options: argparse.Namespace) -> AlonePlan:
    """The table that the arguments describe. Raises UsageError: one is out of range or unknown."""
    controls = parse_names(
        options.controls or _CONTROLS, lambda name: parse_policy(name, "cubic"), "--controls"
    )
    if options.rate is not None and options.cells is not None:
        raise UsageError("--cells, --rate: expected one of them, got both")
    cells = _named(options.cells) if options.rate is None else (_own_cell(options),)
    if options.controls is not None:
        cells = tuple(replace(cell, bases=BASES) for cell in cells)
    if options.iterations is not None:
        cells = tuple(replace(cell, iterations=options.iterations) for cell in cells)
    return AlonePlan(cells, controls, options.rounds)


def _named(text: str | None) -> tuple[AloneCell, ...]:
    known = {cell.name: cell for cell in default_cells()}
    if text is None:
        return tuple(known.values())
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise UsageError(f"--cells: expected some of {', '.join(known)}, got {shown(name)}")
    return tuple(known[name] for name in names)


def _own_cell(options: argparse.Namespace) -> AloneCell:
    rate_bps = parse_rate_bps(options.rate, field="--rate", lowest=MIN_RATE_BPS, highest=MAX_RATE_BPS)
    segments, every = _tail_loss(options.tail_loss)
    return AloneCell(
        name=f"{format_rate(rate_bps)}-{options.rtt * 1e3:g}ms",
        rate_bps=rate_bps,
        rtt_s=options.rtt,
        pause_s=options.pause,
        iteration_bytes=parse_size_bytes(options.bytes, field="--bytes", highest=MAX_ITERATION_BYTES),
        flows=options.flows,
        offloads=not options.no_offloads,
        queue_bdp=options.queue,
        mark_bdp=options.mark,
        tail_segments=segments,
        tail_every=every,
        rto_min_s=options.rto_min,
        receiver_ecn=options.receiver_ecn,
        peer=options.peer,
        slow_start_after_idle=not options.no_slow_start_after_idle,
        bases=BASES,
    )


def _tail_loss(text: str) -> tuple[int, int]:
    segments, _, every = text.partition(":")
    try:
        return int(segments), int(every or 1)
    except ValueError:
        raise UsageError(f"--tail-loss: expected K or K:N, two whole numbers, got {shown(text)}") from None
