"""Gradients in, weights out: applies gradients one after the other, and answers each with the weights."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from torch import Tensor

from collectives.parameter_server.connection import Channel, first_line
from collectives.parameter_server.messages import (
    GradientHeader,
    GradientOutcome,
    Message,
    MessageKind,
    WeightsHeader,
)
from collectives.parameter_server.turns import QueuedLock, SendingTurns, limit_unsent
from mltcp.core.errors import MltcpError


@dataclass(frozen=True)
class Update:
    """One gradient that a server has applied; times in CLOCK_MONOTONIC seconds.

    `began_s` and `sending_s` are the worker's, the others the server's. On one host the clock is the same.

    Attributes:
        worker: which one.
        step: of that worker, from 0.
        version: of the weights with this gradient.
        staleness: the updates by others between the weights that the worker had and this one.
        began_s: the worker had received the weights.
        sending_s: it began to send the gradient.
        received_s: the server had received the gradient.
        applying_s: its turn came, and the server began to apply it.
        applied_s: it was applied, and the weights were on their way.
        loss: of the worker's batch; None where its program does not say.
        samples: of the worker's batch.
        mark: of the worker's program.
    """

    worker: int
    step: int
    version: int
    staleness: int
    began_s: float
    sending_s: float
    received_s: float
    applying_s: float
    applied_s: float
    loss: float | None
    samples: int
    mark: int


class ServedState(Protocol):
    """The parameters and the optimizer of a server.

    Attributes:
        payload_bytes: of a gradient, and of the weights.
    """

    payload_bytes: int

    def apply(self, payload: Tensor, worker: int, step: int) -> None:
        """Change the weights by a worker's gradient, as the next version."""

    def copy_to(self, payload: Tensor, version: int) -> None:
        """Write the weights into a message."""

    def state(self) -> Mapping[str, Any]:
        """A copy of all that a checkpoint needs, under the names of objects with a state."""

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a checkpoint. Raises CheckpointError if it is none of these objects."""


class GradientLog(Protocol):
    """Keeps every gradient before it is acknowledged."""

    def append(self, version: int, worker: int, header: GradientHeader, payload: Tensor) -> None:
        """Keep the gradient that leads to this version. Raises CheckpointError if that is not possible."""

    def drop_last(self) -> None:
        """Forget the gradient that was kept last: it could not be applied."""


@dataclass(frozen=True)
class Progress:
    """How far a server is.

    Attributes:
        version: of the weights: the updates that are in them.
        samples: that are in them.
        steps: the last step of each worker that is in them.
    """

    version: int = 0
    samples: int = 0
    steps: Mapping[int, int] = field(default_factory=dict)


OnUpdate = Callable[[Update], None]


class GradientService:
    """Applies the gradients of workers in the order of their arrival, and sends the weights back to each.

    Every worker is served by a thread of its own, which calls `serve`. Thread-safe.

    With `most_staleness`, no gradient is applied after more updates by others than that. If worker i holds weights of
    version v_i, and n workers hold weights, its gradient comes after at most version - v_i + n - 1 others as long as
    nobody else is given weights; so weights are given to one more only while the largest version - v_i is at most
    `most_staleness` - n. An update raises the version by one and lowers n by one, so that the bound stays.

    Args:
        state: the weights.
        updates: workers are told to stop after so many updates since the start; None: only `stop` makes them.
        on_update: called with every update, in order, while the server's turn is held.
        progress: at the start.
        late: whether gradients that arrive after the last update are applied too; else their workers are told to stop.
        log: keeps every gradient before it is acknowledged.
        most_staleness: of a gradient; None: any.
        in_turn: whether weights leave for one worker after the other; else for all that wait at once.

    Attributes:
        version: of the weights.
        samples: in the weights.
        others_done: whether a worker has left because another server has all updates.
        lost: the workers whose connection broke, with the cause.
        errors: other errors of the threads of workers.
    """

    def __init__(
        self,
        state: ServedState,
        updates: int | None = None,
        on_update: OnUpdate = lambda _: None,
        progress: Progress = Progress(),  # it is frozen
        late: bool = True,
        log: GradientLog | None = None,
        most_staleness: int | None = None,
        in_turn: bool = True,
    ) -> None:
        self._state, self._log = state, log
        self._updates, self._on_update, self._late = updates, on_update, late
        self._first = self.version = progress.version
        self.samples, self._steps = progress.samples, dict(progress.steps)
        self._turns, self._sending = QueuedLock(), SendingTurns() if in_turn else None
        self._stopping = threading.Event()
        self._most_staleness = most_staleness
        self._held: dict[int, int] = {}
        self._handing, self._changed = QueuedLock(), threading.Event()
        self.others_done = False
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
    def total(self) -> int | None:
        """The updates that the job is to have, those before the start included."""
        return None if self._updates is None else self._first + self._updates

    @property
    def progress(self) -> Progress:
        """How far it is, between two updates."""
        with self._turns:
            return Progress(self.version, self.samples, dict(self._steps))

    @property
    def stopping(self) -> bool:
        """Whether the end was asked for."""
        return self._stopping.is_set()

    def stop(self) -> None:
        """Ask for the end: each worker is told with the weights that it gets next. Safe in a signal handler."""
        self._stopping.set()
        self._changed.set()

    def fail(self, error: BaseException) -> None:
        """Note an error, and ask for the end."""
        self.errors.append(error)
        self.stop()

    def snapshot(self, meanwhile: Callable[[Progress], None]) -> tuple[Progress, Mapping[str, Any]]:
        """The progress and a copy of the state, between two updates; `meanwhile` is called before the next one."""
        with self._turns:
            progress = Progress(self.version, self.samples, dict(self._steps))
            meanwhile(progress)
            return progress, self._state.state()

    def serve(self, worker: int, channel: Channel) -> None:
        """Send a worker the weights, and then apply and answer its gradients until it leaves, dies or is told to stop.

        Never raises: a broken connection is noted in `lost`, unless the job is done, any other error in `errors`.
        """
        self.lost.pop(worker, None)
        if self._sending is not None:
            limit_unsent(self._state.payload_bytes)
        try:
            self._serve(worker, channel)
        except (
            RuntimeError,
            ValueError,
        ) as error:  # Gloo's: the connection is closed; or no gradient has come
            if self._late or not self.done:
                self.lost[worker] = first_line(error)
        except BaseException as error:
            self.fail(error)
        finally:
            with self._turns:
                self._release(worker)

    def _serve(self, worker: int, channel: Channel) -> None:
        inbox, outbox = Message(self._state.payload_bytes), Message(self._state.payload_bytes)
        kind = self._answer(worker, outbox, lambda: (GradientOutcome.NONE, 0))
        while True:
            # Gloo tells the worker that this receive is posted: in one train of packets with the weights.
            if kind is MessageKind.WEIGHTS:
                arriving = channel.receive(inbox.tensor)
            self._send(worker, channel, outbox.tensor)
            if kind is not MessageKind.WEIGHTS:
                return
            arriving.wait(channel.timeout)
            received_s = time.monotonic()
            header = inbox.gradient()
            if header.kind is not MessageKind.GRADIENT:
                with self._turns:
                    self._steps.pop(worker, None)
                self.others_done |= header.kind is MessageKind.DONE
                return
            kind = self._answer(worker, outbox, partial(self._take, worker, inbox, header, received_s))

    def _send(self, worker: int, channel: Channel, message: Tensor) -> None:
        with nullcontext() if self._sending is None else self._sending.turn(worker):
            channel.send(message).wait(channel.timeout)

    def _answer(
        self, worker: int, outbox: Message, take: Callable[[], tuple[GradientOutcome, int]]
    ) -> MessageKind:
        """Take a gradient, and write the answer to it, before which it waits for its turn, and for the bound."""
        with self._turns:
            outcome, staleness = take()
            if self._most_staleness is None:
                return self._fill(worker, outbox, outcome, staleness)
            self._release(worker)
        with self._handing:
            while True:
                with self._turns:
                    self._changed.clear()
                    if self._may_hand_out():
                        return self._fill(worker, outbox, outcome, staleness)
                self._changed.wait()

    # -- with the turn held --------------------------------------------------------------------------------------------

    def _take(
        self, worker: int, inbox: Message, header: GradientHeader, received_s: float
    ) -> tuple[GradientOutcome, int]:
        """Apply a gradient, if it is to be applied; returns what has become of it, and its staleness."""
        if header.step <= self._steps.get(worker, -1):
            return GradientOutcome.REPEATED, 0
        if not self._late and (self.done or self.stopping):
            return GradientOutcome.LATE, 0
        staleness = self.version - header.version
        if self._most_staleness is not None and staleness > self._most_staleness:
            return GradientOutcome.STALE, staleness
        self._apply(worker, inbox, header, received_s)
        return GradientOutcome.APPLIED, staleness

    def _apply(self, worker: int, inbox: Message, header: GradientHeader, received_s: float) -> None:
        applying_s = time.monotonic()
        if self._log is not None:
            self._log.append(self.version + 1, worker, header, inbox.payload)
        try:
            self._state.apply(inbox.payload, worker, header.step)
        except Exception as error:
            if self._log is not None:
                self._log.drop_last()
            if isinstance(error, MltcpError):
                raise
            # Else an error of torch would pass for one of the connection.
            where = f"worker {worker}, step {header.step}"
            raise MltcpError(f"{where}: its gradient could not be applied: {first_line(error)}") from error
        self.version += 1
        self.samples += header.samples
        self._steps[worker] = header.step
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
            samples=header.samples,
            mark=header.mark,
        )
        self._on_update(update)

    def _may_hand_out(self) -> bool:
        """Whether one more worker may be given weights without breaking the bound of one that holds some."""
        if self.stopping or self.done or not self._held:
            return True
        assert self._most_staleness is not None
        return self.version - min(self._held.values()) + len(self._held) <= self._most_staleness

    def _release(self, worker: int) -> None:
        """A worker holds no weights any more."""
        if self._held.pop(worker, None) is not None:
            self._changed.set()

    def _fill(self, worker: int, outbox: Message, outcome: GradientOutcome, staleness: int) -> MessageKind:
        kind = MessageKind.STOP if self.stopping else MessageKind.WEIGHTS
        if self.done:
            kind = MessageKind.DONE
        if self._most_staleness is not None:
            self._held[worker] = self.version
        self._state.copy_to(outbox.payload, self.version)
        outbox.set_weights(WeightsHeader(kind, self.version, outcome, staleness))
        return kind
