"""A worker of asynchronous SGD: gradients to the servers, weights back, and again from there.

::

    from collectives.parameter_server.worker import join

    with join("ps0:29400", model) as worker:
        for inputs, targets in worker.batches(loader):
            loss(model(inputs), targets).backward()
            worker.step()
"""

from __future__ import annotations

import math
import operator
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Self, TypeVar

import torch.distributed as dist
from torch import nn

from collectives.elastic.checkpoints.header import difference, unwrapped
from collectives.group.backend import NAME, register
from collectives.parameter_server.connection import (
    Channel,
    Introduction,
    ServerLostError,
    answers,
    first_line,
    meet,
    parse_addresses,
)
from collectives.parameter_server.messages import (
    GradientHeader,
    GradientOutcome,
    Message,
    MessageKind,
    WeightsHeader,
)
from collectives.parameter_server.served_module import (
    TensorLayout,
    part_of,
    read_weights,
    served_identity,
    write_gradients,
)
from mltcp.core.address import Address
from mltcp.core.errors import MltcpError, UsageError, shown
from mltcp.core.signals import stop_signals

_Item = TypeVar("_Item")

_PAUSE_S = 0.1
_NUMBERS = 1 << 31


class ServerLink:
    """The connection of a worker to one server.

    Args:
        server: its number.
        payload_bytes: of the gradient and of the weights of its part.

    Attributes:
        outbox: the gradient that is sent next.
        inbox: the weights received last.
        answer: their header; None before the first.
    """

    def __init__(self, server: int, payload_bytes: int) -> None:
        self.server = server
        self._channel: Channel | None = None
        self.outbox, self.inbox = Message(payload_bytes), Message(payload_bytes)
        self.answer: WeightsHeader | None = None

    @property
    def version(self) -> int:
        """Of the weights received last; -1 before."""
        return -1 if self.answer is None else self.answer.version

    @property
    def stopped(self) -> bool:
        """Whether the server has said that the job has ended."""
        return self.answer is not None and self.answer.kind is not MessageKind.WEIGHTS

    @property
    def done(self) -> bool:
        """Whether it has, and has all updates."""
        return self.answer is not None and self.answer.kind is MessageKind.DONE

    def begin(self, channel: Channel) -> None:
        """Go on with this connection, on which the server sends its weights first.

        Raises:
            ServerLostError: as the other methods do, the connection is closed.
        """
        self.close()
        self._channel = channel
        self.expect()
        self.await_weights()

    def close(self) -> None:
        """Close the connection."""
        if self._channel is not None:
            with suppress(RuntimeError):
                self._channel.close()

    def expect(self) -> None:
        """Begin to receive weights."""
        assert self._channel is not None, "begun before"
        self._arriving = self._guarded(partial(self._channel.receive, self.inbox.tensor))

    def send(self, header: GradientHeader) -> None:
        """Begin to send the outbox with this header; a version of -1 stands for that of the weights received last."""
        assert self._channel is not None, "begun before"
        self.outbox.set_gradient(header if header.version >= 0 else replace(header, version=self.version))
        self._leaving = self._guarded(partial(self._channel.send, self.outbox.tensor))

    def await_sent(self) -> None:
        """Wait until the outbox may be written to again."""
        self._wait(self._leaving)

    def await_weights(self) -> None:
        """Wait for the weights that are expected."""
        self._wait(self._arriving)
        self.answer = self.inbox.weights()

    def leave(self, step: int, kind: MessageKind = MessageKind.LEAVE) -> None:
        """Tell the server that no gradient follows; DONE: because another server has all updates."""
        now_ns = time.monotonic_ns()
        self.send(GradientHeader(kind, step, -1, now_ns, now_ns, 0, 0, 0.0))
        self.await_sent()

    def _wait(self, work: dist.Work) -> None:
        assert self._channel is not None, "begun before"
        self._guarded(partial(work.wait, self._channel.timeout))

    def _guarded(self, action: Callable[[], _Item]) -> _Item:
        try:
            return action()
        except RuntimeError as error:  # Gloo's: the connection is closed
            raise ServerLostError(self.server, first_line(error)) from None


def exchange(links: Sequence[ServerLink], header: GradientHeader) -> list[ServerLostError]:
    """Send what the outboxes hold to all servers at once, and receive the weights that each answers with.

    Args:
        links: to the servers.
        header: of the gradient, as `ServerLink.send` takes it.

    Returns:
        An error for each server that is gone; the others have answered.
    """
    lost: dict[int, ServerLostError] = {}
    actions: tuple[Callable[[ServerLink], None], ...] = (
        ServerLink.expect,
        lambda link: link.send(header),
        ServerLink.await_sent,
        ServerLink.await_weights,
    )
    for action in actions:
        for link in links:
            if link.server not in lost:
                try:
                    action(link)
                except ServerLostError as error:
                    lost[link.server] = error
    return list(lost.values())


# -- a worker that trains a module --------------------------------------------------------------


@dataclass(frozen=True)
class Acknowledgement:
    """What the servers, in their order, have made of a step.

    Attributes:
        versions: the updates that are in the weights that came back.
        outcomes: of the gradient: APPLIED, or why it was not.
        staleness: the updates by others between the weights from which it was computed and it.
    """

    versions: tuple[int, ...]
    outcomes: tuple[GradientOutcome, ...]
    staleness: tuple[int, ...]


class Worker:
    """A worker that has the weights of all servers; made by `join`, and a context manager that leaves at its end.

    SIGTERM, SIGINT or SIGHUP make it leave after the present step, where it is entered on the main thread.

    Attributes:
        number: random, which no other worker of the job has.
        steps: that were acknowledged.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        module: nn.Module,
        wait_s: float,
        timeout_s: float,
        backend: str,
    ) -> None:
        self._module = unwrapped(module)
        self._addresses, self._backend = addresses, backend
        self._wait_s, self._timeout = wait_s, timedelta(seconds=timeout_s)
        self.number = secrets.randbelow(_NUMBERS)
        self._identity = served_identity(self._module)
        self._trained = self._trained_now()
        self._shapes = [each.shape for each in self._trained]
        self._leaving = threading.Event()
        self._entered = ExitStack()
        self.steps = 0
        servers = len(addresses)
        self._parts = [part_of(self._module, server, servers) for server in range(servers)]
        self._layouts = [TensorLayout(part.values()) for part in self._parts]
        self._links = [ServerLink(n, layout.payload_bytes) for n, layout in enumerate(self._layouts)]
        try:
            for link in self._links:
                self._reach(link)
        except BaseException:
            self.close()
            raise
        self._views = [
            (
                layout.views(link.outbox.payload),
                layout.absent(link.outbox.payload),
                layout.views(link.inbox.payload),
            )
            for layout, link in zip(self._layouts, self._links, strict=True)
        ]
        self._take_weights()

    @property
    def stopped(self) -> bool:
        """Whether a server has said that the job has ended, or this process was told to end."""
        return self._leaving.is_set() or self.job_ended

    @property
    def job_ended(self) -> bool:
        """Whether a server has said that the job has ended."""
        return any(link.stopped for link in self._links)

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._entered.enter_context(stop_signals(lambda _: self.leave()))
        return self

    def __exit__(self, *_: object) -> None:
        self._entered.close()
        kind = MessageKind.DONE if any(link.done for link in self._links) else MessageKind.LEAVE
        for link in self._links:
            if not link.stopped:
                with suppress(ServerLostError):
                    link.leave(self.steps, kind)
        self.close()

    def leave(self) -> None:
        """Have `stopped` be true from now on. Safe in a signal handler."""
        self._leaving.set()

    def close(self) -> None:
        """Close the connections; the servers see a worker that has died, unless it has left before."""
        for link in self._links:
            link.close()

    def batches(self, loader: Iterable[_Item]) -> Iterator[_Item]:
        """The batches of a loader, over and over, until the job ends or this process is told to.

        Raises:
            UsageError: the loader has none.
        """
        while not self.stopped:
            batch = None
            for batch in loader:
                yield batch
                if self.stopped:
                    return
            if batch is None:
                raise UsageError("loader: expected a batch or more, got none")

    def step(self, loss: float = math.nan, samples: int = 1) -> Acknowledgement:
        """Send the gradients that ``backward()`` has left, wait for the weights, and clear the gradients.

        On return the update is in the servers' weights and logs, and the module has the weights with it and with those
        of other workers. A server that is gone is waited for, and is sent the gradient again; it knows what it has
        applied.

        Args:
            loss: for the servers' `Update`.
            samples: of the batch; what `samples_done` of the checkpoints counts.

        Raises:
            GradientError: a gradient is not finite, or sparse: it was sent to nobody, and the weights are as they were.
            ServerLostError: a server is gone, and has not come back in time.
            UsageError: the module has other parameters than it had, or a server that has come back keeps others.
        """
        if type(samples) is not int or samples < 1:
            raise UsageError(f"samples: expected 1 or more, got {shown(samples)}")
        self._check_module()
        for part, (views, absent, _) in zip(self._parts, self._views, strict=True):
            write_gradients(part, views, absent)
        now_ns = time.monotonic_ns()
        kind = MessageKind.GRADIENT
        header = GradientHeader(kind, self.steps, -1, self._began_ns, now_ns, 0, samples, loss)
        versions = [link.version for link in self._links]
        for error in exchange(self._links, header):
            self._send_again(error, replace(header, version=versions[error.server]))
        self._take_weights()
        self.steps += 1
        for parameter in self._trained:
            parameter.grad = None
        told = [link.answer for link in self._links if link.answer is not None]
        return Acknowledgement(
            tuple(each.version for each in told),
            tuple(each.outcome for each in told),
            tuple(each.staleness for each in told),
        )

    # -- connections ---------------------------------------------------------------------------------------------------

    def _reach(self, link: ServerLink) -> None:
        """Join a server, for which it waits, and receive its weights.

        Raises:
            ServerLostError: it has not come in time.
            UsageError: it does not let this worker in.
        """
        address, deadline_s = self._addresses[link.server], time.monotonic() + self._wait_s
        hello = Introduction(self.number, link.server, len(self._addresses), self._identity)
        while True:
            try:
                if not answers(address):
                    raise ServerLostError(link.server, f"{address}: nobody listens there")
                link.begin(meet(address, hello, self._timeout, self._backend))
                return
            except ServerLostError:
                if time.monotonic() >= deadline_s or self._leaving.is_set():
                    raise
            time.sleep(_PAUSE_S)

    def _send_again(self, error: ServerLostError, header: GradientHeader) -> None:
        """Send a gradient to a server that was gone, as soon as it is back.

        Raises:
            ServerLostError: it has not come in time.
            MltcpError: it has come without what it has acknowledged.
        """
        link, deadline_s = self._links[error.server], time.monotonic() + self._wait_s
        while True:
            self._reach(link)
            if link.version < header.version:
                raise MltcpError(
                    f"server {link.server}: expected the {header.version} updates that it had or more, got "
                    f"{link.version}: it was started without its checkpoints"
                )
            if link.stopped or not (lost := exchange([link], header)):
                return
            if time.monotonic() >= deadline_s:
                raise lost[0]

    # -- the module ----------------------------------------------------------------------------------------------------

    def _take_weights(self) -> None:
        for part, (_, _, views) in zip(self._parts, self._views, strict=True):
            read_weights(part, views)
        self._began_ns = time.monotonic_ns()

    def _trained_now(self) -> list[nn.Parameter]:
        return [each for each in self._module.parameters() if each.requires_grad]

    def _check_module(self) -> None:
        now = self._trained_now()
        if [each.shape for each in now] == self._shapes and all(map(operator.is_, now, self._trained)):
            return
        different = difference(self._identity, served_identity(self._module))
        raise UsageError(different or "module: expected the parameters with which it has joined, got others")


def join(
    servers: str,
    module: nn.Module,
    *,
    wait_s: float = 60.0,
    timeout_s: float = 1800.0,
    backend: str = NAME,
) -> Worker:
    """Make this process a worker of a job, at any time, and give the module the weights of the servers.

    Args:
        servers: the addresses of all servers, ``host:port,host:port``, in the order that they were told.
        module: equal to that of the servers but for its weights.
        wait_s: how long to wait for a server that does not answer, here and later.
        timeout_s: the longest time between two messages of a server.
        backend: ``mltcp`` or ``gloo``, that of the servers.

    Raises:
        UsageError: an address is none, or a server has another module or other servers.
        ServerLostError: a server does not answer in time.
    """
    for name, value in (("wait_s", wait_s), ("timeout_s", timeout_s)):
        if not value > 0:
            raise UsageError(f"{name}: expected more than 0, got {shown(value)}")
    register()
    return Worker(parse_addresses(servers), module, wait_s, timeout_s, backend)
