"""A rank that all-reduces one tensor whenever it is told to, at the moment it is told, and says how long it took."""

import os
import shutil
import signal
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from bench.workloads.flows import Flow, tcp_flows
from bench.workloads.loop import sleep_until
from bench.workloads.ranks.place import RankPlace
from bench.workloads.ranks.rank import Failed

_WARMUP = 3


@dataclass(frozen=True)
class Joined:
    """The rank is in its group, over these connections, and waits for rounds."""

    flows: tuple[Flow, ...]


@dataclass(frozen=True)
class Round:
    """All-reduce `size_bytes` (a multiple of 4) at `start_s` of CLOCK_MONOTONIC; `number` varies the contents."""

    number: int
    size_bytes: int
    start_s: float


@dataclass(frozen=True)
class Took:
    """When the rank's all-reduce began and ended, in CLOCK_MONOTONIC seconds."""

    start_s: float
    end_s: float


Answer = Joined | Took
Message = Answer | Failed


def round_rank_main(
    connection: Connection, job: str, rank: int, ranks: int, place: RankPlace, store: Path
) -> None:
    """The life of the rank's process; `store` is the file at which its job's ranks meet.

    It sends Joined, then answers every Round by Took, until it is killed or the launcher is gone. Any error is
    sent as Failed, and ends the process with exit status 1.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        # The namespace belongs to a thread: enter it before there is a second one.
        place.enter()
        _take_part(connection, job, rank, ranks, place, store)
    except BaseException as error:
        line = "".join(traceback.format_exception_only(error)).splitlines()[0]
        # Where the launcher is gone, nobody is left to tell.
        with suppress(OSError):
            connection.send(Failed(line, "".join(traceback.format_exception(error))))
        raise SystemExit(1) from None


def _take_part(
    connection: Connection, job: str, rank: int, ranks: int, place: RankPlace, store: Path
) -> None:
    # Imported here, as the launcher imports this module too and needs no torch.
    from bench.workloads.ranks.group import join_group, warm_up

    join_group(store, rank, ranks, place, job)
    warm_up(_WARMUP)
    connection.send(Joined(tcp_flows()))
    while (told := _told(connection)) is not None:
        connection.send(_all_reduce(told, rank, ranks))
    shutil.rmtree(store.parent, ignore_errors=True)
    # An orderly end would wait for a group whose other members may be gone.
    os._exit(1)


def _told(connection: Connection) -> Round | None:
    """The next round; None if the launcher is gone."""
    try:
        told: Round = connection.recv()
    except (EOFError, OSError):
        return None
    return told


def _all_reduce(told: Round, rank: int, ranks: int) -> Took:
    """Raises WrongDataError if the sum is wrong; neither filling the tensor nor checking it is timed."""
    import torch
    import torch.distributed as dist

    from bench.workloads.kinds.replay import check_sum, contribution

    tensor = torch.full((told.size_bytes // 4,), float(contribution(rank, told.number, 0)))
    sleep_until(told.start_s)
    start_s = time.monotonic()
    dist.all_reduce(tensor)
    end_s = time.monotonic()
    check_sum(tensor, ranks, told.number, 0)
    return Took(start_s, end_s)
