"""Processes that wait for a job to join, one for each GPU, so that a join does not wait for a process to start."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from bench.workloads.launched_rank import LaunchedRank, kill_ranks
from bench.workloads.parameter_server.malleable_job import waiting_worker
from bench.workloads.place import RankPlace

_BETWEEN_S = 0.03
"""Between two starts, which take half of that on one core: workers that have just joined come first."""


class WaitingWorkers:
    """At most one process that waits for each GPU.

    Args:
        place: gives the place of the worker on a GPU.
        gpus: of the cluster.
        directory: temporary.
    """

    def __init__(self, place: Callable[[int], RankPlace], gpus: int, directory: Path) -> None:
        self._place, self._gpus, self._directory = place, gpus, directory
        self._waiting: dict[int, LaunchedRank] = {}
        self._next_s = 0.0

    @property
    def complete(self) -> bool:
        """Whether every GPU has one."""
        return len(self._waiting) == self._gpus

    def take(self, gpu: int) -> LaunchedRank | None:
        """The process that waits for this GPU; None if there is none."""
        self._next_s = time.monotonic() + _BETWEEN_S
        return self._waiting.pop(gpu, None)

    def refill(self) -> None:
        """Start one process where there is none, unless one was started or taken a moment ago."""
        if self.complete or time.monotonic() < self._next_s:
            return
        gpu = next(gpu for gpu in range(self._gpus) if gpu not in self._waiting)
        self._waiting[gpu] = waiting_worker(self._place(gpu), self._directory)
        self._next_s = time.monotonic() + _BETWEEN_S

    def fill(self) -> None:
        """Start all that are missing."""
        for gpu in range(self._gpus):
            if gpu not in self._waiting:
                self._waiting[gpu] = waiting_worker(self._place(gpu), self._directory)

    def kill(self) -> None:
        """Kill and reap all."""
        kill_ranks(self._waiting.values())
        self._waiting.clear()
