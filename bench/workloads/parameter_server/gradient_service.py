"""The service of a parameter server to one worker after the other or to many at a time: gradients in, weights out."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from bench.workloads.parameter_server.channel import Channel
from bench.workloads.parameter_server.messages import GradientHeader, Kind, Message
from bench.workloads.parameter_server.turns import Turns
from bench.workloads.parameter_server.update import Update
from bench.workloads.parameter_server.work import ServerSide, fill_slot

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
        self._turns = Turns()
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
