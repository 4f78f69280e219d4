"""The roles of a job's processes under torchrun or the placement service: each rank works, and some have a server.

The first ranks start the same program again, as a server beside them, so that every slot of the job computes and any
number of slots will do. All ranks learn the servers' addresses from the store at which torchrun lets them meet.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from collectives.parameter_server.gradient_service import Progress
from collectives.parameter_server.server import serve
from collectives.parameter_server.worker import Worker, join
from mltcp.core.address import Address, free_port
from mltcp.core.errors import MltcpError, UsageError, shown
from mltcp.core.processes import end_with
from mltcp.core.signals import stop_signals

_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

_SERVER = "MLTCP_PARAMETER_SERVER"
"""What a rank tells the server that it starts: its number, a space, and the addresses of all servers."""

_UNEVEN_S = 5.0
"""How long a server may take to apply its last updates when another one has its own.

After a stop they may differ by updates that only one of them had; then this one ends without its last ones.
"""


class JobRole:
    """What a process of a job does: it is a server, or a worker.

    Attributes:
        servers: the addresses of all servers.
        number: of this server; None: the process is a worker.
    """

    def __init__(self, servers: str, number: int | None) -> None:
        self.servers, self.number = servers, number
        self._worker: Worker | None = None

    def serve(self, module: nn.Module, optimizer: Optimizer, **options: Any) -> Progress:
        """Serve, as `server.serve` with these options."""
        return serve(self.servers, module, optimizer, number=self.number or 0, **options)

    def join(self, module: nn.Module, **options: Any) -> Worker:
        """Work, as `worker.join` with these options."""
        self._worker = join(self.servers, module, **options)
        return self._worker

    @property
    def job_ended(self) -> bool:
        """Whether this worker has stopped because a server has all of its updates."""
        return self._worker is not None and self._worker.job_ended


@contextmanager
def job_role(servers: int = 1, *, wait_s: float = 60.0) -> Iterator[JobRole]:
    """The role of this process, a rank of a job or a server that a rank has started.

    A worker that leaves the context before the job has ended ends its server, which tells the other workers to stop and
    writes its last checkpoint; in any case its server is waited for.

    Args:
        servers: no more than the job has ranks; the same in all ranks, and at every start of an elastic job, whose
            checkpoints each have the part of one of them.
        wait_s: for the other ranks.

    Raises:
        UsageError: the process is no rank, or the job is too small.
        MltcpError: the servers' ranks do not say their addresses in time; or, at the end, this rank's server failed.
    """
    told = os.environ.pop(_SERVER, None)
    if told is not None:
        end_with(os.getppid())
        number, _, addresses = told.partition(" ")
        yield JobRole(addresses, int(number))
        return
    rank, ranks = _rank_and_ranks(servers)
    addresses, store = _addresses(rank, ranks, servers, timedelta(seconds=wait_s))
    role = JobRole(addresses, None)
    with _server(rank, role) if rank < servers else nullcontext() as server:
        yield role
    del store  # which the other ranks may have read from this one
    if server is not None and server.returncode:
        raise MltcpError(f"server {rank}: ended with status {server.returncode}")


@contextmanager
def _server(number: int, role: JobRole) -> Iterator[subprocess.Popen[bytes]]:
    """The same program as a server; at the end it is waited for."""
    environment = {**os.environ, _SERVER: f"{number} {role.servers}"}
    server = subprocess.Popen(sys.orig_argv, executable=sys.executable, env=environment)
    try:
        yield server
    finally:
        with stop_signals(lambda _: server.terminate()):
            if role.job_ended:
                with suppress(subprocess.TimeoutExpired):
                    server.wait(_UNEVEN_S)
            server.terminate()
            server.wait()


def _rank_and_ranks(servers: int) -> tuple[int, int]:
    if type(servers) is not int or servers < 1:
        raise UsageError(f"servers: expected 1 or more, got {shown(servers)}")
    missing = [name for name in _NEEDED if name not in os.environ]
    if missing:
        raise UsageError(f"{missing[0]}: expected as torchrun and the placement service set it, got none")
    ranks = int(os.environ["WORLD_SIZE"])
    if ranks < servers:
        raise UsageError(f"servers: expected at most the job's {ranks} ranks, got {servers}")
    return int(os.environ["RANK"]), ranks


def _addresses(rank: int, ranks: int, servers: int, timeout: timedelta) -> tuple[str, dist.Store]:
    """Where the servers listen, and the store of the job."""
    try:
        base, _, _ = next(dist.rendezvous("env://", rank, ranks, timeout=timeout))
        run = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = dist.PrefixStore(f"mltcp/parameter-server/{run}", base)
        if rank < servers:
            store.set(str(rank), str(Address(host=_own_address(), port=free_port())))
        return ",".join(store.get(str(number)).decode() for number in range(servers)), base
    except (RuntimeError, OSError) as error:
        raise MltcpError(
            f"rank {rank}: the ranks of the servers do not say where they are: {error}"
        ) from error


def _own_address() -> str:
    """The address of this host at which the host of rank 0 reaches it."""
    where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    family, kind, *_, address = socket.getaddrinfo(*where, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as unconnected:
        unconnected.connect(address)  # sends nothing
        return str(unconnected.getsockname()[0])
