"""A run that jobs join and leave while it goes on: each starts when its own ranks are ready, and ends by itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from bench.workloads.job import JobResult, JobSpec, RankResult
from bench.workloads.launch.launch import PlacedJob, job_result, let_exit
from bench.workloads.launch.launched_rank import (
    LaunchedRank,
    RankFailure,
    RankLauncher,
    blamed,
    kill_ranks,
    launch_rank,
    received,
    store_directory,
    tell,
)
from bench.workloads.loop import IterationRecord
from bench.workloads.ranks.rank import RankFinished, RankMessage, RankProgress, RankReady

START_DELAY_S = 0.05


@dataclass(frozen=True)
class Iterated:
    """A job has finished an iteration."""

    job: int
    iteration: int
    record: IterationRecord


@dataclass(frozen=True)
class Ended:
    """A job has finished its last iteration, and its processes are gone."""

    job: int
    result: JobResult


Event: TypeAlias = Iterated | Ended


@contextmanager
def open_run() -> Iterator[OpenRun]:
    """A run without jobs yet; every process that is left is killed and reaped at the end."""
    with store_directory() as directory:
        run = OpenRun(directory)
        try:
            yield run
        finally:
            run.kill()


@dataclass
class _Member:
    """A job of the run."""

    spec: JobSpec
    ranks: list[LaunchedRank]
    ready: set[int] = field(default_factory=set)
    results: dict[tuple[int, int], RankResult] = field(default_factory=dict)

    def unfinished(self) -> list[LaunchedRank]:
        return [rank for rank in self.ranks if (0, rank.number) not in self.results]


class OpenRun:
    """Jobs whose ranks are processes, by numbers of the caller's; made by `open_run`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._members: dict[int, _Member] = {}
        self._launched = 0

    @property
    def jobs(self) -> tuple[int, ...]:
        """The jobs that run."""
        return tuple(self._members)

    def start(self, job: int, placed: PlacedJob, launcher: RankLauncher = launch_rank) -> None:
        """Start the processes of a job, on this machine by default; it begins to iterate when all are ready.

        Raises:
            ValueError: a job of that number runs.
        """
        if job in self._members:
            raise ValueError(f"job {job} runs already")
        # A new store each time: the remains of a killed job's store would confuse the next job.
        store = self._directory / f"store-{self._launched}"
        self._launched += 1
        member = self._members[job] = _Member(placed.spec, [])
        member.ranks.extend(placed.launch(job, store, launcher))

    def stop(self, job: int) -> None:
        """Kill the processes of a job."""
        kill_ranks(self._members.pop(job).ranks)

    def events(self, timeout_s: float) -> list[Event]:
        """The events up to and including the first ones within the time; none if nothing happens.

        Raises:
            RankError: a rank raised or died.
            WrongDataError: the ranks of a training ended with different parameters.
        """
        ranks = [rank for member in self._members.values() for rank in member.unfinished()]
        if not ranks:
            time.sleep(max(0.0, timeout_s))
            return []
        found: list[Event] = []
        for rank, message in received(ranks, max(0.0, timeout_s)):
            if isinstance(message, RankFailure):
                raise blamed(message, self._members[rank.job].ranks).error()
            found += self._handled(rank, message)
        return found

    def kill(self) -> None:
        """Kill the processes of all jobs."""
        for job in list(self._members):
            self.stop(job)

    def _handled(self, rank: LaunchedRank, message: RankMessage) -> list[Event]:
        member = self._members[rank.job]
        if isinstance(message, RankProgress):
            return [Iterated(rank.job, message.iteration, message.record)]
        if isinstance(message, RankReady):
            member.ready.add(rank.number)
            if len(member.ready) == len(member.ranks):
                tell(member.ranks, time.monotonic() + START_DELAY_S)
        elif isinstance(message, RankFinished):
            member.results[0, rank.number] = message.result
            if not member.unfinished():
                return [self._ended(rank.job)]
        return []

    def _ended(self, job: int) -> Ended:
        member = self._members[job]
        let_exit(member.ranks)
        self.stop(job)
        return Ended(job, job_result(0, member.spec, member.results))
