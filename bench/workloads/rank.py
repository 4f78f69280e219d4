"""The process of a rank: how it reports, and the main functions of its kinds."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench.workloads.job import (
    IterationCallback,
    IterationRecord,
    JobSpec,
    PatternWork,
    RankResult,
    TcpFlow,
    TrainingOptions,
    Workload,
    run_iterations,
    sleep_until,
    tcp_flows,
)
from bench.workloads.model_work import ModelWork
from bench.workloads.phases import PhasedWork
from bench.workloads.place import RankPlace
from mltcp.core.errors import MltcpError
from mltcp.core.processes import end_with


@dataclass(frozen=True)
class RankFailed:
    """The rank raised: the error in one line, and its traceback."""

    error: str
    traceback: str


@dataclass(frozen=True)
class RankLost:
    """The host of a rank cannot be reached any more, or its agent has ended: the cause in one line."""

    cause: str


@contextmanager
def failures_reported(connection: Connection) -> Iterator[None]:
    """The frame of a rank's main function: any error is sent as RankFailed and ends the process with status 1.

    SIGINT is ignored: a terminal sends it to the whole process group, but the launcher ends the ranks.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    except BaseException as error:
        line = "".join(traceback.format_exception_only(error)).splitlines()[0]
        # The launcher may be gone.
        with suppress(OSError):
            connection.send(RankFailed(line, "".join(traceback.format_exception(error))))
        raise SystemExit(1) from None


@dataclass(frozen=True)
class RankReady:
    """The rank has joined its group and waits for the start time, in CLOCK_MONOTONIC seconds."""


@dataclass(frozen=True)
class RankProgress:
    """Rank 0 has finished an iteration."""

    iteration: int
    record: IterationRecord


@dataclass(frozen=True)
class RankFinished:
    """The rank has finished, and keeps its connections open until it is told to exit."""

    result: RankResult


RankMessage = RankReady | RankProgress | RankFinished


def rank_main(connection: Connection, spec: JobSpec, rank: int, place: RankPlace, store: Path) -> None:
    """The main function of a rank's process; `store` is the file at which its job's ranks meet.

    It sends RankReady, receives the start time, sends RankProgress (rank 0) and RankFinished, and exits when it
    receives another message. Any error is sent as RankFailed, and ends the process with exit status 1.
    """
    with rank_process(connection, place, store.parent):
        # Imported here, because the launcher imports this module too and needs no torch.
        from bench.workloads.group import join_group, warm_up

        join_group(store, rank, spec.ranks, place, spec.name, device=spec.device)
        workload = _workload(spec, rank)
        warm_up(spec.warmup)
        _check_addresses(place, tcp_flows(place.store_port))
        connection.send(RankReady())
        sleep_until(connection.recv())
        connection.send(RankFinished(_run(workload, spec, rank, place, _progress_to(connection, rank))))
        # An early exit would close connections that other ranks still read from.
        connection.recv()


def _progress_to(connection: Connection, rank: int) -> IterationCallback:
    def send(iteration: int, record: IterationRecord) -> None:
        if rank == 0:
            connection.send(RankProgress(iteration, record))

    return send


def _workload(spec: JobSpec, rank: int) -> Workload:
    if isinstance(spec.work, TrainingOptions):
        from bench.workloads.kinds import Training

        return Training(spec.work, rank, spec.ranks)
    if isinstance(spec.work, ModelWork):
        from bench.workloads.models.training import ModelTraining

        return ModelTraining(spec.work, rank, spec.ranks)
    if isinstance(spec.work, PhasedWork):
        from bench.workloads.kinds import PhasedReplay

        return PhasedReplay(spec.work, rank, spec.ranks)
    from bench.workloads.kinds import Replay

    return Replay(spec.work, rank, spec.ranks)


def _run(
    workload: Workload, spec: JobSpec, rank: int, place: RankPlace, on_iteration: IterationCallback
) -> RankResult:
    before = resource.getrusage(resource.RUSAGE_SELF)
    iterations = run_iterations(workload, spec.iterations, spec.hold_s, on_iteration)
    after = resource.getrusage(resource.RUSAGE_SELF)
    return RankResult(
        rank=rank,
        iterations=iterations,
        cpu_user_s=after.ru_utime - before.ru_utime,
        cpu_system_s=after.ru_stime - before.ru_stime,
        flows=tcp_flows(place.store_port),
        training=workload.outcome(),
    )


def _check_addresses(place: RankPlace, flows: tuple[TcpFlow, ...]) -> None:
    """Check that the connections use the link under test: else nothing is measured."""
    for flow in flows:
        if flow.local[0] != place.address:
            wanted = f"{place.address} on interface {place.interface}"
            raise MltcpError(f"Gloo's connection is bound to {flow.local[0]}, not to {wanted}")


@contextmanager
def rank_process(connection: Connection, place: RankPlace, directory: Path) -> Iterator[None]:
    """The frame of a rank's main function: the process enters its place, reports errors, and dies with its launcher.

    Args:
        connection: to the launcher; any error is sent as RankFailed, and ends the process with exit status 1.
        place: where it runs.
        directory: the temporary directory of the launcher, removed if the launcher dies.
    """
    with failures_reported(connection):
        # A network namespace belongs to a thread: enter it before there is a second thread.
        place.enter()
        end_with(os.getppid())
        # The kernel's parent is the fork server, which outlives the launcher as long as a rank runs.
        threading.Thread(target=_await_launchers_end, args=(directory,), daemon=True).start()
        yield


def _await_launchers_end(directory: Path) -> None:
    launcher = parent_process()
    if launcher is not None:
        launcher.join()
        shutil.rmtree(directory, ignore_errors=True)
        os.kill(os.getpid(), signal.SIGKILL)


_WARMUP = 3


@dataclass(frozen=True)
class Joined:
    """The rank has joined its group, over these connections, and waits for requests."""

    flows: tuple[TcpFlow, ...]


@dataclass(frozen=True)
class Standing:
    """Where a rank that stays belongs.

    Attributes:
        job: its name.
        rank: its number.
        ranks: of the job.
        place: where its process runs.
        store: the file at which its job's ranks meet.
    """

    job: str
    rank: int
    ranks: int
    place: RankPlace
    store: Path


def stand(
    connection: Connection, standing: Standing, request: type, answer: Callable[[Any, int, int], object]
) -> None:
    """Send Joined, then an answer to each request, until the process is killed or the launcher is gone.

    Any error is sent as RankFailed, and ends the process with exit status 1.

    Args:
        connection: to the launcher.
        standing: of the rank.
        request: the type of the requests.
        answer: to a request, of this rank of so many.
    """
    with failures_reported(connection):
        # A network namespace belongs to a thread: enter it before there is a second thread.
        standing.place.enter()
        # Imported here, because the launcher imports this module too and needs no torch.
        from bench.workloads.group import join_group, warm_up

        join_group(standing.store, standing.rank, standing.ranks, standing.place, standing.job)
        warm_up(_WARMUP)
        connection.send(Joined(tcp_flows(standing.place.store_port)))
        while isinstance(received := _next_request(connection), request):
            connection.send(answer(received, standing.rank, standing.ranks))
        shutil.rmtree(standing.store.parent, ignore_errors=True)
        # An orderly exit would wait for a group whose other members may be gone.
        os._exit(1)


def _next_request(connection: Connection) -> object:
    """The launcher's next message; None if it is gone."""
    try:
        return connection.recv()
    except (EOFError, OSError):
        return None


@dataclass(frozen=True)
class RoundRequest:
    """A request to all-reduce `size_bytes` (a multiple of 4) at `start_s` (CLOCK_MONOTONIC); `number` varies data."""

    number: int
    size_bytes: int
    start_s: float


@dataclass(frozen=True)
class RoundTime:
    """The beginning and the end of the rank's all-reduce, in CLOCK_MONOTONIC seconds."""

    start_s: float
    end_s: float


def round_rank_main(connection: Connection, standing: Standing) -> None:
    """The main function of the rank's process: it answers every RoundRequest by a RoundTime."""
    stand(connection, standing, RoundRequest, _all_reduce)


def _all_reduce(request: RoundRequest, rank: int, ranks: int) -> RoundTime:
    """Run and time one all-reduce, without filling and checking the tensor; WrongDataError if the sum is wrong."""
    import torch
    import torch.distributed as dist

    from bench.workloads.kinds import check_sum, contribution

    tensor = torch.full((request.size_bytes // 4,), float(contribution(rank, request.number, 0)))
    sleep_until(request.start_s)
    start_s = time.monotonic()
    dist.all_reduce(tensor)
    end_s = time.monotonic()
    check_sum(tensor, ranks, request.number, 0)
    return RoundTime(start_s, end_s)


@dataclass(frozen=True)
class PatternRequest:
    """A request to run iterations from `start_s` on; the last one is the first that begins at `until_s` or later."""

    work: PatternWork
    start_s: float
    until_s: float


@dataclass(frozen=True)
class PatternTimes:
    """The beginning and the end of each iteration of a rank, in CLOCK_MONOTONIC seconds."""

    iterations: tuple[tuple[float, float], ...]


def pattern_rank_main(connection: Connection, standing: Standing) -> None:
    """The main function of the rank's process: it answers every PatternRequest by PatternTimes."""
    stand(connection, standing, PatternRequest, _iterate)


def _iterate(request: PatternRequest, rank: int, ranks: int) -> PatternTimes:
    # Imported here, because the launcher imports this module too and needs no torch.
    from bench.workloads.kinds import exchange_of, iterate

    exchange = exchange_of(request.work, rank, ranks)
    sleep_until(request.start_s)
    found, was_last = [], False
    while not was_last:
        begin_s, end_s, was_last = iterate(exchange, time.monotonic() >= request.until_s)
        found.append((begin_s, end_s))
    return PatternTimes(tuple(found))
