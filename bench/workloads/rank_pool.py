"""Pools of ranks, one process each: jobs that iterate to their end, and jobs whose ranks answer requests.

No process is left when a pool ends, however it ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias

from bench.workloads.job import IterationRecord, JobResult, JobSpec, RankResult, TcpFlow, WrongDataError
from bench.workloads.launched_rank import (
    LaunchedRank,
    RankFailure,
    RankLauncher,
    blamed,
    gather,
    join_ranks,
    kill_ranks,
    launch_rank,
    received,
    store_directory,
    tell,
)
from bench.workloads.place import RankPlace
from bench.workloads.rank import (
    Joined,
    RankFinished,
    RankMessage,
    RankProgress,
    RankReady,
    RoundRequest,
    RoundTime,
    Standing,
    rank_main,
    round_rank_main,
)
from mltcp.core.errors import MltcpError, UsageError

START_DELAY_S = 0.2
"""Of jobs that start together."""

_JOIN_DELAY_S = 0.05
"""Of a job that joins others that run."""

# Long enough for every rank to receive the request and to fill its tensor before the first one starts.
_ROUND_DELAY_S = 0.1
_LEAVE_GRACE_S = 5.0

ProgressCallback = Callable[[JobSpec, int, IterationRecord], None]

# -- jobs that iterate to their end ------------------------------------------------------------------------------------


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
        running.begin(start_offsets_s or [0.0] * len(jobs))
        return running.results(on_iteration or (lambda *_: None))


@contextmanager
def launched(jobs: Sequence[PlacedJob], launcher: RankLauncher = launch_rank) -> Iterator[RankPool]:
    """The jobs, by their positions, with all of their ranks ready to begin.

    `launcher` starts the ranks, on this machine by default.

    Raises RankError if a rank does not get ready.
    """
    with rank_pool() as pool:
        for position, job in enumerate(jobs):
            pool.launch(position, job, launcher)
        gather(pool.ranks)
        yield pool


@contextmanager
def rank_pool() -> Iterator[RankPool]:
    """A pool without jobs yet; every process that is left is killed and reaped at the end."""
    with store_directory() as directory:
        pool = RankPool(directory)
        try:
            yield pool
        finally:
            pool.kill()


@dataclass
class _Member:
    """A job of a pool."""

    spec: JobSpec
    ranks: list[LaunchedRank] = field(default_factory=list)
    ready: set[int] = field(default_factory=set)
    results: dict[int, RankResult] = field(default_factory=dict)

    @property
    def unfinished(self) -> list[LaunchedRank]:
        return [rank for rank in self.ranks if rank.number not in self.results]

    def result(self, position: int) -> JobResult:
        """The result; raises WrongDataError if the ranks have trained different parameters."""
        ranks = tuple(self.results[number] for number in range(self.spec.ranks))
        checksums = {rank.training.parameters_sha256 for rank in ranks if rank.training}
        if len(checksums) > 1:
            raise WrongDataError(
                f"job {self.spec.name}: its ranks have trained {len(checksums)} different sets of parameters"
            )
        return JobResult(self.spec.name, position, ranks)


class RankPool:
    """Jobs whose ranks are processes, by numbers of the caller's; made by `rank_pool` and `launched`.

    Either all jobs begin together (`launch`, `begin`, `results`), or each begins when its own ranks are ready, and
    leaves as soon as it has finished (`launch`, `events`).
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._members: dict[int, _Member] = {}
        self._launched = 0

    @property
    def ranks(self) -> list[LaunchedRank]:
        """The ranks of all jobs."""
        return [rank for member in self._members.values() for rank in member.ranks]

    @property
    def pids(self) -> dict[tuple[int, int], int]:
        """The process of each rank, by the numbers of its job and of the rank."""
        return {(rank.job, rank.number): rank.process.pid or 0 for rank in self.ranks}

    def launch(self, job: int, placed: PlacedJob, launcher: RankLauncher = launch_rank) -> None:
        """Start the processes of a job, which begins by `begin`, or as soon as all are ready, which `events` notices.

        Raises:
            ValueError: a job of that number runs.
        """
        if job in self._members:
            raise ValueError(f"job {job} runs already")
        # A new store each time: the remains of a killed job's store would confuse the next job.
        store, self._launched = self._directory / f"store-{self._launched}", self._launched + 1
        member = self._members[job] = _Member(placed.spec)
        for number, place in enumerate(placed.places):
            arguments = (placed.spec, number, place, store)
            member.ranks.append(launcher(rank_main, job, placed.spec.name, number, arguments))

    def begin(self, offsets_s: Sequence[float]) -> None:
        """Tell the ranks of all jobs to begin after a short delay plus their job's offset."""
        if len(offsets_s) != len(self._members):
            raise UsageError(
                f"start offsets: expected one for each of {len(self._members)} jobs, got {len(offsets_s)}"
            )
        start_s = time.monotonic() + START_DELAY_S
        for member, offset_s in zip(self._members.values(), offsets_s, strict=True):
            tell(member.ranks, start_s + offset_s)

    def results(self, on_iteration: ProgressCallback) -> list[JobResult]:
        """Pass progress on until all ranks have finished, then let them exit."""
        while any(member.unfinished for member in self._members.values()):
            for rank, message in self._messages(None):
                member = self._members[rank.job]
                if isinstance(message, RankProgress):
                    on_iteration(member.spec, message.iteration, message.record)
                elif isinstance(message, RankFinished):
                    member.results[rank.number] = message.result
        let_exit(self.ranks)
        return [member.result(position) for position, member in enumerate(self._members.values())]

    def events(self, timeout_s: float) -> list[Event]:
        """The events up to and including the first ones within the time; none if nothing happens.

        Raises:
            RankError: a rank raised or died.
            WrongDataError: the ranks of a training ended with different parameters.
        """
        if not self._members:
            time.sleep(max(0.0, timeout_s))
            return []
        return [
            event
            for rank, message in self._messages(max(0.0, timeout_s))
            if (event := self._taken(rank, message)) is not None
        ]

    def stop(self, job: int) -> None:
        """Kill the processes of a job."""
        kill_ranks(self._members.pop(job).ranks)

    def kill(self) -> None:
        """Kill the processes of all jobs."""
        for job in list(self._members):
            self.stop(job)

    def _messages(self, timeout_s: float | None) -> Iterator[tuple[LaunchedRank, RankMessage]]:
        """The messages of ranks that have not finished; raises RankError if one has failed."""
        unfinished = [rank for member in self._members.values() for rank in member.unfinished]
        for rank, message in received(unfinished, timeout_s):
            if isinstance(message, RankFailure):
                raise blamed(message, self._members[rank.job].ranks).error()
            yield rank, message

    def _taken(self, rank: LaunchedRank, message: RankMessage) -> Event | None:
        member = self._members[rank.job]
        if isinstance(message, RankProgress):
            return Iterated(rank.job, message.iteration, message.record)
        if isinstance(message, RankReady):
            member.ready.add(rank.number)
            if len(member.ready) == len(member.ranks):
                tell(member.ranks, time.monotonic() + _JOIN_DELAY_S)
        elif isinstance(message, RankFinished):
            member.results[rank.number] = message.result
            if not member.unfinished:
                let_exit(member.ranks)
                self.stop(rank.job)
                return Ended(rank.job, member.result(0))
        return None


def let_exit(ranks: Sequence[LaunchedRank]) -> None:
    """Tell finished ranks to exit, and wait a few seconds until they have."""
    tell(ranks, None)
    join_ranks(ranks, _LEAVE_GRACE_S)


# -- jobs whose ranks answer requests ----------------------------------------------------------------------------------

RankMain = Callable[[Connection, Standing], None]
"""The main function of a rank; it sends Joined first."""


@dataclass(frozen=True)
class StandingJob:
    """A job's name, the places of its ranks, and the congestion control that their connections must have."""

    name: str
    places: tuple[RankPlace, ...]
    control: str


@contextmanager
def standing_ranks(
    jobs: Sequence[StandingJob], main: RankMain, launcher: RankLauncher = launch_rank
) -> Iterator[StandingRanks]:
    """The jobs with all of their ranks ready; every process is killed and reaped at the end.

    `launcher` starts the ranks, on this machine by default.

    Raises:
        RankError: a rank did not get ready.
        MltcpError: a connection has another address or congestion control than asked for.
    """
    with store_directory() as directory:
        ready = StandingRanks(jobs, main, launcher)
        try:
            ready.launch(directory)
            yield ready
        finally:
            ready.kill()


class StandingRanks:
    """Jobs whose ranks wait for requests; made by `standing_ranks`."""

    def __init__(
        self, jobs: Sequence[StandingJob], main: RankMain, launcher: RankLauncher = launch_rank
    ) -> None:
        self._jobs, self._main, self._launcher = jobs, main, launcher
        self._ranks: list[LaunchedRank] = []

    def launch(self, directory: Path) -> None:
        """Start all ranks, and return when all are in their groups."""
        for position, job in enumerate(self._jobs):
            store = directory / f"store-{position}"
            for number, place in enumerate(job.places):
                standing = Standing(job.name, number, len(job.places), place, store)
                self._ranks.append(self._launcher(self._main, position, job.name, number, (standing,)))
        for rank, message in self.answers(range(len(self._jobs))):
            if isinstance(message, Joined):
                _check_flows(self._jobs[rank.job], rank.number, message.flows)

    def tell(self, jobs: Sequence[int], message: object) -> None:
        """Send a request to all ranks of these jobs (by position)."""
        tell(self._of(jobs), message)

    def answers(self, jobs: Sequence[int]) -> list[tuple[LaunchedRank, Any]]:
        """One message of each rank of these jobs.

        Raises:
            RankError: a rank raised or died.
        """
        return gather(self._of(jobs))

    def kill(self) -> None:
        """Kill and reap every rank that still runs."""
        kill_ranks(self._ranks)

    def _of(self, jobs: Sequence[int]) -> list[LaunchedRank]:
        return [rank for rank in self._ranks if rank.job in jobs]


def _check_flows(job: StandingJob, number: int, flows: Sequence[TcpFlow]) -> None:
    """Check that the job's connections cross the link under its congestion control: else nothing is measured."""
    address = job.places[number].address
    for flow in flows:
        if flow.local[0] != address or flow.congestion_control != job.control:
            found = f"connected from {flow.local[0]} under {flow.congestion_control}"
            raise MltcpError(
                f"job {job.name}, rank {number}: {found}, not from {address} under {job.control}"
            )


@contextmanager
def standing(jobs: Sequence[StandingJob], launcher: RankLauncher = launch_rank) -> Iterator[StandingJobs]:
    """The jobs with all of their ranks ready; every process is killed and reaped at the end.

    `launcher` starts the ranks, on this machine by default.

    Raises:
        RankError: a rank did not get ready.
        MltcpError: a connection has another address or congestion control than asked for.
    """
    with standing_ranks(jobs, round_rank_main, launcher) as ranks:
        yield StandingJobs(ranks)


class StandingJobs:
    """Jobs whose ranks wait for rounds; made by `standing`."""

    def __init__(self, ranks: StandingRanks) -> None:
        self._ranks = ranks
        self._rounds = 0

    def tell(self, jobs: Sequence[int], size_bytes: int) -> float:
        """Tell these jobs (by position) to all-reduce `size_bytes` each; returns when, by CLOCK_MONOTONIC."""
        self._rounds += 1
        request = RoundRequest(self._rounds, size_bytes, time.monotonic() + _ROUND_DELAY_S)
        self._ranks.tell(jobs, request)
        return request.start_s

    def times_s(self, jobs: Sequence[int]) -> list[float]:
        """The seconds that each of the told jobs took, from its first rank's start to its last rank's end.

        Raises:
            RankError: a rank raised or died, or its sum was wrong.
        """
        times: dict[int, list[RoundTime]] = {job: [] for job in jobs}
        for rank, message in self._ranks.answers(jobs):
            if isinstance(message, RoundTime):
                times[rank.job].append(message)
        return [_span_s(each) for each in times.values()]


def _span_s(times: Sequence[RoundTime]) -> float:
    return max(each.end_s for each in times) - min(each.start_s for each in times)
