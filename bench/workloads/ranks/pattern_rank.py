"""The main function of a rank that runs iterations of any pattern when it is told to, and reports their times."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from bench.workloads.loop import sleep_until
from bench.workloads.patterns import PatternWork
from bench.workloads.ranks.failure import failures_reported
from bench.workloads.ranks.place import RankPlace
from bench.workloads.ranks.round_rank import RoundJoined, told

_WARMUP = 3


@dataclass(frozen=True)
class PatternRequest:
    """A request to run iterations from `start_s` on; the last one is the first that begins at `until_s` or later."""

    work: PatternWork
    start_s: float
    until_s: float


@dataclass(frozen=True)
class PatternTimes:
    """The beginning and the end of each iteration of a rank, in CLOCK_MONOTONIC seconds."""

    iterations: tuple[tuple[float, float], ...]


def pattern_rank_main(
    connection: Connection, job: str, rank: int, ranks: int, place: RankPlace, store: Path
) -> None:
    """The main function of the rank's process; `store` is the file at which its job's ranks meet.

    It sends RoundJoined, then answers every PatternRequest by PatternTimes, until it is killed or the launcher is gone.
    Any error is sent as RankFailed, and ends the process with exit status 1.
    """
    with failures_reported(connection):
        # A network namespace belongs to a thread: enter it before there is a second thread.
        place.enter()
        _run_rank(connection, job, rank, ranks, place, store)


def _run_rank(connection: Connection, job: str, rank: int, ranks: int, place: RankPlace, store: Path) -> None:
    # Imported here, because the launcher imports this module too and needs no torch.
    from bench.workloads.flows import tcp_flows
    from bench.workloads.ranks.group import join_group, warm_up

    join_group(store, rank, ranks, place, job)
    warm_up(_WARMUP)
    connection.send(RoundJoined(tcp_flows()))
    while isinstance(request := told(connection), PatternRequest):
        connection.send(_run(request, rank, ranks))
    shutil.rmtree(store.parent, ignore_errors=True)
    # An orderly exit would wait for a group whose other members may be gone.
    os._exit(1)


def _run(request: PatternRequest, rank: int, ranks: int) -> PatternTimes:
    import time

    from bench.workloads.kinds.pattern import exchange_of, iterate

    exchange = exchange_of(request.work, rank, ranks)
    sleep_until(request.start_s)
    found, was_last = [], False
    while not was_last:
        begin_s, end_s, was_last = iterate(exchange, time.monotonic() >= request.until_s)
        found.append((begin_s, end_s))
    return PatternTimes(tuple(found))
