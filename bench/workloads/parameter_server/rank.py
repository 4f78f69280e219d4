"""The main function of a rank of an asynchronous job: it enters its place, joins its group, works, and reports."""

from __future__ import annotations

from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from bench.workloads.job import sleep_until
from bench.workloads.parameter_server.connection_jobs import ConnectionJobs, assign
from bench.workloads.parameter_server.job import AsyncJob
from bench.workloads.parameter_server.update import Update
from bench.workloads.place import RankPlace
from bench.workloads.rank import die_with_launcher, failures_reported

if TYPE_CHECKING:
    from bench.workloads.parameter_server.session import ServerResult, WorkerRankResult


@dataclass(frozen=True)
class AsyncRankReady:
    """The rank has joined its group, and a worker has its first weights; workers wait for the start time."""


@dataclass(frozen=True)
class Applied:
    """Server 0 has applied a gradient."""

    update: Update


@dataclass(frozen=True)
class AsyncRankFinished:
    """The rank has finished; its connections stay open until it is told to exit."""

    result: ServerResult | WorkerRankResult


AsyncRankMessage = AsyncRankReady | Applied | AsyncRankFinished


def async_rank_main(
    connection: Connection,
    job: AsyncJob,
    rank: int,
    place: RankPlace,
    store: Path,
    connection_jobs: ConnectionJobs | None,
) -> None:
    """The main function of the rank's process; `store` is the file at which its job's ranks meet.

    Any error is sent as RankFailed, and ends the process with exit status 1.
    """
    with failures_reported(connection):
        # A network namespace belongs to a thread: enter it before there is a second thread.
        place.enter()
        die_with_launcher(store)
        _run_rank(connection, job, rank, place, store, connection_jobs)


def _run_rank(
    connection: Connection,
    job: AsyncJob,
    rank: int,
    place: RankPlace,
    store: Path,
    connection_jobs: ConnectionJobs | None,
) -> None:
    # Imported here, because the launcher imports this module too and needs no torch.
    from bench.workloads.group import join_group
    from bench.workloads.parameter_server.session import Roles, run_server, run_worker

    join_group(store, rank, job.ranks, place, job.name, job.backend)
    if connection_jobs is not None:
        assign(connection_jobs)
    roles = Roles(tuple(range(job.servers)), tuple(range(job.servers, job.ranks)), one_clock=True)

    def await_start() -> None:
        connection.send(AsyncRankReady())
        sleep_until(connection.recv())

    result: ServerResult | WorkerRankResult
    if rank < job.servers:
        connection.send(AsyncRankReady())
        result = run_server(job, roles, rank, lambda update: _tell(connection, rank, update))
    else:
        result = run_worker(job, roles, rank, await_start)
    connection.send(AsyncRankFinished(result))
    # An early exit would close connections that other ranks still read from.
    connection.recv()


def _tell(connection: Connection, rank: int, update: Update) -> None:
    if rank == 0:
        connection.send(Applied(update))
