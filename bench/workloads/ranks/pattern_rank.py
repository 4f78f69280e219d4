"""The main function of a rank that runs iterations of any pattern when it is told to, and reports their times."""

from __future__ import annotations

import time
from dataclasses import dataclass
from multiprocessing.connection import Connection

from bench.workloads.loop import sleep_until
from bench.workloads.patterns import PatternWork
from bench.workloads.ranks.standing_rank import Standing, stand


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


def pattern_rank_main(connection: Connection, standing: Standing) -> None:
    """The main function of the rank's process: it answers every PatternRequest by PatternTimes."""
    stand(connection, standing, PatternRequest, _run)


def _run(request: PatternRequest, rank: int, ranks: int) -> PatternTimes:
    # Imported here, because the launcher imports this module too and needs no torch.
    from bench.workloads.kinds.pattern import exchange_of, iterate

    exchange = exchange_of(request.work, rank, ranks)
    sleep_until(request.start_s)
    found, was_last = [], False
    while not was_last:
        begin_s, end_s, was_last = iterate(exchange, time.monotonic() >= request.until_s)
        found.append((begin_s, end_s))
    return PatternTimes(tuple(found))
