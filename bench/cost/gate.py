"""The time that a gate adds to an all-reduce of two ranks on this host, with and without the gate in turns.

A block is 40 operations with and 40 without the gate, in an order that alternates. The row has the medians of both, the
difference (with its quartiles over blocks), and how long an operation waited for the gate's answer.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from bench.cost.benchmark import Row
from bench.lab.programs import gate_process
from bench.workloads.group import join_group
from bench.workloads.launched_rank import RankFailure, blamed, kill_ranks, launch_rank, received
from bench.workloads.place import RankPlace
from bench.workloads.rank import failures_reported
from collectives.group import job
from mltcp.core.errors import UsageError

_OPERATIONS = 40
_RANKS = 2

Blocks = tuple[list[float], list[float], list[float]]
"""Medians of each block in microseconds: without the gate, with it, and of the wait for its answer."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's own arguments."""
    parser.add_argument(
        "--bytes", type=int, default=1 << 20, metavar="N", help="of an all-reduce (default 1048576)"
    )
    parser.add_argument("--blocks", type=int, default=60, metavar="N", help="(default 60)")


def measure(options: argparse.Namespace) -> Iterator[Row]:
    """Measure one size."""
    if options.bytes < 4 or options.blocks < 2:
        raise UsageError(
            f"cost gate: expected --bytes >= 4 and --blocks >= 2, got {options.bytes} and {options.blocks}"
        )
    without_us, with_us, waited_us = _blocks(options.bytes, options.blocks)
    added_us = [after - before for before, after in zip(without_us, with_us, strict=True)]
    first, middle, third = statistics.quantiles(added_us, n=4)
    yield {
        "case": f"{options.bytes} bytes, {options.blocks} blocks",
        "without_us": statistics.median(without_us),
        "with_us": statistics.median(with_us),
        "added_us": middle,
        "added_first_quartile_us": first,
        "added_third_quartile_us": third,
        "waited_us": statistics.median(waited_us),
    }


def _blocks(size_bytes: int, blocks: int) -> Blocks:
    """Run the ranks beside a gate; returns what rank 0 measured."""
    with tempfile.TemporaryDirectory() as directory:
        socket = Path(directory) / "gate.sock"
        place = RankPlace(None, "lo", "127.0.0.1", environment=(("MLTCP_GATE", f"unix:{socket}"),))
        ranks = []
        with gate_process(socket):
            try:
                for rank in range(_RANKS):
                    arguments = (rank, place, Path(directory) / "store", size_bytes, blocks)
                    ranks.append(launch_rank(_rank_main, 0, "gate-cost", rank, arguments))
                for _, message in received(ranks[:1], None):
                    if isinstance(message, RankFailure):
                        raise blamed(message, ranks).error()
                    measured: Blocks = message
                return measured
            finally:
                kill_ranks(ranks)


def _rank_main(
    connection: Connection, rank: int, place: RankPlace, store: Path, size_bytes: int, blocks: int
) -> None:
    with failures_reported(connection):
        place.enter()
        join_group(store, rank, _RANKS, place, "gate-cost")
        connection.send(_measured(size_bytes, blocks))
        connection.recv()  # an early end would close connections that the other rank still uses


def _measured(size_bytes: int, blocks: int) -> Blocks:
    tensor = torch.zeros(size_bytes // 4)
    recorder = job.current().recorder
    group: Any = dist.group.WORLD
    admission = group.hold_back_by(None)
    without_us: list[float] = []
    with_us: list[float] = []
    waited_us: list[float] = []
    for block in range(2 * blocks):
        gated = block % 4 in (1, 2)
        group.hold_back_by(admission if gated else None)
        dist.barrier()
        times_us = []
        for _ in range(_OPERATIONS):
            start_ns = time.perf_counter_ns()
            dist.all_reduce(tensor)
            times_us.append((time.perf_counter_ns() - start_ns) / 1000)
        (with_us if gated else without_us).append(statistics.median(times_us))
        if gated:
            held_ns = [each.held_ns for each in recorder.since_last_iteration() if each.number is not None]
            waited_us.append(statistics.median(held_ns[-_OPERATIONS:]) / 1000)
    return without_us, with_us, waited_us
