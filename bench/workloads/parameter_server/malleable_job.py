"""A job of asynchronous SGD whose workers join and leave while it runs: its processes, and their launcher."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench.workloads.job import RankError
from bench.workloads.launched_rank import (
    LaunchedRank,
    RankFailure,
    kill_ranks,
    launch_rank,
    received,
    store_directory,
    tell,
)
from bench.workloads.parameter_server.job import AsyncJob
from bench.workloads.parameter_server.launch import Applied
from bench.workloads.parameter_server.log import Update
from bench.workloads.place import RankPlace
from bench.workloads.rank import rank_process
from mltcp.core.errors import UsageError


@dataclass(frozen=True)
class Admit:
    """To the server: a worker is about to join; both meet at `file`."""

    worker: int
    file: Path


@dataclass(frozen=True)
class End:
    """To the server: the job is over."""


@dataclass(frozen=True)
class Join:
    """To a process that waits: it is worker `worker` of a job, and meets its server at `file`."""

    job: AsyncJob
    worker: int
    file: Path


@dataclass(frozen=True)
class Leave:
    """To a worker: leave after the present step."""


@dataclass(frozen=True)
class WorkerLost:
    """From the server: the connection to a worker broke, or the worker has not come."""

    worker: int
    cause: str


@dataclass(frozen=True)
class ServerEnded:
    """From the server: its workers are gone, and it exits.

    Attributes:
        cpu_s: the processor time that it used.
    """

    cpu_s: float


@dataclass(frozen=True)
class WorkerJoined:
    """From a worker: it has its first weights.

    Attributes:
        at_s: when they had arrived, CLOCK_MONOTONIC.
        congestion_controls: of its connections.
    """

    at_s: float
    congestion_controls: frozenset[str]


@dataclass(frozen=True)
class WorkerLeft:
    """From a worker: it has told the server that it leaves, or was told to stop, and exits.

    Attributes:
        steps: the gradients that it has sent.
        overruns: how many took longer than their slot.
        last_s: when its last step was over, CLOCK_MONOTONIC.
        cpu_s: the processor time that it used.
    """

    steps: int
    overruns: int
    last_s: float
    cpu_s: float


def open_server_main(connection: Connection, job: AsyncJob, place: RankPlace, directory: Path) -> None:
    """The main function of the server's process, which obeys `Admit` and `End`; see `rank_process`."""
    with rank_process(connection, place, directory):
        # Imported here, because the launcher imports this module too and needs no torch.
        from bench.workloads.group import configure_rank
        from bench.workloads.parameter_server.session import cpu_time, logged, met
        from bench.workloads.parameter_server.work import parameters_of, server_side
        from collectives.parameter_server.connection import SERVER_RANK
        from collectives.parameter_server.gradient_service import GradientService
        from collectives.parameter_server.server import ParameterServer

        configure_rank(place, job.name)
        side = server_side(job.work, slice(0, parameters_of(job.work)), 0)
        telling = threading.Lock()

        def say(message: object) -> None:
            with telling:
                connection.send(message)

        service = GradientService(
            side, job.updates, logged(side, lambda update: say(Applied(update))), late=False
        )
        server = ParameterServer(service, on_lost=lambda worker, cause: say(WorkerLost(worker, cause)))
        with cpu_time() as cpu_s:
            while isinstance(request := connection.recv(), Admit):
                server.admit(request.worker, partial(met, job, request.worker, request.file, SERVER_RANK))
            service.stop()
            server.wait(_LAST_WORKERS_S)
            server.end()
            say(ServerEnded(cpu_s()))


def open_worker_main(connection: Connection, place: RankPlace, directory: Path) -> None:
    """The main function of a worker's process: it waits for `Join`, and works until it is told to `Leave`.

    It ends as well when the server says stop; see `rank_process`.
    """
    with rank_process(connection, place, directory):
        request = connection.recv()
        assert isinstance(request, Join), request
        from bench.workloads.group import configure_rank
        from bench.workloads.job import tcp_flows
        from bench.workloads.parameter_server.session import TimedWorker, cpu_time, met
        from collectives.parameter_server.connection import WORKER_RANK

        job = request.job
        with cpu_time() as cpu_s:
            configure_rank(place, job.name)
            server = met(job, request.worker, request.file, WORKER_RANK)
            worker = TimedWorker(job, request.worker)
            worker.begin([server])
            controls = frozenset(flow.congestion_control for flow in tcp_flows())
            connection.send(WorkerJoined(time.monotonic(), controls))
            threading.Thread(target=_obey, args=(connection, worker.leave), daemon=True).start()
            steps, overruns = worker.run()
            connection.send(WorkerLeft(steps, overruns, time.monotonic(), cpu_s()))
            server.close()


def _obey(connection: Connection, leave: Callable[[], None]) -> None:
    """Leave when told to, or when the launcher is gone."""
    try:
        while not isinstance(connection.recv(), Leave):
            pass
    except (EOFError, OSError):
        pass
    leave()


MOST_JOINS = 4096
"""Of one job: the samples of a training are drawn by the number of the worker."""

_SERVER = 0
_LAST_WORKERS_S = 10.0
_END_S = 20.0


def check_malleable(job: AsyncJob) -> None:
    """Refuse a job that a server with changing workers cannot run.

    Raises:
        UsageError: it has several servers, or checkpoints.
    """
    if job.servers != 1:
        raise UsageError(f"job {job.name}: shares: expected one server, got {job.servers}")
    if job.checkpoints is not None:
        raise UsageError(
            f"job {job.name}: checkpoints: expected none, since the weights stay in the server, "
            f"got {job.checkpoints.directory}"
        )


@dataclass
class MalleableWorker:
    """A worker of a malleable job; times in CLOCK_MONOTONIC seconds.

    Attributes:
        number: unique in its job.
        rank: its process.
        launched_s: when it was told to join, or launched.
        joined: what it said when it had its first weights; None before.
        told_s: when it was told to leave; None: it was not.
        left: what it said when it left; None before.
        gone_s: when its process had ended; None before.
        death: how its process ended without leaving, and without the launcher's doing; None if it did not.
        killed: whether the launcher killed it, because the job was done.
    """

    number: int
    rank: LaunchedRank
    launched_s: float
    joined: WorkerJoined | None = None
    told_s: float | None = None
    left: WorkerLeft | None = None
    gone_s: float | None = None
    death: str | None = None
    killed: bool = False

    @property
    def join_s(self) -> float | None:
        """The cost of its join: until it has its first weights."""
        return None if self.joined is None else self.joined.at_s - self.launched_s

    @property
    def leave_s(self) -> float | None:
        """The cost of its leave beyond the step that it finished: from the end of that to the end of the process."""
        if self.left is None or self.gone_s is None or self.told_s is None:
            return None
        return self.gone_s - max(self.told_s, self.left.last_s)


@dataclass
class MalleableJob:
    """A job whose server runs from `launch` to `end`, and whose workers join and leave. Not thread-safe.

    Messages of its processes are taken by `take`; `collect` receives and takes those of one job.

    Attributes:
        job: its work, updates, name and backend; `workers` is the most that it has at a time.
        server_place: of the server.
        directory: a temporary directory that other jobs may use too.
        updates: in the order in which they were applied.
        workers: all that there have been.
        lost: the workers whose connection the server has lost, with the cause.
        server_cpu_s: the processor time of the server; None before its end.
    """

    job: AsyncJob
    server_place: RankPlace
    directory: Path
    updates: list[Update] = field(default_factory=list)
    workers: list[MalleableWorker] = field(default_factory=list)
    lost: dict[int, str] = field(default_factory=dict)
    server_cpu_s: float | None = None

    def __post_init__(self) -> None:
        check_malleable(self.job)
        self._numbers = itertools.count()
        self._server: LaunchedRank | None = None
        self._ending = False

    # -- what is asked of it -------------------------------------------------------------------------------------------

    def launch(self) -> None:
        """Start the server; workers may join at once."""
        arguments = (self.job, self.server_place, self.directory)
        self._server = launch_rank(open_server_main, 0, self.job.name, _SERVER, arguments)

    def join(self, place: RankPlace, waiting: LaunchedRank | None = None) -> MalleableWorker:
        """Start a worker, which joins as soon as it can.

        Args:
            place: of the worker.
            waiting: a process of `waiting_worker` there, which becomes the worker; None: one is started.

        Raises:
            UsageError: the job has had too many.
        """
        number = next(self._numbers)
        if number >= MOST_JOINS:
            raise UsageError(f"job {self.job.name}: joins: expected at most {MOST_JOINS}, got more")
        file = self.directory / f"{self.job.name}-worker-{number}"
        launched_s = time.monotonic()
        assert self._server is not None, "launched before"
        tell([self._server], Admit(number, file))
        process = waiting or waiting_worker(place, self.directory)
        rank = replace(process, job_name=self.job.name, number=1 + number)
        tell([rank], Join(self.job, number, file))
        worker = MalleableWorker(number, rank, launched_s)
        self.workers.append(worker)
        return worker

    def leave(self, worker: MalleableWorker) -> None:
        """Tell a worker to leave after its present step."""
        worker.told_s = time.monotonic()
        tell([worker.rank], Leave())

    def kill_workers(self) -> None:
        """Kill the workers that are there; the job is done, and their present steps are of no use."""
        for worker in self.present:
            worker.killed = True
            worker.rank.process.kill()

    def end(self) -> None:
        """Tell the server to end as soon as its workers are gone."""
        assert self._server is not None, "launched before"
        self._ending = True
        tell([self._server], End())

    def kill(self) -> None:
        """Kill and reap every process that still runs."""
        kill_ranks(self.ranks)

    # -- what becomes of it --------------------------------------------------------------------------------------------

    @property
    def present(self) -> list[MalleableWorker]:
        """The workers whose process runs."""
        return [worker for worker in self.workers if worker.gone_s is None]

    @property
    def done(self) -> bool:
        """Whether the job's updates have been applied."""
        return len(self.updates) >= self.job.updates

    @property
    def ended(self) -> bool:
        """Whether all of its processes have ended."""
        return self._server is None and not self.present

    @property
    def ranks(self) -> list[LaunchedRank]:
        """Its processes that run, whose messages are to be received."""
        server = [] if self._server is None else [self._server]
        return [*server, *(worker.rank for worker in self.present)]

    @property
    def server_pid(self) -> int:
        """The process of the server; 0 after its end."""
        return 0 if self._server is None else self._server.process.pid or 0

    def collect(self, timeout_s: float | None) -> bool:
        """Receive messages of its processes, and take them; returns whether there were any within the time.

        Raises:
            RankError: as `take`.
        """
        found = received(self.ranks, timeout_s)
        for rank, message in found:
            self.take(rank, message)
        return bool(found)

    def take(self, rank: LaunchedRank, message: Any) -> MalleableWorker | None:
        """Take a message of one of its processes; returns the worker whose process has ended with it, if one has.

        Raises:
            RankError: the server has died, or a process says why it cannot go on.
        """
        if rank is self._server:
            self._take_of_server(rank, message)
            return None
        worker = self.workers[rank.number - 1]
        if isinstance(message, WorkerJoined):
            worker.joined = message
        elif isinstance(message, WorkerLeft):
            worker.left = message
        else:
            assert isinstance(message, RankFailure)
            return self._take_end(worker, message)
        return None

    def _take_of_server(self, rank: LaunchedRank, message: Any) -> None:
        if isinstance(message, Applied):
            self.updates.append(message.update)
        elif isinstance(message, WorkerLost):
            self.lost[message.worker] = message.cause
        elif isinstance(message, ServerEnded):
            self.server_cpu_s = message.cpu_s
        else:
            assert isinstance(message, RankFailure)
            if self.server_cpu_s is None:
                raise message.error()
            self._server = None
            kill_ranks([rank])

    def _take_end(self, worker: MalleableWorker, failure: RankFailure) -> MalleableWorker:
        if failure.traceback is not None and not worker.killed and not self.done:
            raise failure.error()
        worker.gone_s = time.monotonic()
        if worker.left is None and not worker.killed and not self.done:
            worker.death = failure.cause
        kill_ranks([worker.rank])
        return worker


def collect_all(jobs: Iterable[MalleableJob], timeout_s: float | None) -> list[MalleableWorker]:
    """Receive messages of the processes of jobs, and take them; returns the workers whose process has ended.

    Raises:
        RankError: as `MalleableJob.take`.
    """
    owners = {rank: job for job in jobs for rank in job.ranks}
    taken = [owners[rank].take(rank, message) for rank, message in received(owners, timeout_s)]
    return [worker for worker in taken if worker is not None]


def waiting_worker(place: RankPlace, directory: Path) -> LaunchedRank:
    """A process in a place that waits for the job that it is to join: `MalleableJob.join` tells it."""
    return launch_rank(open_worker_main, 0, "none", 0, (place, directory))


@contextmanager
def malleable_job(job: AsyncJob, server_place: RankPlace) -> Iterator[MalleableJob]:
    """A job with its server; every process is killed and reaped at the end.

    Raises:
        UsageError: the job has several servers, or checkpoints.
    """
    with store_directory() as directory:
        running = MalleableJob(job, server_place, directory)
        try:
            running.launch()
            yield running
        finally:
            running.kill()


def run_to_end(running: MalleableJob) -> None:
    """Collect messages until the job is done, and let its processes end.

    Raises:
        RankError: a process failed, or does not end.
    """
    while not running.done:
        running.collect(None)
    running.end()
    deadline_s = time.monotonic() + _END_S
    while not running.ended:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise RankError(f"job {running.job.name}: its processes have not ended within {_END_S:g} s")
        running.collect(left_s)
