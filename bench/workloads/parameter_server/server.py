"""A parameter server: a thread for each worker receives its gradients, and applies them in turn."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence

import torch.distributed as dist

from bench.workloads.parameter_server.checkpoint import ServerCheckpoints
from bench.workloads.parameter_server.messages import GradientHeader, Kind, Message
from bench.workloads.parameter_server.turns import Turns
from bench.workloads.parameter_server.update import Update
from bench.workloads.parameter_server.work import ServerSide, fill_slot
from mltcp.core.errors import MltcpError

OnUpdate = Callable[[Update], None]


class WorkersLostError(MltcpError):
    """Every worker has gone before the job was done."""


class ParameterServer:
    """Serves the weights of one part of the parameters, until the job is done or every worker has left.

    Args:
        side: the weights.
        elements: the parameters of this part.
        workers: the rank of each worker.
        updates: the server says stop after so many updates; None: it waits until its workers leave.
        on_update: called with every update, in order, while the server's turn is held.
        checkpoints: of a training.
        every_s: the time between checkpoints.
        version: of the weights at the start.
    """

    def __init__(
        self,
        side: ServerSide,
        elements: int,
        workers: Sequence[int],
        updates: int | None,
        on_update: OnUpdate,
        checkpoints: ServerCheckpoints | None = None,
        every_s: float = math.inf,
        version: int = 0,
    ) -> None:
        self._side, self._elements, self._workers = side, elements, workers
        self._updates, self._on_update = updates, on_update
        self._checkpoints, self._every_s = checkpoints, every_s
        self._first = self.version = version
        self._turns = Turns()
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self.lost: dict[int, str] = {}
        self._errors: list[BaseException] = []

    def stop(self) -> None:
        """Ask for the end: each worker is told with the weights that it gets next. Safe in a signal handler."""
        self._stopping.set()

    @property
    def done(self) -> bool:
        """Whether the updates asked for are applied."""
        return self._updates is not None and self.version - self._first >= self._updates

    def serve(self) -> None:
        """Send the weights to every worker, and then apply and answer gradients until all have left.

        Raises:
            WorkersLostError: every worker has died before the updates were done.
            MltcpError: a gradient was wrong, or a checkpoint could not be written.
        """
        threads = [
            threading.Thread(target=self._guarded, args=(number, rank), name=f"worker-{number}", daemon=True)
            for number, rank in enumerate(self._workers)
        ]
        writer = threading.Thread(target=self._write_checkpoints, name="checkpoints", daemon=True)
        for thread in (*threads, writer):
            thread.start()
        for thread in threads:
            thread.join()
        self._ended.set()
        writer.join()
        self._save()
        if self._errors:
            raise self._errors[0]
        if len(self.lost) == len(self._workers) and not self._stopping.is_set() and not self.done:
            raise WorkersLostError(
                f"all {len(self._workers)} workers have died after {self.version - self._first} updates; "
                f"the last: {list(self.lost.values())[-1]}"
            )

    # -- one worker ----------------------------------------------------------------------------------------------------

    def _guarded(self, worker: int, rank: int) -> None:
        try:
            self._serve(worker, rank)
        except RuntimeError as error:  # Gloo's: the connection is closed
            self.lost[worker] = str(error).splitlines()[0]
        except BaseException as error:
            self._errors.append(error)
            self._stopping.set()

    def _serve(self, worker: int, rank: int) -> None:
        inbox, outbox = Message(self._elements), Message(self._elements)
        with self._turns:
            self._fill(outbox, Kind.WEIGHTS)
        arriving = _receive(inbox, rank)
        _send(outbox, rank)
        while True:
            arriving.wait()
            received_s = time.monotonic()
            header = inbox.gradient()
            if header.kind is Kind.LEAVE:
                return
            with self._turns:
                kind = self._apply(worker, inbox, header, received_s)
                self._fill(outbox, kind)
            # Gloo tells the worker that this receive is posted: in one train of packets with the weights.
            if kind is not Kind.STOP:
                arriving = _receive(inbox, rank)
            _send(outbox, rank)
            if kind is Kind.STOP:
                return

    def _apply(self, worker: int, inbox: Message, header: GradientHeader, received_s: float) -> Kind:
        """Apply a gradient; the caller has the turn."""
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
        return Kind.STOP if self._stopping.is_set() or self.done else Kind.WEIGHTS

    def _fill(self, outbox: Message, kind: Kind) -> None:
        self._side.copy_to(outbox.payload, self.version)
        outbox.set_weights(kind, self.version)

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def _write_checkpoints(self) -> None:
        while self._checkpoints is not None and not self._ended.wait(self._every_s):
            try:
                self._save()
            except MltcpError as error:
                self._errors.append(error)
                self._stopping.set()
                return

    def _save(self) -> None:
        if self._checkpoints is None:
            return
        with self._turns:
            version, state = self.version, self._side.state()
        self._checkpoints.save(version, state)


def _receive(message: Message, rank: int) -> dist.Work:
    work = dist.irecv(message.tensor, rank)
    assert work is not None
    return work


def _send(message: Message, rank: int) -> None:
    dist.send(message.tensor, rank)
