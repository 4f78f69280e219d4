"""The main function of a rank that all-reduces one tensor at each requested time, and reports how long it took."""

import os
import shutil
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from bench.workloads.flows import TcpFlow, tcp_flows
from bench.workloads.loop import sleep_until
from bench.workloads.ranks.failure import failures_reported
from bench.workloads.ranks.place import RankPlace

_WARMUP = 3


@dataclass(frozen=True)
class RoundJoined:
    """The rank has joined its group, over these connections, and waits for rounds."""

    flows: tuple[TcpFlow, ...]


@dataclass(frozen=True)
class RoundRequest:
    """A request to all-reduce `size_bytes` (a multiple of 4) at `start_s` (CLOCK_MONOTONIC); `number` varies data."""

    number: int
    size_bytes: int
    start_s: float


@dataclass(frozen=True)
class RoundTime:
    """The beginning and the end of the rank's all-reduce, in CLOCK_MONOTONIC seconds."""

    start_s: float
    end_s: float


RoundMessage = RoundJoined | RoundTime


def round_rank_main(
    connection: Connection, job: str, rank: int, ranks: int, place: RankPlace, store: Path
) -> None:
    """The main function of the rank's process; `store` is the file at which its job's ranks meet.

    It sends RoundJoined, then answers every RoundRequest by a RoundTime, until it is killed or the launcher is gone.
    Any error is sent as RankFailed, and ends the process with exit status 1.
    """
    with failures_reported(connection):
        # A network namespace belongs to a thread: enter it before there is a second thread.
        place.enter()
        _run_rank(connection, job, rank, ranks, place, store)


def _run_rank(connection: Connection, job: str, rank: int, ranks: int, place: RankPlace, store: Path) -> None:
    # Imported here, because the launcher imports this module too and needs no torch.
    from bench.workloads.ranks.group import join_group, warm_up

    join_group(store, rank, ranks, place, job)
    warm_up(_WARMUP)
    connection.send(RoundJoined(tcp_flows()))
    while isinstance(request := told(connection), RoundRequest):
        connection.send(_all_reduce(request, rank, ranks))
    shutil.rmtree(store.parent, ignore_errors=True)
    # An orderly exit would wait for a group whose other members may be gone.
    os._exit(1)


def told(connection: Connection) -> object:
    """What the launcher says next; None if it is gone."""
    try:
        return connection.recv()
    except (EOFError, OSError):
        return None


def _all_reduce(request: RoundRequest, rank: int, ranks: int) -> RoundTime:
    """Run and time one all-reduce, without filling and checking the tensor; WrongDataError if the sum is wrong."""
    import torch
    import torch.distributed as dist

    from bench.workloads.kinds.replay import check_sum, contribution

    tensor = torch.full((request.size_bytes // 4,), float(contribution(rank, request.number, 0)))
    sleep_until(request.start_s)
    start_s = time.monotonic()
    dist.all_reduce(tensor)
    end_s = time.monotonic()
    check_sum(tensor, ranks, request.number, 0)
    return RoundTime(start_s, end_s)
