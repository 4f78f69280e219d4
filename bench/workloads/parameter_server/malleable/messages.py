"""The messages between the processes of a malleable job and its launcher."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench.workloads.parameter_server.job import AsyncJob
from bench.workloads.parameter_server.update import Update


@dataclass(frozen=True)
class Admit:
    """To the server: a worker is about to join; both meet at `file`."""

    worker: int
    file: Path


@dataclass(frozen=True)
class End:
    """To the server: the job is over."""


@dataclass(frozen=True)
class Join:
    """To a process that waits: it is worker `worker` of a job, and meets its server at `file`."""

    job: AsyncJob
    worker: int
    file: Path


@dataclass(frozen=True)
class Leave:
    """To a worker: leave after the present step."""


@dataclass(frozen=True)
class Applied:
    """From the server: it has applied a gradient."""

    update: Update


@dataclass(frozen=True)
class WorkerLost:
    """From the server: the connection to a worker broke, or the worker has not come."""

    worker: int
    cause: str


@dataclass(frozen=True)
class ServerEnded:
    """From the server: its workers are gone, and it exits.

    Attributes:
        cpu_s: the processor time that it used.
    """

    cpu_s: float


@dataclass(frozen=True)
class WorkerJoined:
    """From a worker: it has its first weights.

    Attributes:
        at_s: when they had arrived, CLOCK_MONOTONIC.
        congestion_controls: of its connections.
    """

    at_s: float
    congestion_controls: frozenset[str]


@dataclass(frozen=True)
class WorkerLeft:
    """From a worker: it has told the server that it leaves, or was told to stop, and exits.

    Attributes:
        steps: the gradients that it has sent.
        overruns: how many took longer than their slot.
        last_s: when its last step was over, CLOCK_MONOTONIC.
        cpu_s: the processor time that it used.
    """

    steps: int
    overruns: int
    last_s: float
    cpu_s: float


ServerMessage = Applied | WorkerLost | ServerEnded
WorkerMessage = WorkerJoined | WorkerLeft
