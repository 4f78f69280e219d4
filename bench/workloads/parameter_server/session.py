"""One rank of an asynchronous job, from its process group to its result: a server or a worker."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from bench.workloads.job import TcpFlow, tcp_flows
from bench.workloads.parameter_server.channel import RankChannel
from bench.workloads.parameter_server.checkpoint import ServerCheckpoints
from bench.workloads.parameter_server.gradient_service import GradientService, OnUpdate
from bench.workloads.parameter_server.job import AsyncJob, slices
from bench.workloads.parameter_server.server import ParameterServer
from bench.workloads.parameter_server.update import Update
from bench.workloads.parameter_server.work import parameters_of, server_side, worker_side
from bench.workloads.parameter_server.worker import ServerLostError, Worker
from mltcp.core.errors import MltcpError, UsageError
from mltcp.core.signals import stop_signals

SERVER, WORKER = "server", "worker"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_RESCUE_WAIT_S = 5.0


@dataclass(frozen=True)
class Roles:
    """The ranks of the servers and of the workers, and whether all share one clock."""

    servers: tuple[int, ...]
    workers: tuple[int, ...]
    one_clock: bool


@dataclass(frozen=True)
class ServerResult:
    """A server's log, the workers that have died (with the cause), its connections and its CPU time."""

    updates: tuple[Update, ...]
    lost: dict[int, str]
    flows: tuple[TcpFlow, ...]
    cpu_s: float


@dataclass(frozen=True)
class WorkerRankResult:
    """A worker's steps, those that overran their slot, its connections and its CPU time."""

    steps: int
    overruns: int
    flows: tuple[TcpFlow, ...]
    cpu_s: float


def agree_on_roles(store: dist.Store, rank: int, ranks: int, role: str) -> Roles:
    """Tell the other ranks this rank's role, and learn theirs.

    Raises:
        UsageError: there is no server, or no worker.
    """
    store.set(f"mltcp/roles/{rank}", json.dumps([role, _BOOT_ID.read_text()]))
    said = [json.loads(store.get(f"mltcp/roles/{each}")) for each in range(ranks)]
    servers = tuple(each for each, (name, _) in enumerate(said) if name == SERVER)
    workers = tuple(each for each, (name, _) in enumerate(said) if name == WORKER)
    if not servers or not workers:
        raise UsageError(
            f"roles: expected one or more servers and workers, got {len(servers)} and {len(workers)}"
        )
    return Roles(servers, workers, len({boot for _, boot in said}) == 1)


def run_server(job: AsyncJob, roles: Roles, rank: int, on_update: OnUpdate) -> ServerResult:
    """Serve until the job is done; SIGTERM and SIGINT end the job earlier. A training goes on from its checkpoint.

    Raises:
        MltcpError: all workers have died, a gradient was wrong, or a checkpoint could not be read or written.
    """
    number = roles.servers.index(rank)
    part = slices(parameters_of(job.work), job.shares)[number]
    elements = part.stop - part.start
    side = server_side(job.work, part, number)
    log: list[Update] = []

    def on_each(update: Update) -> None:
        log.append(update)
        on_update(update)

    with _checkpoints(job, number, elements) as checkpoints, cpu_time() as cpu_s:
        found = checkpoints.newest() if checkpoints is not None else None
        if found is not None:
            side.load(found[1])
        service = GradientService(
            side,
            elements,
            job.updates if number == 0 else None,
            on_each,
            found[0] if found is not None else 0,
        )
        server = ParameterServer(
            service,
            [RankChannel(each) for each in roles.workers],
            checkpoints,
            job.checkpoints.every_s if job.checkpoints else 1.0,
        )
        with stop_signals(lambda _: server.stop()):
            server.serve()
        return ServerResult(tuple(log), server.lost, tcp_flows(), cpu_s())


def run_worker(job: AsyncJob, roles: Roles, rank: int, await_start: Callable[[], None]) -> WorkerRankResult:
    """Receive the first weights, wait for the start, and work until told to stop; SIGTERM makes it leave before.

    Raises:
        MltcpError: a server has died (the weights received last are in its checkpoints), or weights were wrong.
    """
    number = roles.workers.index(rank)
    parts = slices(parameters_of(job.work), job.shares)
    servers = [RankChannel(each) for each in roles.servers]
    worker = Worker(worker_side(job.work, number), servers, parts)
    try:
        worker.receive_first()
        await_start()
        with stop_signals(lambda _: worker.leave()), cpu_time() as cpu_s:
            steps, overruns = worker.run()
            return WorkerRankResult(steps, overruns, tcp_flows(), cpu_s())
    except ServerLostError as error:
        saved = _rescued(job, worker, error.server)
        raise MltcpError(f"{error}; {saved}") from None


@contextmanager
def _checkpoints(job: AsyncJob, server: int, elements: int) -> Iterator[ServerCheckpoints | None]:
    if job.checkpoints is None:
        yield None
        return
    checkpoints = ServerCheckpoints(job, server, elements)
    checkpoints.lock()
    try:
        yield checkpoints
    finally:
        checkpoints.release()


def _rescued(job: AsyncJob, worker: Worker, server: int) -> str:
    """Save the weights that a dead server has sent last; returns what became of them."""
    if job.checkpoints is None:
        return "no checkpoint was asked for"
    for number, version, weights in worker.held():
        if number == server:
            checkpoints = ServerCheckpoints(job, server, weights.numel())
            if checkpoints.rescue(version, weights, _RESCUE_WAIT_S) is not None:
                return f"its weights after {version} updates are in {checkpoints.path}"
            return f"a newer checkpoint than update {version} is in {checkpoints.path}"
    return "it had sent no weights"


@contextmanager
def cpu_time() -> Iterator[Callable[[], float]]:
    """The processor time of this process, user and system, since the context was entered."""
    before = resource.getrusage(resource.RUSAGE_SELF)

    def used_s() -> float:
        now = resource.getrusage(resource.RUSAGE_SELF)
        return now.ru_utime - before.ru_utime + now.ru_stime - before.ru_stime

    yield used_s
