"""One rank of an asynchronous job, from its process group to its result: a server or a worker."""

from __future__ import annotations

import json
import resource
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from torch import Tensor

from bench.workloads.group import TIMEOUT
from bench.workloads.job import TcpFlow, tcp_flows
from bench.workloads.parameter_server.job import AsyncJob, TrainWork, slices
from bench.workloads.parameter_server.log import Update
from bench.workloads.parameter_server.work import (
    ServerSide,
    WorkerSide,
    fill_slot,
    floats,
    parameters_of,
    payload_bytes,
    server_side,
    worker_side,
)
from collectives.parameter_server.connection import SERVER_RANK, Channel, connect
from collectives.parameter_server.durable_state import ServerCheckpoints
from collectives.parameter_server.gradient_service import GradientService, Progress
from collectives.parameter_server.gradient_service import Update as AppliedGradient
from collectives.parameter_server.messages import GradientHeader, MessageKind
from collectives.parameter_server.served_module import ServedModule
from collectives.parameter_server.server import ParameterServer
from collectives.parameter_server.worker import ServerLink, exchange
from mltcp.core.errors import MltcpError, UsageError
from mltcp.core.signals import stop_signals


class RankChannel:
    """The channel to a rank of the default group; it stays open as long as that.

    Args:
        rank: of the peer.
    """

    timeout = timedelta()

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def receive(self, tensor: Tensor) -> dist.Work:
        """See `Channel`."""
        work = dist.irecv(tensor, self._rank)
        assert work is not None
        return work

    def send(self, tensor: Tensor) -> dist.Work:
        """See `Channel`."""
        work = dist.isend(tensor, self._rank)
        assert work is not None
        return work

    def close(self) -> None:
        """See `Channel`."""


def met(job: AsyncJob, worker: int, file: Path, rank: int) -> Channel:
    """The connection of a server and a worker that meet at a file, as SERVER_RANK and WORKER_RANK.

    Raises:
        RuntimeError: the other one does not come.
    """
    store = dist.FileStore(str(file))
    store.set_timeout(TIMEOUT)

    def remove() -> None:
        # Not before: the worker may have been reading it when the group was made on this side.
        if rank == SERVER_RANK:
            file.unlink(missing_ok=True)

    return connect(store, rank, f"{job.name}/{worker}", job.backend, TIMEOUT, remove)


class TimedWorker:
    """One worker of a job, each step of which takes its slot of time.

    Args:
        job: its work, and the shares of its servers.
        number: of the worker.
    """

    def __init__(self, job: AsyncJob, number: int) -> None:
        self._side: WorkerSide = worker_side(job.work, number)
        self._batch = job.work.batch if isinstance(job.work, TrainWork) else 1
        self._parts = slices(parameters_of(job.work), job.shares)
        counts = [part.stop - part.start for part in self._parts]
        self._links = [
            ServerLink(server, payload_bytes(job.work, count)) for server, count in enumerate(counts)
        ]
        self._gradients = [floats(x.outbox.payload, n) for x, n in zip(self._links, counts, strict=True)]
        self._weights = [floats(x.inbox.payload, n) for x, n in zip(self._links, counts, strict=True)]
        self._leaving = threading.Event()

    def leave(self) -> None:
        """Leave the job after the present step. Safe in a signal handler."""
        self._leaving.set()

    def begin(self, servers: Sequence[Channel]) -> None:
        """Receive the weights that every server sends at the start.

        Raises:
            ServerLostError: a server is gone.
        """
        for link, channel in zip(self._links, servers, strict=True):
            link.begin(channel)
        self._take_weights()

    def run(self) -> tuple[int, int]:
        """Cycle until the leading server says stop; returns the steps, and how many overran their slot.

        Raises:
            ServerLostError: a server is gone.
            WrongDataError: weights are not those that the server holds.
        """
        step = overruns = 0
        while not any(link.stopped for link in self._links) and not self._leaving.is_set():
            overruns += self._step(step)
            step += 1
        for link in self._links:
            if not link.stopped:
                link.leave(step)
        return step, overruns

    def _step(self, step: int) -> bool:
        """One cycle; returns whether the computation overran its slot."""
        began_ns = time.monotonic_ns()
        loss = self._side.compute(step)
        overran = fill_slot(began_ns / 1e9, self._side.slot_s(step))
        for gradients, part in zip(self._gradients, self._parts, strict=True):
            gradients.copy_(self._side.gradients[part])
        sending_ns = time.monotonic_ns()
        kind = MessageKind.GRADIENT
        header = GradientHeader(kind, step, -1, began_ns, sending_ns, int(overran), self._batch, loss)
        if lost := exchange(self._links, header):
            raise lost[0]
        self._take_weights()
        return overran

    def _take_weights(self) -> None:
        for link, weights, part in zip(self._links, self._weights, self._parts, strict=True):
            self._side.weights[part] = weights
            self._side.check(weights, link.version, link.server)


SERVER, WORKER = "server", "worker"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


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


def logged(side: ServerSide, on_update: Callable[[Update], None]) -> Callable[[AppliedGradient], None]:
    """Calls `on_update` with the record of each update that the service says it has applied to `side`."""

    def on_applied(applied: AppliedGradient) -> None:
        fields = {name: value for name, value in vars(applied).items() if name not in ("mark", "samples")}
        on_update(Update(**fields, worker_overran=bool(applied.mark), server_overran=side.overran))

    return on_applied


def run_server(job: AsyncJob, roles: Roles, rank: int, on_update: Callable[[Update], None]) -> ServerResult:
    """Serve until the job is done; SIGTERM and SIGINT end the job earlier. A training goes on from its checkpoint.

    Raises:
        MltcpError: all workers have died, a gradient was wrong, or a checkpoint could not be read or written.
    """
    number = roles.servers.index(rank)
    side = server_side(job.work, slices(parameters_of(job.work), job.shares)[number], number)
    log: list[Update] = []

    def on_each(update: Update) -> None:
        log.append(update)
        on_update(update)

    with _checkpoints(job, number, side) as checkpoints, cpu_time() as cpu_s:
        progress = checkpoints.recover(side.served) if checkpoints is not None else Progress()
        service = GradientService(
            side,
            job.updates if number == 0 else None,
            logged(side, on_each),
            # The workers are others than those of the steps that are in the weights.
            Progress(progress.version, progress.samples),
            log=checkpoints,
            in_turn=job.in_turn,
        )
        server = ParameterServer(service, checkpoints, job.checkpoints.every_s if job.checkpoints else 1.0)
        with stop_signals(lambda _: service.stop()):
            for worker, peer in enumerate(roles.workers):
                server.admit(worker, lambda peer=peer: RankChannel(peer))  # type: ignore[misc]
            server.wait()
        server.end()
        if len(service.lost) == job.workers and not service.stopping and not service.done:
            raise MltcpError(
                f"all {job.workers} workers have died after {service.applied} updates; "
                f"the last: {list(service.lost.values())[-1]}"
            )
        return ServerResult(tuple(log), service.lost, tcp_flows(), cpu_s())


def run_worker(job: AsyncJob, roles: Roles, rank: int, await_start: Callable[[], None]) -> WorkerRankResult:
    """Receive the first weights, wait for the start, and work until told to stop; SIGTERM makes it leave before.

    Raises:
        MltcpError: a server has died, or weights were wrong.
    """
    worker = TimedWorker(job, roles.workers.index(rank))
    worker.begin([RankChannel(each) for each in roles.servers])
    await_start()
    with stop_signals(lambda _: worker.leave()), cpu_time() as cpu_s:
        steps, overruns = worker.run()
        return WorkerRankResult(steps, overruns, tcp_flows(), cpu_s())


@contextmanager
def _checkpoints(job: AsyncJob, server: int, side: ServerSide) -> Iterator[ServerCheckpoints | None]:
    if job.checkpoints is None:
        yield None
        return
    if not isinstance(side.served, ServedModule):
        raise UsageError(f"job {job.name}: checkpoints: expected a training, got a replay")
    checkpoints = ServerCheckpoints(job.checkpoints.of_server(server), side.served.identity)
    try:
        checkpoints.lock()
        yield checkpoints
    finally:
        checkpoints.close()


@contextmanager
def cpu_time() -> Iterator[Callable[[], float]]:
    """The processor time of this process, user and system, since the context was entered."""
    before = resource.getrusage(resource.RUSAGE_SELF)

    def used_s() -> float:
        now = resource.getrusage(resource.RUSAGE_SELF)
        return now.ru_utime - before.ru_utime + now.ru_stime - before.ru_stime

    yield used_s
