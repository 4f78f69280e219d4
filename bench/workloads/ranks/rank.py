"""The main function of a rank's process: it enters its place, joins its group, runs the job, and reports."""

import ctypes
import os
import resource
import shutil
import signal
import threading
from dataclasses import dataclass
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from pathlib import Path

from bench.workloads.flows import TcpFlow, tcp_flows
from bench.workloads.job import JobSpec, RankResult, TrainingOptions
from bench.workloads.loop import IterationCallback, IterationRecord, Workload, run_iterations, sleep_until
from bench.workloads.phases import PhasedWork
from bench.workloads.ranks.failure import failures_reported
from bench.workloads.ranks.place import RankPlace
from mltcp.core.errors import MltcpError

PR_SET_PDEATHSIG = 1


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
    with failures_reported(connection):
        # A network namespace belongs to a thread: enter it before there is a second thread.
        place.enter()
        die_with_launcher(store)
        _run_rank(connection, spec, rank, place, store)


def _run_rank(connection: Connection, spec: JobSpec, rank: int, place: RankPlace, store: Path) -> None:
    # Imported here, because the launcher imports this module too and needs no torch.
    from bench.workloads.ranks.group import join_group, warm_up

    join_group(store, rank, spec.ranks, place, spec.name)
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
        from bench.workloads.kinds.training import Training

        return Training(spec.work, rank, spec.ranks)
    if isinstance(spec.work, PhasedWork):
        from bench.workloads.kinds.phased_replay import PhasedReplay

        return PhasedReplay(spec.work, rank, spec.ranks)
    from bench.workloads.kinds.replay import Replay

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


def die_with_launcher(store: Path) -> None:
    """Let this process be killed when the fork server or the launcher ends, for whatever reason."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # The kernel's parent is the fork server, which outlives the launcher as long as a rank runs.
    threading.Thread(target=_await_launchers_end, args=(store,), daemon=True).start()


def _await_launchers_end(store: Path) -> None:
    launcher = parent_process()
    if launcher is not None:
        launcher.join()
        shutil.rmtree(store.parent, ignore_errors=True)
        os.kill(os.getpid(), signal.SIGKILL)
