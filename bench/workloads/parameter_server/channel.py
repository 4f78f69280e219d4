"""The connection between a worker and a server, and the messages on it."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, ProcessGroup

from bench.workloads.group import TIMEOUT
from collectives.group.backend import NAME
from collectives.group.group_factory import make_group
from collectives.group.inner_group import Membership, build_inner

_HEADER_NUMBERS = 8
_HEADER_ELEMENTS = 2 * _HEADER_NUMBERS
_LOSS = 7


class Kind(IntEnum):
    """The meaning of a message."""

    GRADIENT = 1
    LEAVE = 2
    """From a worker that sends no further gradient."""
    WEIGHTS = 3
    STOP = 4
    """Weights, and the end of the job for this worker."""


@dataclass(frozen=True)
class GradientHeader:
    """The header of a gradient; times in CLOCK_MONOTONIC nanoseconds of the worker's host.

    Attributes:
        kind: GRADIENT or LEAVE.
        step: of the worker, from 0.
        version: of the weights from which it was computed.
        began_ns: the worker had these weights.
        sending_ns: the gradient was ready to be sent.
        overran: the computation took longer than its slot.
        loss: of the batch; not a number for a replay.
    """

    kind: Kind
    step: int
    version: int
    began_ns: int
    sending_ns: int
    overran: bool
    loss: float


class Message:
    """A buffer for messages of `elements` parameters.

    Attributes:
        tensor: what is sent and received.
        payload: its parameters.
    """

    def __init__(self, elements: int) -> None:
        padded = elements + elements % 2  # the header's numbers are aligned to eight bytes
        self.tensor = torch.zeros(padded + _HEADER_ELEMENTS)
        self.payload = self.tensor[:elements]
        self._numbers = self.tensor[padded:].view(torch.int64)
        self._losses = self.tensor[padded:].view(torch.float64)

    def set_gradient(self, header: GradientHeader) -> None:
        """Write the header of a gradient."""
        self._numbers[:_LOSS] = torch.tensor(
            [
                header.kind,
                header.step,
                header.version,
                header.began_ns,
                header.sending_ns,
                header.overran,
                0,
            ]
        )
        self._losses[_LOSS] = header.loss

    def gradient(self) -> GradientHeader:
        """Read the header of a gradient."""
        kind, step, version, began_ns, sending_ns, overran, _, _ = self._numbers.tolist()
        loss = self._losses[_LOSS].item()
        return GradientHeader(Kind(kind), step, version, began_ns, sending_ns, bool(overran), loss)

    def set_weights(self, kind: Kind, version: int) -> None:
        """Write the header of weights."""
        self._numbers[:2] = torch.tensor([kind, version])

    def weights(self) -> tuple[Kind, int]:
        """Read the header of weights: their kind and version."""
        kind, version = self._numbers[:2].tolist()
        return Kind(kind), version


def message_bytes(elements: int) -> int:
    """The bytes of a message of so many parameters."""
    return 4 * (elements + elements % 2 + _HEADER_ELEMENTS)


class Channel(Protocol):
    """Sends tensors to one peer, and receives tensors from it, in order.

    Operations raise RuntimeError once the connection is closed, as Gloo does.
    """

    def receive(self, tensor: Tensor) -> dist.Work:
        """Begin to receive into a tensor."""

    def send(self, tensor: Tensor) -> dist.Work:
        """Begin to send a tensor."""


class RankChannel:
    """The channel to a rank of the default group.

    Args:
        rank: of the peer.
    """

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


SERVER_RANK, WORKER_RANK = 0, 1

_READY = "worker-ready"
_BUILDING = threading.Lock()
"""A group finds its connections by the listeners that its process opens meanwhile: one group at a time is made."""


class PairGroup:
    """The group of a server and one worker; a `Channel` to the other of the two.

    Args:
        group: of two ranks.
        peer: the rank of the other one.
    """

    def __init__(self, group: ProcessGroup, peer: int) -> None:
        self._group, self._peer = group, peer

    def receive(self, tensor: Tensor) -> dist.Work:
        """See `Channel`."""
        return self._group.recv([tensor], self._peer, 0)

    def send(self, tensor: Tensor) -> dist.Work:
        """See `Channel`."""
        return self._group.send([tensor], self._peer, 0)

    def close(self) -> None:
        """Close the connection, and end the group's threads with the last reference to it."""
        self._group.shutdown()


def connect(file: Path, rank: int, name: str, backend: str) -> PairGroup:
    """Make the group of a server and a worker, which both call this.

    The server waits for the worker before it takes the lock under which groups are made, so that a worker that never
    comes keeps no other from joining.

    Args:
        file: at which the two meet; they alone use it.
        rank: SERVER_RANK or WORKER_RANK.
        name: of the group, unique in the process.
        backend: ``mltcp`` or ``gloo``.

    Raises:
        RuntimeError: the other one does not come within `TIMEOUT`.
    """
    store = dist.FileStore(str(file))
    store.set_timeout(TIMEOUT)
    if rank == WORKER_RANK:
        store.set(_READY, "")
    else:
        store.wait([_READY])
    member = Membership(PrefixStore("pair", store), rank, 2, TIMEOUT, name, (0, 1))
    with _BUILDING:
        group: ProcessGroup | None = build_inner(member) if backend != NAME else None
        if group is None:
            group = make_group(lambda _: build_inner(member), TIMEOUT, NAME)
        assert group is not None
        group._set_group_name(name)  # type: ignore[arg-type]  # a type of its own since torch 2.10
    return PairGroup(group, 1 - rank)
