"""Runs a function on every rank of a group, in processes of a fork server, with a file store.

The process of the tests is not forked itself: by then it may have threads of gRPC and of torch, and their locks.
"""

import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist

from collectives.group.backend import register

_SERVER = multiprocessing.get_context("forkserver")
LIMIT_S = 120.0
SETTINGS = {"GLOO_SOCKET_IFNAME": "lo", "MLTCP_CC": "none"}


@dataclass(frozen=True)
class Died:
    """The exit code of a rank that ended without a return value."""

    exit_code: int | None


def run_ranks(body, ranks=2, backend="mltcp", environment=None, timeout_s=60.0, *arguments) -> list[Any]:
    """The return values of `body(rank, ranks, *arguments)` on all ranks; an exception fails the test with its text."""
    with started(body, ranks, backend, environment, timeout_s, *arguments) as running:
        return running.results()


@contextmanager
def started(body, ranks=2, backend="mltcp", environment=None, timeout_s=60.0, *arguments):
    """Start the ranks; all are killed and reaped at the end of the ``with`` block."""
    _SERVER.set_forkserver_preload(_imported_beforehand())
    with tempfile.TemporaryDirectory() as directory:
        running = Running()
        try:
            for rank in range(ranks):
                ours, theirs = _SERVER.Pipe()
                work = cloudpickle.dumps((body, arguments))
                around = {**os.environ, **SETTINGS, **(environment or {})}
                life = (theirs, work, rank, ranks, backend, around, timeout_s, directory)
                process = _SERVER.Process(target=_life, args=life, daemon=True)
                process.start()
                theirs.close()
                running.add(process, ours)
            yield running
        finally:
            running.kill()


def _imported_beforehand():
    """The modules that the fork server imports at its start, so that not every rank has to.

    They are those that use `run_ranks` or `started`, and what these name in `IMPORTED_LATE`.
    """
    users = [
        module for module in list(sys.modules.values()) if getattr(module, "run_ranks", None) is run_ranks
    ]
    late = {name for module in users for name in getattr(module, "IMPORTED_LATE", ())}
    return [*sorted(late), *(module.__name__ for module in users)]


class Running:
    def __init__(self):
        self.processes = []
        self._connections = []

    def add(self, process, connection):
        self.processes.append(process)
        self._connections.append(connection)

    def results(self, allow_death=False) -> list[Any]:
        outcome: dict[int, Any] = {}
        deadline_s = time.monotonic() + LIMIT_S
        waiting = dict(enumerate(self._connections))
        while waiting:
            ready = wait(list(waiting.values()), max(0.0, deadline_s - time.monotonic()))
            assert ready, f"ranks {sorted(waiting)} did not end within {LIMIT_S} s"
            for rank, connection in list(waiting.items()):
                if connection in ready:
                    outcome[rank] = self._receive(rank, connection, allow_death)
                    del waiting[rank]
        return [outcome[rank] for rank in range(len(outcome))]

    def _receive(self, rank, connection, allow_death):
        try:
            kind, value = connection.recv()
        except EOFError:
            self.processes[rank].join(5)
            assert allow_death, f"rank {rank} died: {self.processes[rank].exitcode}"
            return Died(self.processes[rank].exitcode)
        assert kind == "result", f"rank {rank}:\n{value}"
        return value

    def kill(self):
        for process in self.processes:
            process.kill()
        for process, connection in zip(self.processes, self._connections, strict=True):
            process.join()
            connection.close()


def _life(connection, work, rank, ranks, backend, environment, timeout_s, directory):
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(1)
    register()
    body, arguments = cloudpickle.loads(work)
    try:
        if backend is not None:
            join(Path(directory) / "store", rank, ranks, backend, timeout_s)
        connection.send(("result", body(rank, ranks, *arguments)))
    except BaseException:
        with suppress(OSError):
            connection.send(("error", traceback.format_exc()))
    # Others may still read from this rank; and an orderly end is not what is tested.
    with suppress(EOFError, OSError):
        connection.poll(0.2)
    os._exit(0)


def join(store_file, rank, ranks, backend="mltcp", timeout_s=60.0):
    store = dist.FileStore(str(store_file), ranks)
    timeout = timedelta(seconds=timeout_s)
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=timeout)
