"""The connection between a worker and a server, as both use it: a rank of the job's group, or a group of their own."""

from __future__ import annotations

from typing import Protocol

import torch.distributed as dist
from torch import Tensor


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
