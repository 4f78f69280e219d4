"""Parameter servers: gradients in, weights out, for a fixed number of workers or for workers that come and go."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any

from bench.workloads.parameter_server.channel import (
    SERVER_RANK,
    Channel,
    GradientHeader,
    Kind,
    Message,
    connect,
)
from bench.workloads.parameter_server.checkpoint import ServerCheckpoints
from bench.workloads.parameter_server.log import Update
from bench.workloads.parameter_server.work import ServerSide, fill_slot
from mltcp.core.errors import MltcpError


class QueuedLock:
    """Mutual exclusion, first come first served; a context manager."""

    def __init__(self) -> None:
        self._guard = Lock()
        self._waiting: deque[Lock] = deque()
        self._taken = False

    def __enter__(self) -> None:
        with self._guard:
            if not self._taken:
                self._taken = True
                return
            gate = Lock()
            gate.acquire()
            self._waiting.append(gate)
        gate.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._guard:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._taken = False


OnUpdate = Callable[[Update], None]


class GradientService:
    """Applies the gradients of workers in the order of their arrival, and sends the weights back to each.

    Every worker is served by a thread of its own, which calls `serve`. Thread-safe.

    Args:
        side: the weights.
        elements: the parameters of this part.
        updates: workers are told to stop after so many updates; None: only `stop` makes them.
        on_update: called with every update, in order, while the server's turn is held.
        version: of the weights at the start.
        late: whether gradients that arrive after the last update are applied too; else their workers are told to stop.

    Attributes:
        version: of the weights.
        lost: the workers whose connection broke, with the cause.
        errors: other errors of the threads of workers.
    """

    def __init__(
        self,
        side: ServerSide,
        elements: int,
        updates: int | None,
        on_update: OnUpdate,
        version: int = 0,
        late: bool = True,
    ) -> None:
        self._side, self._elements = side, elements
        self._updates, self._on_update, self._late = updates, on_update, late
        self._first = self.version = version
        self._turns = QueuedLock()
        self._stopping = threading.Event()
        self.lost: dict[int, str] = {}
        self.errors: list[BaseException] = []

    @property
    def applied(self) -> int:
        """The updates since the start."""
        return self.version - self._first

    @property
    def done(self) -> bool:
        """Whether the updates asked for are applied."""
        return self._updates is not None and self.applied >= self._updates

    @property
    def stopping(self) -> bool:
        """Whether the end was asked for."""
        return self._stopping.is_set()

    def stop(self) -> None:
        """Ask for the end: each worker is told with the weights that it gets next. Safe in a signal handler."""
        self._stopping.set()

    def fail(self, error: BaseException) -> None:
        """Note an error, and ask for the end."""
        self.errors.append(error)
        self._stopping.set()

    def state(self) -> tuple[int, Mapping[str, Any]]:
        """The version, and a copy of the weights and of the optimizer's state."""
        with self._turns:
            return self.version, self._side.state()

    def serve(self, worker: int, channel: Channel) -> None:
        """Send a worker the weights, and then apply and answer its gradients until it leaves, dies or is told to stop.

        Never raises: a broken connection is noted in `lost`, unless the job is done, any other error in `errors`.
        """
        try:
            self._serve(worker, channel)
        except RuntimeError as error:  # Gloo's: the connection is closed
            if self._late or not self.done:
                self.lost[worker] = str(error).splitlines()[0]
        except BaseException as error:
            self.fail(error)

    def _serve(self, worker: int, channel: Channel) -> None:
        inbox, outbox = Message(self._elements), Message(self._elements)
        with self._turns:
            self._fill(outbox, Kind.WEIGHTS)
        arriving = channel.receive(inbox.tensor)
        channel.send(outbox.tensor).wait()
        while True:
            arriving.wait()
            received_s = time.monotonic()
            header = inbox.gradient()
            if header.kind is Kind.LEAVE:
                return
            with self._turns:
                kind = self._answer(worker, inbox, header, received_s)
                self._fill(outbox, kind)
            # Gloo tells the worker that this receive is posted: in one train of packets with the weights.
            if kind is not Kind.STOP:
                arriving = channel.receive(inbox.tensor)
            channel.send(outbox.tensor).wait()
            if kind is Kind.STOP:
                return

    def _answer(self, worker: int, inbox: Message, header: GradientHeader, received_s: float) -> Kind:
        """Apply a gradient unless it is late; returns the kind of the answer. The caller has the turn."""
        if self._late or not (self.done or self.stopping):
            self._apply(worker, inbox, header, received_s)
        return Kind.STOP if self.stopping or self.done else Kind.WEIGHTS

    def _apply(self, worker: int, inbox: Message, header: GradientHeader, received_s: float) -> None:
        applying_s = time.monotonic()
        self._side.apply(inbox.payload, worker, header.step)
        overran = fill_slot(applying_s, self._side.slot_s(self.version + 1))
        self.version += 1
        update = Update(
            worker=worker,
            step=header.step,
            version=self.version,
            staleness=self.version - 1 - header.version,
            began_s=header.began_ns / 1e9,
            sending_s=header.sending_ns / 1e9,
            received_s=received_s,
            applying_s=applying_s,
            applied_s=time.monotonic(),
            loss=None if math.isnan(header.loss) else header.loss,
            worker_overran=header.overran,
            server_overran=overran,
        )
        self._on_update(update)

    def _fill(self, outbox: Message, kind: Kind) -> None:
        self._side.copy_to(outbox.payload, self.version)
        outbox.set_weights(kind, self.version)


class WorkersLostError(MltcpError):
    """Every worker has gone before the job was done."""


class ParameterServer:
    """Serves the weights of one part of the parameters, until the job is done or every worker has left.

    Args:
        service: the weights, and what is done with gradients.
        workers: the channel to each worker.
        checkpoints: of a training.
        every_s: the time between checkpoints.
    """

    def __init__(
        self,
        service: GradientService,
        workers: Sequence[Channel],
        checkpoints: ServerCheckpoints | None = None,
        every_s: float = math.inf,
    ) -> None:
        self._service, self._workers = service, workers
        self._checkpoints, self._every_s = checkpoints, every_s
        self._ended = threading.Event()

    @property
    def lost(self) -> dict[int, str]:
        """The workers that have died, with the cause."""
        return self._service.lost

    def stop(self) -> None:
        """Ask for the end: each worker is told with the weights that it gets next. Safe in a signal handler."""
        self._service.stop()

    def serve(self) -> None:
        """Send the weights to every worker, and then apply and answer gradients until all have left.

        Raises:
            WorkersLostError: every worker has died before the updates were done.
            MltcpError: a gradient was wrong, or a checkpoint could not be written.
        """
        service = self._service
        threads = [
            threading.Thread(
                target=service.serve, args=(number, channel), name=f"worker-{number}", daemon=True
            )
            for number, channel in enumerate(self._workers)
        ]
        writer = threading.Thread(target=self._write_checkpoints, name="checkpoints", daemon=True)
        for thread in (*threads, writer):
            thread.start()
        for thread in threads:
            thread.join()
        self._ended.set()
        writer.join()
        self._save()
        if service.errors:
            raise service.errors[0]
        if len(self.lost) == len(self._workers) and not service.stopping and not service.done:
            raise WorkersLostError(
                f"all {len(self._workers)} workers have died after {service.applied} updates; "
                f"the last: {list(self.lost.values())[-1]}"
            )

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def _write_checkpoints(self) -> None:
        while self._checkpoints is not None and not self._ended.wait(self._every_s):
            try:
                self._save()
            except MltcpError as error:
                self._service.fail(error)
                return

    def _save(self) -> None:
        if self._checkpoints is not None:
            self._checkpoints.save(*self._service.state())


_LAST_WORKERS_S = 10.0


class OpenServer:
    """Serves workers that join and leave; each has a thread and a group of its own, which end when it has left.

    Args:
        service: the weights, which stay in it when there are no workers.
        job: name of the job.
        backend: of torch.distributed.
        on_lost: called with the number of a worker that died or never came, and the cause.
    """

    def __init__(
        self, service: GradientService, job: str, backend: str, on_lost: Callable[[int, str], None]
    ) -> None:
        self._service, self._job, self._backend = service, job, backend
        self._on_lost = on_lost
        self._threads: dict[int, threading.Thread] = {}

    @property
    def workers(self) -> int:
        """The number of workers that are served, or that are expected."""
        return sum(thread.is_alive() for thread in self._threads.values())

    def admit(self, worker: int, file: Path) -> None:
        """Serve a worker as soon as it comes; both meet at `file`, which is removed then."""
        thread = threading.Thread(
            target=self._serve, args=(worker, file), name=f"worker-{worker}", daemon=True
        )
        self._threads = {number: each for number, each in self._threads.items() if each.is_alive()}
        self._threads[worker] = thread
        thread.start()

    def end(self) -> None:
        """Tell the workers that are left to stop, and wait until they have, or are gone, for some seconds.

        Raises:
            MltcpError: a gradient was wrong.
        """
        self._service.stop()
        deadline_s = time.monotonic() + _LAST_WORKERS_S
        for thread in self._threads.values():
            thread.join(max(0.0, deadline_s - time.monotonic()))
        if self._service.errors:
            raise self._service.errors[0]

    def _serve(self, worker: int, file: Path) -> None:
        try:
            group = connect(file, SERVER_RANK, f"{self._job}/{worker}", self._backend)
        except RuntimeError as error:  # the store's or Gloo's: the worker has not come in time
            if not self._service.done:
                self._on_lost(worker, str(error).splitlines()[0])
            return
        try:
            self._service.serve(worker, group)
        finally:
            group.close()
            # Not before: the worker may have been reading it when the group was made on this side.
            file.unlink(missing_ok=True)
        if worker in self._service.lost:
            self._on_lost(worker, self._service.lost[worker])
