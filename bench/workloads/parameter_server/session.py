"""One rank of an asynchronous job, from its process group to its result: a server or a worker."""

from __future__ import annotations

import json
import resource
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist
from torch import Tensor

from bench.workloads.job import TcpFlow, tcp_flows
from bench.workloads.parameter_server.channel import Channel, GradientHeader, Kind, Message, RankChannel
from bench.workloads.parameter_server.checkpoint import ServerCheckpoints
from bench.workloads.parameter_server.job import AsyncJob, slices
from bench.workloads.parameter_server.log import Update
from bench.workloads.parameter_server.server import GradientService, OnUpdate, ParameterServer
from bench.workloads.parameter_server.work import (
    WorkerSide,
    fill_slot,
    parameters_of,
    server_side,
    worker_side,
)
from mltcp.core.errors import MltcpError, UsageError
from mltcp.core.signals import stop_signals


class ServerLostError(MltcpError):
    """A server has died: the job cannot go on. `server` is its number."""

    def __init__(self, server: int, cause: str) -> None:
        super().__init__(f"server {server} is gone: {cause}")
        self.server = server


class _Link:
    """The connection to one server, with its part of the parameters."""

    def __init__(self, server: int, channel: Channel, part: slice) -> None:
        self.server, self._channel, self.part = server, channel, part
        elements = part.stop - part.start
        self.outbox, self.inbox = Message(elements), Message(elements)
        self.version = -1
        self.stopped = False

    def expect(self) -> None:
        self._arriving = self._channel.receive(self.inbox.tensor)

    def send(self) -> None:
        self._leaving = self._channel.send(self.outbox.tensor)

    def await_sent(self) -> None:
        self._leaving.wait()

    def await_weights(self) -> None:
        self._arriving.wait()
        kind, self.version = self.inbox.weights()
        self.stopped = kind is Kind.STOP


class Worker:
    """One worker of a job.

    Args:
        side: its computation.
        servers: the channel to each server.
        parts: of the parameters that each server has.
    """

    def __init__(self, side: WorkerSide, servers: Sequence[Channel], parts: Sequence[slice]) -> None:
        self._side = side
        self._links = [
            _Link(server, channel, part)
            for server, (channel, part) in enumerate(zip(servers, parts, strict=True))
        ]
        self._leaving = threading.Event()

    def leave(self) -> None:
        """Leave the job after the present step. Safe in a signal handler."""
        self._leaving.set()

    def receive_first(self) -> None:
        """Receive the weights that every server sends at the start.

        Raises:
            ServerLostError: a server is gone.
        """
        for link in self._links:
            _guarded(link, link.expect)
        self._take_weights()

    def run(self) -> tuple[int, int]:
        """Cycle until the leading server says stop; returns the steps, and how many overran their slot.

        Raises:
            ServerLostError: a server is gone.
            WrongDataError: weights are not those that the server holds.
        """
        step = overruns = 0
        while not self._stopped and not self._leaving.is_set():
            overruns += self._step(step)
            step += 1
        self._leave(step)
        return step, overruns

    def held(self) -> list[tuple[int, int, Tensor]]:
        """The parts received last, each with its server and version; those of a server that sent none are left out."""
        return [
            (link.server, link.version, self._side.weights[link.part])
            for link in self._links
            if link.version >= 0
        ]

    @property
    def _stopped(self) -> bool:
        return any(link.stopped for link in self._links)

    def _step(self, step: int) -> bool:
        """One cycle; returns whether the computation overran its slot."""
        began_ns = time.monotonic_ns()
        loss = self._side.compute(step)
        overran = fill_slot(began_ns / 1e9, self._side.slot_s(step))
        for link in self._links:
            link.outbox.payload.copy_(self._side.gradients[link.part])
            _guarded(link, link.expect)
        sending_ns = time.monotonic_ns()
        for link in self._links:
            link.outbox.set_gradient(
                GradientHeader(Kind.GRADIENT, step, link.version, began_ns, sending_ns, overran, loss)
            )
            _guarded(link, link.send)
        for link in self._links:
            _guarded(link, link.await_sent)
        self._take_weights()
        return overran

    def _take_weights(self) -> None:
        for link in self._links:
            _guarded(link, link.await_weights)
            self._side.weights[link.part] = link.inbox.payload
            self._side.check(link.inbox.payload, link.version, link.server)

    def _leave(self, step: int) -> None:
        """Tell those servers that have not said stop."""
        for link in self._links:
            if not link.stopped:
                now_ns = time.monotonic_ns()
                link.outbox.set_gradient(
                    GradientHeader(Kind.LEAVE, step, link.version, now_ns, now_ns, False, 0.0)
                )
                _guarded(link, link.send)
                _guarded(link, link.await_sent)


def _guarded(link: _Link, action: Callable[[], None]) -> None:
    try:
        action()
    except RuntimeError as error:  # Gloo's: the connection is closed
        raise ServerLostError(link.server, str(error).splitlines()[0]) from None


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
