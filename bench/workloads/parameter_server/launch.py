"""Runs an asynchronous job, one process a rank; a worker that dies leaves the others running, a server ends the job."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.workloads.launched_rank import (
    LaunchedRank,
    RankFailure,
    kill_ranks,
    launch_rank,
    received,
    store_directory,
    tell,
)
from bench.workloads.parameter_server.connection_jobs import ConnectionJobs
from bench.workloads.parameter_server.job import AsyncJob
from bench.workloads.parameter_server.rank import (
    Applied,
    AsyncRankFinished,
    AsyncRankMessage,
    AsyncRankReady,
    async_rank_main,
)
from bench.workloads.parameter_server.update import Update
from bench.workloads.place import RankPlace
from bench.workloads.rank_pool import let_exit
from mltcp.core.errors import UsageError

if TYPE_CHECKING:
    from bench.workloads.parameter_server.session import ServerResult, WorkerRankResult

START_DELAY_S = 0.2
_LAST_WORDS_S = 15.0


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
        waiting = set(self._ranks)
        while waiting:
            for rank, message in received(waiting, None):
                if isinstance(message, RankFailure):
                    raise message.error()
                waiting.discard(rank)

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
        while left := self._left(results):
            for rank, message in received(left, None):
                if isinstance(message, RankFailure):
                    self._on_failure(message)
                else:
                    self._on_message(rank, message, results, on_update)
        let_exit([rank for rank in self._ranks if rank.number in results])
        servers = self._job.servers
        return AsyncResult(
            tuple(results[number] for number in range(servers)),  # type: ignore[misc]
            tuple(results.get(number) for number in range(servers, self._job.ranks)),  # type: ignore[misc]
            dict(self._lost),
            self._started_s,
        )

    def kill(self) -> None:
        """Kill and reap every rank that still runs."""
        kill_ranks(self._ranks)

    def _left(self, results: dict[int, ServerResult | WorkerRankResult]) -> list[LaunchedRank]:
        gone = {self._job.servers + worker for worker in self._lost}
        return [rank for rank in self._ranks if rank.number not in results and rank.number not in gone]

    def _on_message(
        self,
        rank: LaunchedRank,
        message: AsyncRankMessage,
        results: dict[int, ServerResult | WorkerRankResult],
        on_update: Callable[[Update], None],
    ) -> None:
        if isinstance(message, Applied):
            on_update(message.update)
        elif isinstance(message, AsyncRankFinished):
            results[rank.number] = message.result
        else:
            assert isinstance(message, AsyncRankReady)

    def _on_failure(self, failure: RankFailure) -> None:
        """Note a dead worker; a dead server, or a worker that says why it cannot go on, ends the job."""
        worker = failure.rank.number - self._job.servers
        if worker >= 0 and failure.traceback is None:
            self._lost[worker] = failure.cause
            return
        raise self._last_words(failure).error()

    def _last_words(self, first: RankFailure) -> RankFailure:
        """The failure to report: of the servers first, with what the workers say of its checkpoint."""
        failures = [first]
        deadline_s = time.monotonic() + _LAST_WORDS_S
        while (left_s := deadline_s - time.monotonic()) > 0:
            failed = {failure.rank.number for failure in failures} | {
                self._job.servers + worker for worker in self._lost
            }
            rest = [rank for rank in self._ranks if rank.number not in failed]
            messages = received(rest, left_s) if rest else []
            failures += [message for _, message in messages if isinstance(message, RankFailure)]
            if not messages:
                break
        servers = [failure for failure in failures if failure.rank.number < self._job.servers]
        said = [failure for failure in failures if failure.traceback is not None]
        died = [failure for failure in servers if failure.traceback is None]
        saved = [failure for failure in said if "its weights after" in failure.cause]
        if died and saved:
            cause = f"{died[0].cause}; {saved[-1].cause.partition('; ')[2]}"
            return RankFailure(died[0].rank, cause, None)
        return (died or servers or said)[0]
