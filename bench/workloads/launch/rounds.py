"""Rounds of all-reduces: jobs whose ranks stay, any of which are told to all-reduce at the same moment."""

import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

from bench.workloads.flows import Flow
from bench.workloads.job import RankError
from bench.workloads.ranks.place import RankPlace
from bench.workloads.ranks.rank import Failed
from bench.workloads.ranks.rank_process import BLAME_GRACE_S, death, fork_server, kill_ranks, start_rank
from bench.workloads.ranks.round_rank import Answer, Joined, Message, Round, Took, round_rank_main
from mltcp.core.errors import MltcpError

# For every rank to have been told, and to have made its tensor, before the first one starts.
START_DELAY_S = 0.1


@dataclass(frozen=True)
class StandingJob:
    """A job's name, the places of its ranks, and the congestion control that their connections must have."""

    name: str
    places: tuple[RankPlace, ...]
    control: str


@dataclass(frozen=True)
class _Rank:
    """A rank as its launcher sees it."""

    job: int
    number: int
    process: ForkServerProcess
    connection: Connection


@contextmanager
def standing(jobs: Sequence[StandingJob]) -> Iterator["StandingJobs"]:
    """The jobs with all of their ranks ready; every process is killed and reaped at the end.

    Raises:
        RankError: a rank did not get ready.
        MltcpError: a connection has another address or congestion control than asked for.
    """
    directory = Path(tempfile.mkdtemp(prefix="mltcp-"))
    ready = StandingJobs(jobs)
    try:
        ready.launch(directory)
        yield ready
    finally:
        ready.kill()
        shutil.rmtree(directory, ignore_errors=True)


class StandingJobs:
    """Jobs whose ranks wait for rounds; made by `standing`."""

    def __init__(self, jobs: Sequence[StandingJob]) -> None:
        self._jobs = jobs
        self._ranks: list[_Rank] = []
        self._rounds = 0

    def launch(self, directory: Path) -> None:
        """Start all ranks, and return when all are in their groups."""
        context = fork_server()
        for position, job in enumerate(self._jobs):
            store = directory / f"store-{position}"
            for number in range(len(job.places)):
                self._ranks.append(_started(context, job, position, number, store))
        for rank, message in self._answers(self._ranks):
            if isinstance(message, Joined):
                _check_flows(self._jobs[rank.job], rank.number, message.flows)

    def tell(self, jobs: Sequence[int], size_bytes: int) -> float:
        """Tell these jobs (by position) to all-reduce `size_bytes` each; returns when, by CLOCK_MONOTONIC."""
        self._rounds += 1
        told = Round(self._rounds, size_bytes, time.monotonic() + START_DELAY_S)
        for rank in self._of(jobs):
            # A rank that is gone is noticed, with its cause, where its answer is read.
            with suppress(OSError):
                rank.connection.send(told)
        return told.start_s

    def times_s(self, jobs: Sequence[int]) -> list[float]:
        """How many seconds each of the jobs that were told took, from its first rank's start to its last one's end.

        Raises:
            RankError: a rank raised or died, or its sum was wrong.
        """
        times: dict[int, list[Took]] = {job: [] for job in jobs}
        for rank, message in self._answers(self._of(jobs)):
            if isinstance(message, Took):
                times[rank.job].append(message)
        return [_span_s(each) for each in times.values()]

    def kill(self) -> None:
        """Kill and reap every rank that is still there."""
        kill_ranks(self._ranks)

    def _of(self, jobs: Sequence[int]) -> list[_Rank]:
        return [rank for rank in self._ranks if rank.job in jobs]

    def _answers(self, ranks: Sequence[_Rank]) -> list[tuple[_Rank, Answer]]:
        """One message of each of these ranks; raises RankError as soon as one has failed."""
        found: list[tuple[_Rank, Answer]] = []
        waiting = list(ranks)
        while waiting:
            ready = wait([rank.connection for rank in waiting])
            for rank in [rank for rank in waiting if rank.connection in ready]:
                message = _received(rank)
                if isinstance(message, Failed):
                    raise self._error(rank, message)
                found.append((rank, message))
                waiting.remove(rank)
        return found

    def _error(self, rank: _Rank, failed: Failed) -> RankError:
        """A rank's failure as an error, unless another's death has caused it."""
        blamed = self._killed() or rank
        cause = failed.error if blamed is rank else death(blamed.process)
        error = RankError(f"job {self._jobs[blamed.job].name}, rank {blamed.number}: {cause}")
        if blamed is rank:
            error.add_note(failed.traceback)
        return error

    def _killed(self) -> _Rank | None:
        """A rank that a signal has killed, or does so within the time of grace."""
        deadline_s = time.monotonic() + BLAME_GRACE_S
        running = list(self._ranks)
        while running and (left_s := deadline_s - time.monotonic()) > 0:
            wait([rank.process.sentinel for rank in running], left_s)
            for rank in running:
                if (rank.process.exitcode or 0) < 0:
                    return rank
            running = [rank for rank in running if rank.process.exitcode is None]
        return None


def _started(context: ForkServerContext, job: StandingJob, position: int, number: int, store: Path) -> _Rank:
    arguments = (job.name, number, len(job.places), job.places[number], store)
    process, connection = start_rank(context, round_rank_main, arguments, f"{job.name}-{number}")
    return _Rank(position, number, process, connection)


def _span_s(times: Sequence[Took]) -> float:
    return max(took.end_s for took in times) - min(took.start_s for took in times)


def _received(rank: _Rank) -> Message:
    """The rank's next message; Failed, too, if it has gone without one."""
    try:
        message: Message = rank.connection.recv()
    except (EOFError, OSError):
        rank.process.join()
        return Failed(death(rank.process) or "gone", "")
    return message


def _check_flows(job: StandingJob, number: int, flows: Sequence[Flow]) -> None:
    """A job whose connections avoid the link, or run under another control, would measure nothing."""
    address = job.places[number].address
    for flow in flows:
        if flow.local[0] != address or flow.congestion_control != job.control:
            found = f"connected from {flow.local[0]} under {flow.congestion_control}"
            raise MltcpError(
                f"job {job.name}, rank {number}: {found}, not from {address} under {job.control}"
            )
