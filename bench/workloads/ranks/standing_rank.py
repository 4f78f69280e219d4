"""The life of a rank that stays: it joins its group, and then answers requests until its launcher is gone."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench.workloads.flows import TcpFlow, tcp_flows
from bench.workloads.ranks.failure import failures_reported
from bench.workloads.ranks.place import RankPlace

_WARMUP = 3


@dataclass(frozen=True)
class Joined:
    """The rank has joined its group, over these connections, and waits for requests."""

    flows: tuple[TcpFlow, ...]


@dataclass(frozen=True)
class Standing:
    """Where a rank that stays belongs.

    Attributes:
        job: its name.
        rank: its number.
        ranks: of the job.
        place: where its process runs.
        store: the file at which its job's ranks meet.
    """

    job: str
    rank: int
    ranks: int
    place: RankPlace
    store: Path


def stand(
    connection: Connection, standing: Standing, request: type, answer: Callable[[Any, int, int], object]
) -> None:
    """Send Joined, then an answer to each request, until the process is killed or the launcher is gone.

    Any error is sent as RankFailed, and ends the process with exit status 1.

    Args:
        connection: to the launcher.
        standing: of the rank.
        request: the type of the requests.
        answer: to a request, of this rank of so many.
    """
    with failures_reported(connection):
        # A network namespace belongs to a thread: enter it before there is a second thread.
        standing.place.enter()
        # Imported here, because the launcher imports this module too and needs no torch.
        from bench.workloads.ranks.group import join_group, warm_up

        join_group(standing.store, standing.rank, standing.ranks, standing.place, standing.job)
        warm_up(_WARMUP)
        connection.send(Joined(tcp_flows(standing.place.store_port)))
        while isinstance(told := _told(connection), request):
            connection.send(answer(told, standing.rank, standing.ranks))
        shutil.rmtree(standing.store.parent, ignore_errors=True)
        # An orderly exit would wait for a group whose other members may be gone.
        os._exit(1)


def _told(connection: Connection) -> object:
    """The launcher's next message; None if it is gone."""
    try:
        return connection.recv()
    except (EOFError, OSError):
        return None
