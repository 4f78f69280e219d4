"""The side of the process that starts programs: a server to fork from, and the starts that go through it."""

from __future__ import annotations

import ctypes
import os
import pickle
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bench.warm import server
from bench.warm.program import Start, execute, read_at_import, start_of, use

_SUBREAPER = 36
_ROOM = " " * 4096
"""The last argument of the server: the command lines of programs are written over its own."""

_ROOT = Path(__file__).resolve().parents[2]


class WarmServer:
    """A process that imports modules once, and from which programs are forked as children of this process."""

    def __init__(self) -> None:
        self._environment = dict(os.environ)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection, self._lock = ours, threading.Lock()
        for size in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            ours.setsockopt(socket.SOL_SOCKET, size, server.MOST_BYTES)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", server.__name__, str(theirs.fileno()), _ROOM],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                cwd=_ROOT,
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )
        self._place = _place("self")

    def close(self) -> None:
        """End the server; its programs go on."""
        self._connection.close()
        self._process.wait()

    @contextmanager
    def forks(self, modules: Iterable[str]) -> Iterator[None]:
        """Within, interpreters that this process starts are forked from the server, with these modules imported."""

        def fork_exec(*arguments: Any) -> int:
            start = start_of(arguments)
            with self._lock:
                if start is None or not self._can(start):
                    return execute(*arguments)
                return self._fork(start, tuple(modules))

        before = use(fork_exec)
        try:
            yield
        finally:
            use(before)

    def _can(self, start: Start) -> bool:
        return (
            start.close_others
            and start.prepare is None
            and read_at_import(start.environment) == read_at_import(self._environment)
            and _place("thread-self") == self._place
        )

    def _fork(self, start: Start, modules: tuple[str, ...]) -> int:
        streams = [number if each < 0 else each for number, each in enumerate(start.streams)]
        ignored = {each for each in signal.valid_signals() if signal.getsignal(each) is signal.SIG_IGN}
        request = server.ForkRequest(
            start,
            modules,
            frozenset(ignored - {signal.SIGPIPE, signal.SIGXFSZ}),
            frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
            os.getpriority(os.PRIO_PROCESS, 0),
            os.getcwd(),
        )
        before = _children()
        with _adopting():
            socket.send_fds(self._connection, [pickle.dumps(request)], [*streams, *start.kept])
            answer = self._connection.recv(32)
        if not answer:
            raise RuntimeError(f"the server of forked interpreters ended: {self._process.wait()}")
        pid = int(answer)
        # Orphans of programs that have ended: nobody else would wait for them.
        for stray in _children() - before - {pid}:
            threading.Thread(target=_reap, args=(stray,), daemon=True).start()
        return pid


@contextmanager
def _adopting() -> Iterator[None]:
    """Be the parent of processes whose own parent ends meanwhile."""
    prctl = ctypes.CDLL(None).prctl
    prctl(_SUBREAPER, 1)
    try:
        yield
    finally:
        prctl(_SUBREAPER, 0)


def _children() -> set[int]:
    found: set[int] = set()
    for each in Path("/proc/self/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # of a thread that has ended meanwhile
            found.update(map(int, each.read_text().split()))
    return found


def _reap(pid: int) -> None:
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _place(process: str) -> tuple[Any, ...]:
    """Where a process is: its namespaces, control groups and limits."""
    spaces = Path("/proc", process, "ns")
    limits = [
        resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")
    ]
    ids = (os.getresuid(), os.getresgid())
    return (
        {name: os.readlink(spaces / name) for name in os.listdir(spaces)},
        Path("/proc", process, "cgroup").read_text(),
        limits,
        ids,
    )


TORCHRUN = ("torch.distributed.run", "placement.engines.node", "placement.engines.rank")
"""What a job's launcher on a host imports."""

OPTIMIZERS = "torch._dynamo"
"""What the first optimizer of a process imports."""

TRAININGS = (
    *(*TORCHRUN, OPTIMIZERS),
    *("bench.workloads.elastic.training_job", "placement.client.agent_stream"),
)
"""What a training on an engine imports, its agent too, and its launchers."""


@contextmanager
def forked_trainings() -> Iterator[None]:
    """Within, trainings that a local engine starts are forked: launchers, torchrun and ranks import nothing any more.

    Else each of them imports torch: on a few cores that stand for many hosts, a start would last as long as it takes
    one after the other.
    """
    server = WarmServer()
    try:
        with server.forks(TRAININGS):
            # The first program waits until all is imported.
            subprocess.run([sys.executable, "-c", ""], check=True)
            yield
    finally:
        server.close()
