"""A rank's process on the launcher's side: start, messages, end, and which failure caused the others."""

from __future__ import annotations

import multiprocessing
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any, Protocol

from bench.workloads.job import RankError
from bench.workloads.rank import RankFailed, RankLost
from mltcp.core.signals import signals_held

# When a rank dies the others of its job fail too, and their failures may be seen before its death.
_BLAME_GRACE_S = 0.5

_preloaded = ["bench.workloads.preload"]


class RankProcess(Protocol):
    """A rank's process, on this machine or on another host."""

    @property
    def pid(self) -> int | None:
        """Its number."""

    @property
    def exitcode(self) -> int | None:
        """The exit status, or the negative number of the signal that killed it; None while it runs."""

    def kill(self) -> None:
        """Send SIGKILL."""

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, for no longer than the time."""


class RankConnection(Protocol):
    """The launcher's end of a connection to a rank; `multiprocessing.connection.wait` accepts it."""

    def fileno(self) -> int:
        """The descriptor that is readable when there is a message."""

    def send(self, message: Any, /) -> None:
        """Send a message to the rank."""

    def recv(self) -> Any:
        """The next message of the rank. Raises EOFError at its end."""

    def close(self) -> None:
        """Close this end."""


@dataclass(frozen=True, eq=False)
class LaunchedRank:
    """A started rank.

    Attributes:
        job: the launcher's number of the job.
        job_name: for error messages.
        number: of the rank in its job.
        process: its process.
        connection: the launcher's end of the connection to it.
    """

    job: int
    job_name: str
    number: int
    process: RankProcess
    connection: RankConnection

    def death(self) -> str | None:
        """How the process ended, in words; None while it runs."""
        code = self.process.exitcode
        if code is None:
            return None
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"


@dataclass(frozen=True)
class RankFailure:
    """A rank that raised (with a traceback) or died (without)."""

    rank: LaunchedRank
    cause: str
    traceback: str | None

    def error(self) -> RankError:
        """As an error that names the job and the rank."""
        error = RankError(f"job {self.rank.job_name}, rank {self.rank.number}: {self.cause}")
        if self.traceback is not None:
            error.add_note(self.traceback)
        return error


class RankLauncher(Protocol):
    """Starts a rank: ``main(connection, *arguments)`` in a process of its own, here or on another host."""

    def __call__(
        self, main: Callable[..., None], job: int, job_name: str, number: int, arguments: tuple[Any, ...]
    ) -> LaunchedRank:
        """Start the rank `number` of the launcher's job `job`."""


@contextmanager
def store_directory(parent: Path | None = None) -> Iterator[Path]:
    """A temporary directory for the files at which the ranks of jobs meet; None: where such directories usually are."""
    directory = Path(tempfile.mkdtemp(prefix="mltcp-", dir=parent))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def launch_rank(
    main: Callable[..., None], job: int, job_name: str, number: int, arguments: tuple[Any, ...]
) -> LaunchedRank:
    """Start a rank: ``main(connection, *arguments)`` in a process forked from a server that has imported torch."""
    context = _fork_server()
    ours, theirs = context.Pipe()
    process = context.Process(
        target=main, args=(theirs, *arguments), name=f"{job_name}-{number}", daemon=True
    )
    try:
        # Interrupted before all arguments are written, this would leave a process that ends in a traceback.
        with signals_held():
            process.start()
    finally:
        theirs.close()
    return LaunchedRank(job, job_name, number, process, ours)


def tell(ranks: Iterable[LaunchedRank], message: Any) -> None:
    """Send a message to each rank; a rank that is gone is reported where its messages are received."""
    for rank in ranks:
        with suppress(OSError):
            rank.connection.send(message)


def received(ranks: Iterable[LaunchedRank], timeout_s: float | None) -> list[tuple[LaunchedRank, Any]]:
    """One message of each rank that has sent one within the time; a :class:`RankFailure` for one that failed."""
    there = list(ranks)
    # Connections to ranks of other hosts are not multiprocessing's own, but have a descriptor as those have.
    connections: list[Any] = [rank.connection for rank in there]
    ready = wait(connections, timeout_s)
    senders = [rank for rank in there if rank.connection in ready]
    return [(rank, _receive(rank)) for rank in senders]


def gather(ranks: Iterable[LaunchedRank]) -> list[tuple[LaunchedRank, Any]]:
    """The next message of each of these ranks, in the order of their arrival.

    Raises:
        RankError: one raised or died.
    """
    there = list(ranks)
    found: list[tuple[LaunchedRank, Any]] = []
    waiting = set(there)
    while waiting:
        for rank, message in received(waiting, None):
            if isinstance(message, RankFailure):
                raise blamed(message, there).error()
            found.append((rank, message))
            waiting.remove(rank)
    return found


def blamed(first: RankFailure, ranks: Sequence[LaunchedRank]) -> RankFailure:
    """The failure that caused the others: a death if there is one, or else the first error."""
    failures = [first]
    deadline_s = time.monotonic() + _BLAME_GRACE_S
    while failures[-1].traceback is not None and (left_s := deadline_s - time.monotonic()) > 0:
        failed = [failure.rank for failure in failures]
        messages = received([rank for rank in ranks if rank not in failed], left_s)
        failures += [message for _, message in messages if isinstance(message, RankFailure)]
    return next((failure for failure in failures if failure.traceback is None), first)


def join_ranks(ranks: Iterable[LaunchedRank], timeout_s: float) -> None:
    """Wait for the ends of processes, for no longer than the time in all."""
    deadline_s = time.monotonic() + timeout_s
    for rank in ranks:
        rank.process.join(max(0.0, deadline_s - time.monotonic()))


def kill_ranks(ranks: Iterable[LaunchedRank]) -> None:
    """Kill and reap every rank that still runs."""
    there = list(ranks)
    for rank in there:
        rank.process.kill()
    for rank in there:
        rank.process.join()
        rank.connection.close()


def preload_models() -> None:
    """Have the fork server import what trainings of real models need, unless it has been started already."""
    if (module := "bench.workloads.models.preload") not in _preloaded:
        _preloaded.append(module)


def _fork_server() -> ForkServerContext:
    """A fork server that has imported torch and the ranks' code once for all ranks.

    The code of parameter servers is above this module, so that it is named only.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_preloaded)
    return context


def _receive(rank: LaunchedRank) -> Any:
    try:
        message = rank.connection.recv()
    except (EOFError, OSError):
        rank.process.join()
        return RankFailure(rank, rank.death() or "gone", None)
    if isinstance(message, RankLost):
        return RankFailure(rank, message.cause, None)
    return RankFailure(rank, message.error, message.traceback) if isinstance(message, RankFailed) else message
