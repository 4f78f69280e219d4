"""Rounds of all-reduces: jobs whose ranks stay, any of which can be told to all-reduce at the same moment."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from bench.workloads.launch.launched_rank import RankLauncher, launch_rank
from bench.workloads.launch.standing import StandingJob, StandingRanks, standing_ranks
from bench.workloads.ranks.round_rank import RoundRequest, RoundTime, round_rank_main

# Long enough for every rank to receive the request and to fill its tensor before the first one starts.
START_DELAY_S = 0.1


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
        request = RoundRequest(self._rounds, size_bytes, time.monotonic() + START_DELAY_S)
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
