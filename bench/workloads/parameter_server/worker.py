"""A worker: computes a gradient, sends its parts to the servers, and goes on with the weights that come back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from torch import Tensor

from bench.workloads.parameter_server.channel import Channel
from bench.workloads.parameter_server.messages import GradientHeader, Kind, Message
from bench.workloads.parameter_server.work import WorkerSide, fill_slot
from mltcp.core.errors import MltcpError


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
