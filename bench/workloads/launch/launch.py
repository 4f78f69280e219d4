"""Runs jobs that start together or staggered, one process per rank; no process is left when a run ends."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.workloads.job import JobResult, JobSpec, RankResult, WrongDataError
from bench.workloads.launch.launched_rank import (
    LaunchedRank,
    RankFailure,
    RankLauncher,
    blamed,
    join_ranks,
    kill_ranks,
    launch_rank,
    received,
    store_directory,
    tell,
)
from bench.workloads.loop import IterationRecord
from bench.workloads.ranks.place import RankPlace
from bench.workloads.ranks.rank import RankFinished, RankMessage, RankProgress, RankReady, rank_main
from mltcp.core.errors import UsageError

START_DELAY_S = 0.2
_LEAVE_GRACE_S = 5.0

ProgressCallback = Callable[[JobSpec, int, IterationRecord], None]


@dataclass(frozen=True)
class PlacedJob:
    """A job and the place of each of its ranks. Raises UsageError unless there is one place per rank."""

    spec: JobSpec
    places: tuple[RankPlace, ...]

    def __post_init__(self) -> None:
        if len(self.places) != self.spec.ranks:
            raise UsageError(
                f"job {self.spec.name}: expected {self.spec.ranks} places, got {len(self.places)}"
            )

    def launch(
        self, number: int, store: Path, launcher: RankLauncher = launch_rank
    ) -> Iterator[LaunchedRank]:
        """Start the job's ranks, which meet at the file `store`; `number` is the launcher's number of the job."""
        for rank, place in enumerate(self.places):
            yield launcher(rank_main, number, self.spec.name, rank, (self.spec, rank, place, store))


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
def launched(jobs: Sequence[PlacedJob], launcher: RankLauncher = launch_rank) -> Iterator["RunningJobs"]:
    """The jobs with all of their ranks ready to start; every process is killed and reaped at the end.

    `launcher` starts the ranks, on this machine by default.

    Raises RankError if a rank does not get ready.
    """
    with store_directory() as directory:
        running = RunningJobs(jobs, launcher)
        try:
            running.launch(directory)
            yield running
        finally:
            running.kill()


class RunningJobs:
    """Jobs whose ranks are processes; made by `launched`."""

    def __init__(self, jobs: Sequence[PlacedJob], launcher: RankLauncher = launch_rank) -> None:
        self._jobs, self._launcher = jobs, launcher
        self._ranks: list[LaunchedRank] = []

    @property
    def pids(self) -> dict[tuple[int, int], int]:
        """The process of each rank, by the job's position and the rank's number."""
        return {(rank.job, rank.number): rank.process.pid or 0 for rank in self._ranks}

    def launch(self, directory: Path) -> None:
        """Start all ranks, and return when all are ready."""
        for position, job in enumerate(self._jobs):
            self._ranks.extend(job.launch(position, directory / f"store-{position}", self._launcher))
        waiting = set(self._ranks)
        for rank, message in self._messages():
            if isinstance(message, RankReady):
                waiting.discard(rank)
            if not waiting:
                return

    def start(self, offsets_s: Sequence[float]) -> None:
        """Tell every rank to start after a short delay plus its job's offset."""
        if len(offsets_s) != len(self._jobs):
            raise UsageError(
                f"start offsets: expected one for each of {len(self._jobs)} jobs, got {len(offsets_s)}"
            )
        start_s = time.monotonic() + START_DELAY_S
        for rank in self._ranks:
            tell([rank], start_s + offsets_s[rank.job])

    def results(self, on_iteration: ProgressCallback) -> list[JobResult]:
        """Pass progress on until all ranks have finished, then let them exit."""
        results: dict[tuple[int, int], RankResult] = {}
        for rank, message in self._messages():
            if isinstance(message, RankProgress):
                on_iteration(self._jobs[rank.job].spec, message.iteration, message.record)
            elif isinstance(message, RankFinished):
                results[rank.job, rank.number] = message.result
            if len(results) == len(self._ranks):
                break
        let_exit(self._ranks)
        return [job_result(position, job.spec, results) for position, job in enumerate(self._jobs)]

    def kill(self) -> None:
        """Kill and reap every rank that still runs."""
        kill_ranks(self._ranks)

    def _messages(self) -> Iterator[tuple[LaunchedRank, RankMessage]]:
        """The ranks' messages, without end; raises RankError as soon as one has failed."""
        while True:
            for rank, message in received(self._ranks, None):
                if isinstance(message, RankFailure):
                    raise blamed(message, self._ranks).error()
                yield rank, message


def let_exit(ranks: Sequence[LaunchedRank]) -> None:
    """Tell finished ranks to exit, and wait a few seconds until they have."""
    tell(ranks, None)
    join_ranks(ranks, _LEAVE_GRACE_S)


def job_result(position: int, spec: JobSpec, results: dict[tuple[int, int], RankResult]) -> JobResult:
    """The result of a job from those of its ranks; raises WrongDataError if they trained different parameters."""
    ranks = tuple(results[position, number] for number in range(spec.ranks))
    checksums = {rank.training.parameters_sha256 for rank in ranks if rank.training}
    if len(checksums) > 1:
        raise WrongDataError(
            f"job {spec.name}: its ranks have trained {len(checksums)} different sets of parameters"
        )
    return JobResult(spec.name, position, ranks)
