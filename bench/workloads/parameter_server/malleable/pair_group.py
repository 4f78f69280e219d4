"""A process group of a server and one worker, made and destroyed while others of the same process are in use.

Torch's groups have a fixed size, so that a worker that joins later cannot enter one. Here it has a group of two ranks
with its server: the project's backend around Gloo, which torch's registers of groups do not know. They meet in a file.
"""

from __future__ import annotations

import threading
from pathlib import Path

import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, ProcessGroup

from bench.workloads.group import TIMEOUT
from collectives.group.backend import NAME
from collectives.group.group_factory import make_group
from collectives.group.inner_group import Membership, build_inner

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
