"""The process of a rank as its launcher sees it: started in a fork server, watched, and never left behind."""

import multiprocessing
import signal
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any, Protocol

# The ranks of a job that lost a member fail too, some of them before the loss itself is seen.
BLAME_GRACE_S = 0.5


class HasProcess(Protocol):
    """What a launcher keeps of a rank: its process, and the connection to it."""

    @property
    def process(self) -> ForkServerProcess:
        """The rank's."""

    @property
    def connection(self) -> Connection:
        """Ours of the two ends."""


def fork_server() -> ForkServerContext:
    """A fork server that has imported torch and the ranks' code once for all ranks."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["bench.workloads.ranks.preload"])
    return context


def start_rank(
    context: ForkServerContext, main: Callable[..., None], arguments: tuple[Any, ...], name: str
) -> tuple[ForkServerProcess, Connection]:
    """Start a process that runs `main` with its end of a connection and the arguments; and our end."""
    ours, theirs = context.Pipe()
    process = context.Process(target=main, args=(theirs, *arguments), name=name, daemon=True)
    try:
        process.start()
    finally:
        theirs.close()
    return process, ours


def death(process: ForkServerProcess) -> str | None:
    """How the process ended, in words; None while it runs."""
    code = process.exitcode
    if code is None:
        return None
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"


def kill_ranks(ranks: Iterable[HasProcess]) -> None:
    """Kill and reap every rank that is still there."""
    there = list(ranks)
    for rank in there:
        rank.process.kill()
    for rank in there:
        rank.process.join()
        rank.connection.close()
