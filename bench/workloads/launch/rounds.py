"""Rounds of all-reduces: jobs whose ranks stay, any of which can be told to all-reduce at the same moment."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.workloads.flows import TcpFlow
from bench.workloads.launch.launched_rank import (
    LaunchedRank,
    RankFailure,
    blamed,
    kill_ranks,
    launch_rank,
    received,
    store_directory,
    tell,
)
from bench.workloads.ranks.place import RankPlace
from bench.workloads.ranks.round_rank import (
    RoundJoined,
    RoundMessage,
    RoundRequest,
    RoundTime,
    round_rank_main,
)
from mltcp.core.errors import MltcpError

# Long enough for every rank to receive the request and to fill its tensor before the first one starts.
START_DELAY_S = 0.1


@dataclass(frozen=True)
class StandingJob:
    """A job's name, the places of its ranks, and the congestion control that their connections must have."""

    name: str
    places: tuple[RankPlace, ...]
    control: str


@contextmanager
def standing(jobs: Sequence[StandingJob]) -> Iterator["StandingJobs"]:
    """The jobs with all of their ranks ready; every process is killed and reaped at the end.

    Raises:
        RankError: a rank did not get ready.
        MltcpError: a connection has another address or congestion control than asked for.
    """
    with store_directory() as directory:
        ready = StandingJobs(jobs)
        try:
            ready.launch(directory)
            yield ready
        finally:
            ready.kill()


class StandingJobs:
    """Jobs whose ranks wait for rounds; made by `standing`."""

    def __init__(self, jobs: Sequence[StandingJob]) -> None:
        self._jobs = jobs
        self._ranks: list[LaunchedRank] = []
        self._rounds = 0

    def launch(self, directory: Path) -> None:
        """Start all ranks, and return when all are in their groups."""
        for position, job in enumerate(self._jobs):
            store = directory / f"store-{position}"
            for number, place in enumerate(job.places):
                arguments = (job.name, number, len(job.places), place, store)
                self._ranks.append(launch_rank(round_rank_main, position, job.name, number, arguments))
        for rank, message in self._answers(self._ranks):
            if isinstance(message, RoundJoined):
                _check_flows(self._jobs[rank.job], rank.number, message.flows)

    def tell(self, jobs: Sequence[int], size_bytes: int) -> float:
        """Tell these jobs (by position) to all-reduce `size_bytes` each; returns when, by CLOCK_MONOTONIC."""
        self._rounds += 1
        request = RoundRequest(self._rounds, size_bytes, time.monotonic() + START_DELAY_S)
        tell(self._of(jobs), request)
        return request.start_s

    def times_s(self, jobs: Sequence[int]) -> list[float]:
        """The seconds that each of the told jobs took, from its first rank's start to its last rank's end.

        Raises:
            RankError: a rank raised or died, or its sum was wrong.
        """
        times: dict[int, list[RoundTime]] = {job: [] for job in jobs}
        for rank, message in self._answers(self._of(jobs)):
            if isinstance(message, RoundTime):
                times[rank.job].append(message)
        return [_span_s(each) for each in times.values()]

    def kill(self) -> None:
        """Kill and reap every rank that still runs."""
        kill_ranks(self._ranks)

    def _of(self, jobs: Sequence[int]) -> list[LaunchedRank]:
        return [rank for rank in self._ranks if rank.job in jobs]

    def _answers(self, ranks: Sequence[LaunchedRank]) -> list[tuple[LaunchedRank, RoundMessage]]:
        """One message of each of these ranks; raises RankError as soon as one has failed."""
        found: list[tuple[LaunchedRank, RoundMessage]] = []
        waiting = set(ranks)
        while waiting:
            for rank, message in received(waiting, None):
                if isinstance(message, RankFailure):
                    raise blamed(message, self._ranks).error()
                found.append((rank, message))
                waiting.remove(rank)
        return found


def _span_s(times: Sequence[RoundTime]) -> float:
    return max(each.end_s for each in times) - min(each.start_s for each in times)


def _check_flows(job: StandingJob, number: int, flows: Sequence[TcpFlow]) -> None:
    """Check that the job's connections cross the link under its congestion control: else nothing is measured."""
    address = job.places[number].address
    for flow in flows:
        if flow.local[0] != address or flow.congestion_control != job.control:
            found = f"connected from {flow.local[0]} under {flow.congestion_control}"
            raise MltcpError(
                f"job {job.name}, rank {number}: {found}, not from {address} under {job.control}"
            )
