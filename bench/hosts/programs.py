"""Runs the ranks of a torch.distributed program on hosts, as torchrun would, and returns what rank 0 printed."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Any

from bench.compare.results.runs import HostFacts
from bench.hosts.connection import HostError, connected
from bench.hosts.hosts_file import HostsFile, RemoteHost
from bench.hosts.messages import FindPort, ProgramWrote
from bench.hosts.placement import in_order
from bench.hosts.remote_rank import RemoteRank
from bench.hosts.session import Session
from bench.workloads.rank import RankLost

_LAST_CHARACTERS = 4096


@dataclass(frozen=True)
class ProgramOutput:
    """The standard output of rank 0, and the hosts on which the ranks ran."""

    text: str
    hosts: tuple[HostFacts, ...]


@dataclass
class _Rank:
    number: int
    host: RemoteHost
    process: RemoteRank
    output: list[str] = field(default_factory=list)
    errors: str = ""

    def take(self, message: Any) -> None:
        """Keep what it wrote. Raises HostError if its host is lost."""
        if isinstance(message, RankLost):
            raise HostError(f"rank {self.number}: {message.cause}")
        if isinstance(message, ProgramWrote) and message.error:
            self.errors = (self.errors + message.text)[-_LAST_CHARACTERS:]
        elif isinstance(message, ProgramWrote) and self.number == 0:
            self.output.append(message.text)

    def check(self) -> None:
        """Raise HostError, in one line, if it has failed."""
        status = self.process.exitcode
        if not status:
            return
        last = next((line for line in reversed(self.errors.splitlines()) if line.strip()), "")
        cause = last.removeprefix("mltcp-bench: ") or f"exited with status {status}"
        if status < 0:
            cause = f"killed by {signal.Signals(-status).name}"
        raise HostError(f"host {self.host.name}: rank {self.number}: {cause}")


def run_program(hosts: HostsFile, ranks: int, arguments: Sequence[str]) -> ProgramOutput:
    """Run ``python -m ARGUMENTS`` as so many ranks on the hosts, which are filled in order, until all have ended.

    Raises:
        UsageError: the hosts have too few slots.
        HostError: a host cannot be used or is lost, or a rank failed; nothing is left on the hosts by then.
    """
    placed = in_order(hosts.hosts, ranks)
    used = HostsFile(tuple(dict.fromkeys(host for host, _ in placed)), hosts.ssh_options)
    with connected(used) as agents:
        session = Session(agents)
        port = session.agent(placed[0][0]).request(FindPort())
        started = []
        for number, (host, slot) in enumerate(placed):
            variables = _variables(placed[0][0], port, host, slot, number, ranks)
            started.append(_Rank(number, host, session.start_program(host, arguments, variables.items())))
        _await(started)
        return ProgramOutput("".join(started[0].output), session.facts)


def _variables(
    first: RemoteHost, port: int, host: RemoteHost, slot: int, rank: int, ranks: int
) -> dict[str, str]:
    variables = {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(slot),
        "MASTER_ADDR": first.address,
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": host.interface,
        "NCCL_SOCKET_IFNAME": host.interface,
        "OMP_NUM_THREADS": "1",
    }
    if host.gpus:
        # The rank sees no other GPU than its own.
        variables |= {"CUDA_VISIBLE_DEVICES": host.gpus[slot], "LOCAL_RANK": "0"}
    return variables


def _await(ranks: Sequence[_Rank]) -> None:
    """Wait until every rank has ended. Raises HostError as soon as one has failed."""
    running: dict[Any, _Rank] = {rank.process: rank for rank in ranks}
    while running:
        for process in wait(list(running)):
            rank = running[process]
            try:
                rank.take(rank.process.recv())
            except EOFError:
                del running[process]
                rank.check()
