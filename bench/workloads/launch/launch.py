"""Launching jobs: one process a rank, started together or staggered, watched, and never left behind."""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

from bench.workloads.job import JobResult, JobSpec, RankError, RankResult, WrongDataError
from bench.workloads.loop import IterationRecord
from bench.workloads.ranks.place import RankPlace
from bench.workloads.ranks.rank import Failed, Finished, Message, Progress, Ready, rank_main
from bench.workloads.ranks.rank_process import BLAME_GRACE_S, death, fork_server, kill_ranks, start_rank
from mltcp.core.errors import UsageError

START_DELAY_S = 0.2
_LEAVE_GRACE_S = 5.0

ProgressCallback = Callable[[JobSpec, int, IterationRecord], None]


@dataclass(frozen=True)
class PlacedJob:
    """A job and the place of each of its ranks. Raises UsageError unless there is one place a rank."""

    spec: JobSpec
    places: tuple[RankPlace, ...]

    def __post_init__(self) -> None:
        if len(self.places) != self.spec.ranks:
            raise UsageError(f"job {self.spec.name}: {len(self.places)} places for {self.spec.ranks} ranks")


def run_jobs(
    jobs: Sequence[PlacedJob],
    start_offsets_s: Sequence[float] | None = None,
    on_iteration: ProgressCallback | None = None,
) -> list[JobResult]:
    """Run the jobs side by side and return their results, in the same order.

    All ranks start when the last one is ready, each job later by its offset. `on_iteration` is called with
    the job, the iteration's number and its record as rank 0 finishes it. Raises RankError if a rank raises or
    dies, and WrongDataError if the ranks of a training end with different parameters; no process is left in
    any case.
    """
    with launched(jobs) as running:
        running.start(start_offsets_s or [0.0] * len(jobs))
        return running.results(on_iteration or (lambda *_: None))


@contextmanager
def launched(jobs: Sequence[PlacedJob]) -> Iterator["RunningJobs"]:
    """The jobs with all of their ranks ready to start; every process is killed and reaped at the end.

    Raises RankError if a rank does not get ready.
    """
    directory = Path(tempfile.mkdtemp(prefix="mltcp-"))
    running = RunningJobs(jobs)
    try:
        running.launch(directory)
        yield running
    finally:
        running.kill()
        shutil.rmtree(directory, ignore_errors=True)


@dataclass
class LaunchedRank:
    """A rank as its launcher sees it."""

    job: int
    spec: JobSpec
    number: int
    process: ForkServerProcess
    connection: Connection


@dataclass(frozen=True)
class Failure:
    """A rank that raised (with a traceback) or died (without)."""

    rank: LaunchedRank
    cause: str
    traceback: str | None

    def error(self) -> RankError:
        """As an error that names the job and the rank."""
        error = RankError(f"job {self.rank.spec.name}, rank {self.rank.number}: {self.cause}")
        if self.traceback is not None:
            error.add_note(self.traceback)
        return error


class RunningJobs:
    """Jobs whose ranks are processes; made by `launched`."""

    def __init__(self, jobs: Sequence[PlacedJob]) -> None:
        self._jobs = jobs
        self._ranks: list[LaunchedRank] = []

    @property
    def pids(self) -> dict[tuple[int, int], int]:
        """The process of each rank, by the job's position and the rank's number."""
        return {(rank.job, rank.number): rank.process.pid or 0 for rank in self._ranks}

    def launch(self, directory: Path) -> None:
        """Start all ranks, and return when all are ready."""
        context = fork_server()
        for position, job in enumerate(self._jobs):
            store = directory / f"store-{position}"
            for number, place in enumerate(job.places):
                self._ranks.append(launch_rank(context, position, job.spec, number, place, store))
        waiting = set(map(id, self._ranks))
        for rank, message in self._messages():
            if isinstance(message, Ready):
                waiting.discard(id(rank))
            if not waiting:
                return

    def start(self, offsets_s: Sequence[float]) -> None:
        """Tell every rank when to start: soon, and later by its job's offset."""
        if len(offsets_s) != len(self._jobs):
            raise UsageError(f"{len(offsets_s)} start offsets for {len(self._jobs)} jobs")
        start_s = time.monotonic() + START_DELAY_S
        for rank in self._ranks:
            self._send(rank, start_s + offsets_s[rank.job])

    def results(self, on_iteration: ProgressCallback) -> list[JobResult]:
        """Pass progress on until all ranks are done; then let them leave."""
        results: dict[tuple[int, int], RankResult] = {}
        for rank, message in self._messages():
            if isinstance(message, Progress):
                on_iteration(rank.spec, message.iteration, message.record)
            elif isinstance(message, Finished):
                results[rank.job, rank.number] = message.result
            if len(results) == len(self._ranks):
                break
        self._let_leave()
        return [job_result(position, job.spec, results) for position, job in enumerate(self._jobs)]

    def kill(self) -> None:
        """Kill and reap every rank that is still there."""
        kill_ranks(self._ranks)

    def _let_leave(self) -> None:
        for rank in self._ranks:
            self._send(rank, None)
        deadline_s = time.monotonic() + _LEAVE_GRACE_S
        for rank in self._ranks:
            rank.process.join(max(0.0, deadline_s - time.monotonic()))

    def _send(self, rank: LaunchedRank, message: float | None) -> None:
        # A rank that is gone is noticed, with its cause, where its messages are read.
        with suppress(OSError):
            rank.connection.send(message)

    def _messages(self) -> Iterator[tuple[LaunchedRank, Message]]:
        """What the ranks send, without end; raises RankError as soon as one has failed."""
        while True:
            for rank, message in received(self._ranks, None):
                if isinstance(message, Failure):
                    raise blamed(message, self._ranks).error()
                yield rank, message


def blamed(first: Failure, ranks: Sequence[LaunchedRank]) -> Failure:
    """The failure that caused the others: a death if there is one, or else the first error."""
    failures = [first]
    deadline_s = time.monotonic() + BLAME_GRACE_S
    while failures[-1].traceback is not None and (left_s := deadline_s - time.monotonic()) > 0:
        others = [rank for rank in ranks if rank not in [failure.rank for failure in failures]]
        messages = received(others, left_s)
        failures += [message for _, message in messages if isinstance(message, Failure)]
    return next((failure for failure in failures if failure.traceback is None), first)


def received(
    ranks: Iterable[LaunchedRank], timeout_s: float | None
) -> list[tuple[LaunchedRank, Message | Failure]]:
    """One message of each rank that has sent one, or has gone, within the time."""
    by_connection = {rank.connection: rank for rank in ranks}
    ready = wait(list(by_connection), timeout_s)
    senders = [rank for connection, rank in by_connection.items() if connection in ready]
    return [(rank, _receive(rank)) for rank in senders]


def _receive(rank: LaunchedRank) -> Message | Failure:
    try:
        message: Message = rank.connection.recv()
    except (EOFError, OSError):
        rank.process.join()
        return Failure(rank, death(rank.process) or "gone", None)
    return Failure(rank, message.error, message.traceback) if isinstance(message, Failed) else message


def launch_rank(
    context: ForkServerContext, job: int, spec: JobSpec, number: int, place: RankPlace, store: Path
) -> LaunchedRank:
    """Start the process of a rank."""
    process, connection = start_rank(
        context, rank_main, (spec, number, place, store), f"{spec.name}-{number}"
    )
    return LaunchedRank(job, spec, number, process, connection)


def job_result(position: int, spec: JobSpec, results: dict[tuple[int, int], RankResult]) -> JobResult:
    """What a job's ranks come to together; raises WrongDataError if they have trained different parameters."""
    ranks = tuple(results[position, number] for number in range(spec.ranks))
    checksums = {rank.training.parameters_sha256 for rank in ranks if rank.training}
    if len(checksums) > 1:
        raise WrongDataError(
            f"job {spec.name}: its ranks have trained {len(checksums)} different sets of parameters"
        )
    return JobResult(spec.name, position, ranks)
