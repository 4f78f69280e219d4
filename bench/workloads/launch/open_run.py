"""A run that jobs join and leave while it goes on: each starts when its own ranks are ready, and ends by itself."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from bench.workloads.job import JobResult, JobSpec, RankResult
from bench.workloads.launch.launch import (
    Failure,
    LaunchedRank,
    PlacedJob,
    blamed,
    job_result,
    launch_rank,
    received,
)
from bench.workloads.loop import IterationRecord
from bench.workloads.ranks.rank import Finished, Message, Progress, Ready
from bench.workloads.ranks.rank_process import fork_server, kill_ranks

START_DELAY_S = 0.05
_LEAVE_GRACE_S = 5.0


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
    directory = Path(tempfile.mkdtemp(prefix="mltcp-"))
    run = OpenRun(directory)
    try:
        yield run
    finally:
        run.kill()
        shutil.rmtree(directory, ignore_errors=True)


@dataclass
class _Member:
    """A job of the run."""

    spec: JobSpec
    ranks: list[LaunchedRank]
    ready: set[int] = field(default_factory=set)
    results: dict[tuple[int, int], RankResult] = field(default_factory=dict)


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

    def start(self, job: int, placed: PlacedJob) -> None:
        """Start the processes of a job; it begins to iterate when all are ready.

        Raises:
            ValueError: a job of that number runs.
        """
        if job in self._members:
            raise ValueError(f"job {job} runs already")
        # A store of its own each time: what a killed job left in one would confuse the next.
        store = self._directory / f"store-{self._launched}"
        self._launched += 1
        member = self._members[job] = _Member(placed.spec, [])
        for number, place in enumerate(placed.places):
            member.ranks.append(launch_rank(fork_server(), job, placed.spec, number, place, store))

    def stop(self, job: int) -> None:
        """Kill the processes of a job."""
        kill_ranks(self._members.pop(job).ranks)

    def events(self, timeout_s: float) -> list[Event]:
        """What happens within the time, as soon as something does; nothing may.

        Raises:
            RankError: a rank raised or died.
            WrongDataError: the ranks of a training ended with different parameters.
        """
        ranks = [
            rank
            for member in self._members.values()
            for rank in member.ranks
            if not self._is_done(member, rank)
        ]
        if not ranks:
            time.sleep(max(0.0, timeout_s))
            return []
        found: list[Event] = []
        for rank, message in received(ranks, max(0.0, timeout_s)):
            if isinstance(message, Failure):
                raise blamed(message, self._members[rank.job].ranks).error()
            found += self._handled(rank, message)
        return found

    def kill(self) -> None:
        """Kill the processes of all jobs."""
        for job in list(self._members):
            self.stop(job)

    def _is_done(self, member: _Member, rank: LaunchedRank) -> bool:
        return (0, rank.number) in member.results

    def _handled(self, rank: LaunchedRank, message: Message) -> list[Event]:
        member = self._members[rank.job]
        if isinstance(message, Progress):
            return [Iterated(rank.job, message.iteration, message.record)]
        if isinstance(message, Ready):
            member.ready.add(rank.number)
            if len(member.ready) == len(member.ranks):
                _tell(member, time.monotonic() + START_DELAY_S)
        elif isinstance(message, Finished):
            member.results[0, rank.number] = message.result
            if len(member.results) == len(member.ranks):
                return [self._ended(rank.job)]
        return []

    def _ended(self, job: int) -> Ended:
        member = self._members[job]
        _tell(member, None)
        deadline_s = time.monotonic() + _LEAVE_GRACE_S
        for rank in member.ranks:
            rank.process.join(max(0.0, deadline_s - time.monotonic()))
        self.stop(job)
        return Ended(job, job_result(0, member.spec, member.results))


def _tell(member: _Member, message: float | None) -> None:
    for rank in member.ranks:
        # A rank that is gone is noticed, with its cause, where its messages are read.
        with suppress(OSError):
            rank.connection.send(message)
