"""Runs a function on every rank of a group, in forked processes with a file store."""

import multiprocessing
import os
import tempfile
import time
import traceback
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from collectives.group.backend import register

_FORK = multiprocessing.get_context("fork")
LIMIT_S = 120.0


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
    with tempfile.TemporaryDirectory() as directory:
        running = Running()
        try:
            for rank in range(ranks):
                ours, theirs = _FORK.Pipe()
                life = (
                    theirs,
                    body,
                    rank,
                    ranks,
                    backend,
                    environment or {},
                    timeout_s,
                    directory,
                    arguments,
                )
                process = _FORK.Process(target=_life, args=life, daemon=True)
                process.start()
                theirs.close()
                running.add(process, ours)
            yield running
        finally:
            running.kill()


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


def _life(connection, body, rank, ranks, backend, environment, timeout_s, directory, arguments):
    os.environ.update({"GLOO_SOCKET_IFNAME": "lo", "MLTCP_CC": "none", **environment})
    torch.set_num_threads(1)
    register()
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
