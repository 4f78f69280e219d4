"""Jobs whose ranks stay, and answer what they are told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench.workloads.flows import TcpFlow
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
from bench.workloads.ranks.place import RankPlace
from bench.workloads.ranks.standing_rank import Joined, Standing
from mltcp.core.errors import MltcpError

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
    """Jobs whose ranks wait to be told something; made by `standing_ranks`."""

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
        """Tell all ranks of these jobs (by position)."""
        tell(self._of(jobs), message)

    def answers(self, jobs: Sequence[int]) -> list[tuple[LaunchedRank, Any]]:
        """One message of each rank of these jobs.

        Raises:
            RankError: a rank raised or died.
        """
        found: list[tuple[LaunchedRank, Any]] = []
        waiting = set(self._of(jobs))
        while waiting:
            for rank, message in received(waiting, None):
                if isinstance(message, RankFailure):
                    raise blamed(message, self._ranks).error()
                found.append((rank, message))
                waiting.remove(rank)
        return found

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
