"""Runs an asynchronous job, one process a rank; a worker that dies leaves the others running, a server ends the job."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from bench.workloads.job import sleep_until
from bench.workloads.launched_rank import (
    LaunchedRank,
    RankFailure,
    blamed,
    gather,
    kill_ranks,
    launch_rank,
    received,
    store_directory,
    tell,
)
from bench.workloads.parameter_server.job import AsyncJob
from bench.workloads.parameter_server.log import Update
from bench.workloads.place import RankPlace
from bench.workloads.rank import RankReady, rank_process
from bench.workloads.rank_pool import let_exit
from mltcp.core.errors import UsageError
from mltcp.ebpf.congestion_controls import Controls
from mltcp.pacing.tcp_info import addresses, set_congestion_control, tcp_info, tcp_sockets

if TYPE_CHECKING:
    from bench.workloads.parameter_server.session import ServerResult, WorkerRankResult


_NUMBER_BYTES = 4
_PLAIN = "reno"


@dataclass(frozen=True)
class ConnectionJobs:
    """The jobs in the kernel to which a server's connections belong.

    Attributes:
        control: of the connections.
        numbers: the kernel's number of the job of each peer, by its address.
    """

    control: str
    numbers: tuple[tuple[str, int], ...]


def assign(jobs: ConnectionJobs) -> None:
    """Make every established connection to a peer of `jobs` a flow of that peer's job, under the jobs' control.

    Raises:
        MltcpError: no control of this project is loaded, or the kernel refuses.
    """
    numbers = dict(jobs.numbers)
    with Controls().shared_map("mltcp_tags") as tags:
        for descriptor in tcp_sockets():
            if tcp_info(descriptor) is None:
                continue
            try:
                _, (peer, _port) = addresses(descriptor)
            except OSError:
                continue  # it listens
            if peer in numbers:
                # Leaving the control takes the flow out of its present job's count.
                set_congestion_control(descriptor, _PLAIN)
                key = descriptor.to_bytes(_NUMBER_BYTES, "little")
                value = tags.lookup(key) or bytes(tags.value_size)
                tags.update(key, numbers[peer].to_bytes(_NUMBER_BYTES, "little") + value[_NUMBER_BYTES:])
                set_congestion_control(descriptor, jobs.control)


@dataclass(frozen=True)
class Applied:
    """Server 0 has applied a gradient."""

    update: Update


@dataclass(frozen=True)
class AsyncRankFinished:
    """The rank has finished; its connections stay open until it is told to exit."""

    result: ServerResult | WorkerRankResult


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
    with rank_process(connection, place, store.parent):
        # Imported here, because the launcher imports this module too and needs no torch.
        from bench.workloads.group import join_group
        from bench.workloads.parameter_server.session import Roles, run_server, run_worker

        join_group(store, rank, job.ranks, place, job.name, job.backend)
        if connection_jobs is not None:
            assign(connection_jobs)
        roles = Roles(tuple(range(job.servers)), tuple(range(job.servers, job.ranks)), one_clock=True)

        def tell_update(update: Update) -> None:
            if rank == 0:
                connection.send(Applied(update))

        def await_start() -> None:
            connection.send(RankReady())
            sleep_until(connection.recv())

        result: ServerResult | WorkerRankResult
        if rank < job.servers:
            connection.send(RankReady())
            result = run_server(job, roles, rank, tell_update)
        else:
            # A worker is ready when it has its first weights.
            result = run_worker(job, roles, rank, await_start)
        connection.send(AsyncRankFinished(result))
        # An early exit would close connections that other ranks still read from.
        connection.recv()


START_DELAY_S = 0.2


@dataclass(frozen=True)
class PlacedAsyncJob:
    """A job and the place of each of its ranks, servers first.

    Attributes:
        job: the job.
        places: one for each rank.
        connection_jobs: for each server, the kernel's jobs of its connections; empty: they are as the place has them.

    Raises:
        UsageError: there is not one place for each rank.
    """

    job: AsyncJob
    places: tuple[RankPlace, ...]
    connection_jobs: tuple[ConnectionJobs, ...] = ()

    def __post_init__(self) -> None:
        if len(self.places) != self.job.ranks:
            raise UsageError(f"job {self.job.name}: expected {self.job.ranks} places, got {len(self.places)}")


@dataclass(frozen=True)
class AsyncResult:
    """The results of a finished job.

    Attributes:
        servers: the log of each.
        workers: of each; None for one that died.
        lost: how each worker that died did so.
        started_s: when the workers were told to start, CLOCK_MONOTONIC.
    """

    servers: tuple[ServerResult, ...]
    workers: tuple[WorkerRankResult | None, ...]
    lost: dict[int, str]
    started_s: float

    @property
    def updates(self) -> tuple[Update, ...]:
        """The log of the leading server."""
        return self.servers[0].updates

    @property
    def congestion_controls(self) -> frozenset[str]:
        """The congestion controls of the connections between workers and servers, as the servers saw them."""
        return frozenset(flow.congestion_control for server in self.servers for flow in server.flows)


def run_async_job(
    placed: PlacedAsyncJob,
    offsets_s: Sequence[float] | None = None,
    on_update: Callable[[Update], None] | None = None,
) -> AsyncResult:
    """Run a job to its end; worker k starts `offsets_s[k]` after the first.

    Raises:
        RankError: a server died or raised, or all workers have died; no process is left.
    """
    with launched_async(placed) as running:
        running.start(offsets_s or [0.0] * placed.job.workers)
        return running.result(on_update or (lambda _: None))


@contextmanager
def launched_async(placed: PlacedAsyncJob) -> Iterator[RunningAsyncJob]:
    """The job with all workers ready to start; every process is killed and reaped at the end.

    Raises:
        RankError: a rank does not get ready.
    """
    with store_directory() as directory:
        running = RunningAsyncJob(placed)
        try:
            running.launch(directory)
            yield running
        finally:
            running.kill()


class RunningAsyncJob:
    """A job whose ranks are processes; made by `launched_async`."""

    def __init__(self, placed: PlacedAsyncJob) -> None:
        self._placed, self._job = placed, placed.job
        self._ranks: list[LaunchedRank] = []
        self._lost: dict[int, str] = {}
        self._started_s = 0.0

    @property
    def pids(self) -> tuple[int, ...]:
        """The process of each rank."""
        return tuple(rank.process.pid or 0 for rank in self._ranks)

    def launch(self, directory: Path) -> None:
        """Start all ranks, and return when all are ready."""
        jobs = self._placed.connection_jobs
        for number, place in enumerate(self._placed.places):
            given = jobs[number] if number < len(jobs) else None
            arguments = (self._job, number, place, directory / "store", given)
            self._ranks.append(launch_rank(async_rank_main, 0, self._job.name, number, arguments))
        gather(self._ranks)

    def start(self, offsets_s: Sequence[float]) -> None:
        """Tell every worker to start after a short delay plus its offset."""
        if len(offsets_s) != self._job.workers:
            raise UsageError(f"start offsets: expected {self._job.workers}, got {len(offsets_s)}")
        self._started_s = time.monotonic() + START_DELAY_S
        for rank, offset_s in zip(self._ranks[self._job.servers :], offsets_s, strict=True):
            tell([rank], self._started_s + offset_s)

    def result(self, on_update: Callable[[Update], None]) -> AsyncResult:
        """Pass updates on until all ranks have finished or died, then let them exit."""
        results: dict[int, ServerResult | WorkerRankResult] = {}
        servers = self._job.servers
        while left := [
            rank
            for rank in self._ranks
            if rank.number not in results and rank.number - servers not in self._lost
        ]:
            for rank, message in received(left, None):
                if isinstance(message, RankFailure):
                    self._on_failure(message)
                elif isinstance(message, Applied):
                    on_update(message.update)
                elif isinstance(message, AsyncRankFinished):
                    results[rank.number] = message.result
        let_exit([rank for rank in self._ranks if rank.number in results])
        return AsyncResult(
            tuple(results[number] for number in range(servers)),  # type: ignore[misc]
            tuple(results.get(number) for number in range(servers, self._job.ranks)),  # type: ignore[misc]
            dict(self._lost),
            self._started_s,
        )

    def kill(self) -> None:
        """Kill and reap every rank that still runs."""
        kill_ranks(self._ranks)

    def _on_failure(self, failure: RankFailure) -> None:
        """Note a dead worker; a dead server, or a worker that says why it cannot go on, ends the job."""
        worker = failure.rank.number - self._job.servers
        if worker >= 0 and failure.traceback is None:
            self._lost[worker] = failure.cause
            return
        # The deaths of workers end nothing but where all have died, which the server says itself.
        raise blamed(failure, self._ranks[: self._job.servers]).error()
