"""A parameter server: it lets workers in, keeps what they have sent, and ends when it is told to.

::

    from collectives.parameter_server.server import serve

    serve("ps0:29400", model, optimizer, checkpoints="/shared/job-7", updates=10_000)
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from collectives.elastic.checkpoints.checkpoint_directory import CheckpointDirectory, progress_of
from collectives.elastic.checkpoints.header import CheckpointError, difference
from collectives.elastic.journal import Journal
from collectives.group.backend import NAME, register
from collectives.parameter_server.connection import (
    Channel,
    Introduction,
    MeetingPlace,
    first_line,
    parse_addresses,
)
from collectives.parameter_server.durable_state import ServerCheckpoints
from collectives.parameter_server.gradient_service import GradientService, OnUpdate, Progress
from collectives.parameter_server.served_module import ServedModule, served_identity
from mltcp.core.errors import MltcpError, UsageError, shown
from mltcp.core.signals import stop_signals

MOST_LOG_BYTES = 4 << 30
"""A checkpoint is written, whatever the time, when the log has grown to this."""

_PAUSE_S = 0.05
_LAST_WORKERS_S = 10.0
_TIMEOUT_S = 1800.0


class ParameterServer:
    """Serves workers that come and go, each on a thread of its own, and writes checkpoints meanwhile.

    Args:
        service: the weights, which stay in it when there are no workers.
        checkpoints: locked and recovered; None: none are written.
        every_s: the time between checkpoints.
        on_lost: called with the number of a worker that died or never came, and the cause.
    """

    def __init__(
        self,
        service: GradientService,
        checkpoints: ServerCheckpoints | None = None,
        every_s: float = math.inf,
        on_lost: Callable[[int, str], None] = lambda *_: None,
    ) -> None:
        self._service, self._on_lost = service, on_lost
        self._checkpoints, self._every_s = checkpoints, every_s
        self._threads: list[threading.Thread] = []
        self._ended = threading.Event()
        self._writer: threading.Thread | None = None
        if checkpoints is not None:
            self._writer = threading.Thread(target=self._write_checkpoints, name="checkpoints", daemon=True)
            self._writer.start()

    @property
    def workers(self) -> int:
        """The number of workers that are served, or that are expected."""
        return sum(thread.is_alive() for thread in self._threads)

    def admit(self, worker: int, connect: Callable[[], Channel]) -> None:
        """Serve a worker as soon as `connect`, called on its thread, has returned the connection to it."""
        thread = threading.Thread(
            target=self._serve, args=(worker, connect), name=f"worker-{worker}", daemon=True
        )
        self._threads = [*(each for each in self._threads if each.is_alive()), thread]
        thread.start()

    def wait(self, timeout_s: float = math.inf) -> None:
        """Wait until all workers have left, died or been told to stop, for no longer than the time."""
        deadline_s = time.monotonic() + timeout_s
        for thread in self._threads:
            left_s = max(0.0, deadline_s - time.monotonic())
            thread.join(None if math.isinf(left_s) else left_s)

    def end(self) -> None:
        """Write the last checkpoint. No worker is served any more, or what it sends is lost with the process.

        Raises:
            MltcpError: a gradient could not be applied or kept, or a checkpoint could not be written. The checkpoint
                and the log on disk have the last good state.
        """
        self._ended.set()
        if self._writer is not None:
            self._writer.join()
        if self._service.errors:
            raise self._service.errors[0]
        self._save()

    def _serve(self, worker: int, connect: Callable[[], Channel]) -> None:
        try:
            channel = connect()
        except RuntimeError as error:  # the store's or Gloo's: the worker has not come in time
            if not self._service.done:
                self._on_lost(worker, first_line(error))
            return
        except BaseException as error:
            self._service.fail(error)
            return
        try:
            self._service.serve(worker, channel)
        finally:
            with suppress(RuntimeError):
                channel.close()
        if worker in self._service.lost:
            self._on_lost(worker, self._service.lost[worker])

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def _write_checkpoints(self) -> None:
        assert self._checkpoints is not None
        next_s = time.monotonic() + self._every_s
        while not self._ended.wait(min(1.0, max(0.0, next_s - time.monotonic()))):
            if time.monotonic() < next_s and self._checkpoints.log.size_bytes < MOST_LOG_BYTES:
                continue
            try:
                self._save()
            except Exception as error:
                self._service.fail(error)
                return
            next_s = time.monotonic() + self._every_s

    def _save(self) -> None:
        if self._checkpoints is not None and self._checkpoints.log.size_bytes:
            progress, state = self._service.snapshot(self._checkpoints.begin_log)
            self._checkpoints.save(progress, state, self._service.total)


# -- a server of its own ------------------------------------------------------------------------


def serve(
    servers: str,
    module: nn.Module,
    optimizer: Optimizer,
    *,
    number: int = 0,
    schedule: LRScheduler | None = None,
    updates: int | None = None,
    most_staleness: int | None = None,
    checkpoints: str | os.PathLike[str] | None = None,
    checkpoint_every_s: float = 60.0,
    sync: bool = False,
    wait_s: float = 60.0,
    timeout_s: float = _TIMEOUT_S,
    backend: str = NAME,
    on_update: OnUpdate = lambda _: None,
) -> Progress:
    """Serve the parameters of a module until the updates are done, or SIGTERM, SIGINT or SIGHUP; returns the progress.

    Every server of a job is called with the same list and an equal module and optimizer, of which it keeps its part.
    With `checkpoints` it goes on from the newest one and the log, which have every update that was acknowledged.

    Args:
        servers: the addresses of all servers, ``host:port,host:port``; this one listens at the port of its own, on all
            interfaces, and whoever reaches that may join.
        module: with the parameters; those that require no gradient are not served.
        optimizer: of these parameters; it steps with every gradient.
        number: of this server in the list, from 0.
        schedule: of the learning rate; it steps with every update.
        updates: of the job in all; None: the server stays until it is told to end.
        most_staleness: the most updates by others between a worker's weights and its gradient: workers wait for their
            weights so that none is staler; None: whatever comes.
        checkpoints: the directory of the job's, where this server has a folder ``server-N``; None: none are written.
        checkpoint_every_s: seconds between checkpoints.
        sync: whether updates that were acknowledged survive the host, too, and not only the processes.
        wait_s: how long to wait for another process that uses the checkpoints to end.
        timeout_s: the longest time between two messages of a worker.
        backend: ``mltcp`` or ``gloo``.
        on_update: called with every update, in order; other gradients wait meanwhile.

    Raises:
        UsageError: a value is out of range, or the module cannot be served.
        CheckpointError: what is on disk is damaged, of another model, or cannot be written.
        MltcpError: nobody can listen at the address, a gradient could not be applied, or another server has all updates
            and this one has not: it is left without workers, and its checkpoint is written.
    """
    addresses = parse_addresses(servers)
    if updates is not None and (type(updates) is not int or updates < 1):
        raise UsageError(f"updates: expected 1 or more, got {shown(updates)}")
    if most_staleness is not None and (type(most_staleness) is not int or most_staleness < 0):
        raise UsageError(f"most_staleness: expected 0 or more, got {shown(most_staleness)}")
    for name, value in (("checkpoint_every_s", checkpoint_every_s), ("timeout_s", timeout_s)):
        if not value > 0:
            raise UsageError(f"{name}: expected more than 0, got {shown(value)}")
    register()
    state = ServedModule(module, optimizer, schedule, number, len(addresses))
    with ExitStack() as stack:
        kept, journal, progress = None, Journal(None), Progress()
        if checkpoints is not None:
            kept = ServerCheckpoints(Path(checkpoints) / f"server-{number}", state.identity, sync)
            stack.callback(kept.close)
            kept.lock(wait_s)
            _check_shard(kept.path, len(addresses))
            progress = kept.recover(state)
            journal = Journal(kept.path)
        service = GradientService(
            state,
            None if updates is None else max(0, updates - progress.version),
            on_update,
            progress,
            late=False,
            log=kept,
            most_staleness=most_staleness,
        )
        if threading.current_thread() is threading.main_thread():
            stack.enter_context(stop_signals(lambda _: service.stop()))
        journal.note("serving", version=progress.version, samples_done=progress.samples)
        meeting = MeetingPlace(addresses[number], timedelta(seconds=timeout_s), backend)
        server = ParameterServer(service, kept, checkpoint_every_s)
        _run(
            server,
            service,
            meeting,
            Introduction(0, number, len(addresses), served_identity(module)),
            journal,
        )
        server.end()
        journal.note("ended", version=service.version, samples_done=service.samples)
        if not (service.done or service.stopping):
            raise MltcpError(
                f"server {number}: expected {service.total} updates, got {service.version}: another server has all "
                "of its own, and no worker comes any more"
            )
        return service.progress


def _check_shard(path: Path, servers: int) -> None:
    """Refuse to begin anew beside servers that go on: the weights would be of two trainings."""
    if CheckpointDirectory(path).checkpoints():
        return
    for number in range(servers):
        found = progress_of(path.with_name(f"server-{number}"))
        if found is not None and found.samples_done:
            raise CheckpointError(
                f"{path}: expected a checkpoint, since server-{number} has one of {found.samples_done} samples, "
                "got none"
            )


def _run(
    server: ParameterServer,
    service: GradientService,
    meeting: MeetingPlace,
    wanted: Introduction,
    journal: Journal,
) -> None:
    """Let workers in until the end, and tell those that are there of it.

    It ends, too, if another server has all updates, since that one lets no worker go on.
    """
    ends_s = math.inf
    while True:
        for join, introduction in meeting.introductions():
            refusal = _refusal(wanted, introduction)
            meeting.answer(join, refusal)
            journal.note("joins" if refusal is None else "refused", worker=introduction.worker, why=refusal)
            if refusal is None:
                server.admit(introduction.worker, partial(meeting.connect, join))
        is_behind = service.total is not None and service.others_done and not server.workers
        if service.done or service.stopping or is_behind:
            computing = service.done and server.workers and not service.stopping
            waits_s = _TIMEOUT_S if computing else _LAST_WORKERS_S
            ends_s = min(ends_s, time.monotonic() + waits_s)
            left = not server.workers and (service.stopping or (service.done and service.applied))
            if left or time.monotonic() >= ends_s:
                return
        else:
            ends_s = math.inf
        time.sleep(_PAUSE_S)


def _refusal(wanted: Introduction, got: Introduction) -> str | None:
    """Why a worker may not join; None: it may."""
    if got.servers != wanted.servers:
        return f"servers: expected {wanted.servers}, as this server was told, got {got.servers}"
    if got.server != wanted.server:
        return f"servers: expected this one to be number {wanted.server} of the list, got {got.server}"
    return difference(wanted.model, got.model)
