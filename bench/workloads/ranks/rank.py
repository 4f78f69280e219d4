"""A rank as a process: it goes to its place, joins its group, runs the job, and reports to the launcher."""

import ctypes
import os
import resource
import shutil
import signal
import threading
import traceback
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from pathlib import Path

from bench.workloads.flows import Flow, tcp_flows
from bench.workloads.job import JobSpec, RankResult, TrainingOptions
from bench.workloads.loop import IterationCallback, IterationRecord, Workload, run_iterations, sleep_until
from bench.workloads.phases import PhasedWork
from bench.workloads.ranks.place import RankPlace
from mltcp.core.errors import MltcpError

PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Ready:
    """The rank is in its group and waits for the start time, in CLOCK_MONOTONIC seconds."""


@dataclass(frozen=True)
class Progress:
    """Rank 0 has finished an iteration."""

    iteration: int
    record: IterationRecord


@dataclass(frozen=True)
class Finished:
    """The rank is done, and keeps its connections until it is told to leave."""

    result: RankResult


@dataclass(frozen=True)
class Failed:
    """The rank raised: one line, and the traceback for whoever must find the fault."""

    error: str
    traceback: str


Message = Ready | Progress | Finished | Failed


def rank_main(connection: Connection, spec: JobSpec, rank: int, place: RankPlace, store: Path) -> None:
    """The life of a rank's process; `store` is the file at which its job's ranks meet.

    It sends Ready, expects the start time, sends Progress (rank 0) and Finished, and leaves when it is told
    so. Any error is sent as Failed, and ends the process with exit status 1.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        # The namespace belongs to a thread: enter it before there is a second one.
        place.enter()
        _die_with_the_launcher(store)
        _take_part(connection, spec, rank, place, store)
    except BaseException as error:
        _report_failure(connection, error)
        raise SystemExit(1) from None


def _take_part(connection: Connection, spec: JobSpec, rank: int, place: RankPlace, store: Path) -> None:
    # Imported here, as the launcher imports this module too and needs no torch.
    from bench.workloads.ranks.group import join_group, warm_up

    join_group(store, rank, spec.ranks, place, spec.name)
    workload = _workload(spec, rank)
    warm_up(spec.warmup)
    _check_addresses(place, tcp_flows())
    connection.send(Ready())
    sleep_until(connection.recv())
    connection.send(Finished(_run(workload, spec, rank, _progress_to(connection, rank))))
    # An early end would close connections that others still read from.
    connection.recv()


def _progress_to(connection: Connection, rank: int) -> IterationCallback:
    def send(iteration: int, record: IterationRecord) -> None:
        if rank == 0:
            connection.send(Progress(iteration, record))

    return send


def _workload(spec: JobSpec, rank: int) -> Workload:
    if isinstance(spec.work, TrainingOptions):
        from bench.workloads.kinds.training import Training

        return Training(spec.work, rank, spec.ranks)
    if isinstance(spec.work, PhasedWork):
        from bench.workloads.kinds.phased_replay import PhasedReplay

        return PhasedReplay(spec.work, rank, spec.ranks)
    from bench.workloads.kinds.replay import Replay

    return Replay(spec.work, rank, spec.ranks)


def _run(workload: Workload, spec: JobSpec, rank: int, on_iteration: IterationCallback) -> RankResult:
    before = resource.getrusage(resource.RUSAGE_SELF)
    iterations = run_iterations(workload, spec.iterations, spec.hold_s, on_iteration)
    after = resource.getrusage(resource.RUSAGE_SELF)
    return RankResult(
        rank=rank,
        iterations=iterations,
        cpu_user_s=after.ru_utime - before.ru_utime,
        cpu_system_s=after.ru_stime - before.ru_stime,
        flows=tcp_flows(),
        training=workload.outcome(),
    )


def _check_addresses(place: RankPlace, flows: tuple[Flow, ...]) -> None:
    """A job whose connections avoid the link under test would measure nothing."""
    for flow in flows:
        if flow.local[0] != place.address:
            wanted = f"{place.address} on interface {place.interface}"
            raise MltcpError(f"Gloo's connection is bound to {flow.local[0]}, not to {wanted}")


def _die_with_the_launcher(store: Path) -> None:
    """See to it that this process ends when the fork server or the launcher is gone, however they went."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # The launcher is not the parent in the kernel's sense; the fork server is, and it outlives the launcher
    # as long as a rank does.
    threading.Thread(target=_await_the_launchers_end, args=(store,), daemon=True).start()


def _await_the_launchers_end(store: Path) -> None:
    launcher = parent_process()
    if launcher is not None:
        launcher.join()
        shutil.rmtree(store.parent, ignore_errors=True)
        os.kill(os.getpid(), signal.SIGKILL)


def _report_failure(connection: Connection, error: BaseException) -> None:
    line = "".join(traceback.format_exception_only(error)).splitlines()[0]
    # Where the launcher is gone, nobody is left to tell.
    with suppress(OSError):
        connection.send(Failed(line, "".join(traceback.format_exception(error))))
