"""What an engine is: it runs jobs where it is told to. Nothing here assumes that their processes are local."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

from mltcp.core.errors import MltcpError, UsageError


class EngineError(MltcpError):
    """An engine cannot do what is asked now: a slot is taken, a job is not there."""


@dataclass(frozen=True)
class EngineJob:
    """What an engine needs to know of a job.

    Attributes:
        id: unique among the jobs of the service.
        command: what every rank runs, with arguments; the engine adds what a rank reads from its environment (RANK,
            LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT).
        ranks: how many.
        environment: further variables of every rank.

    Raises:
        UsageError: the id or the command is empty, or there are no ranks.
    """

    id: str
    command: tuple[str, ...]
    ranks: int
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.id:
            raise UsageError("job.id is empty: a name is needed")
        if not self.command or not self.command[0]:
            raise UsageError(f"job {self.id}: command is empty: a program with its arguments is needed")
        if self.ranks < 1:
            raise UsageError(f"job {self.id}: ranks is {self.ranks}: 1 or more is allowed")


@dataclass(frozen=True)
class HostShare:
    """The slots of a host that a job gets, one rank each; the ranks are numbered share by share."""

    host: str
    slots: tuple[int, ...]


@dataclass(frozen=True)
class JobHandle:
    """A job that an engine has started, as it is to be remembered over a restart of the service.

    Attributes:
        job_id: of the job.
        reference: what the engine finds it by again; means nothing to anybody else.
    """

    job_id: str
    reference: str


@dataclass(frozen=True)
class JobStarted:
    """Every host has begun to start its ranks."""

    job_id: str


@dataclass(frozen=True)
class JobFinished:
    """Every rank has ended well, and the job's slots are free."""

    job_id: str


@dataclass(frozen=True)
class JobFailed:
    """A job has failed: every rank of it is gone, and its slots are free.

    Attributes:
        job_id: of the job.
        why: in one line, with the rank and host where they are known.
        rank: the rank that failed first; None where it was no rank, or is not known.
        host: its host, likewise.
    """

    job_id: str
    why: str
    rank: int | None = None
    host: str | None = None


@dataclass(frozen=True)
class JobStopped:
    """A job that was to stop has done so: every rank of it is gone, and its slots are free."""

    job_id: str


EngineEvent = JobStarted | JobFinished | JobFailed | JobStopped
"""What becomes of a job: JobStarted at most once, and then one of the others, once."""


class Engine(Protocol):
    """Runs jobs; a context manager, whose end gives back what the engine itself needs.

    What then becomes of jobs is the engine's affair: a local one ends them, one of a cluster leaves them running.
    """

    def start(self, job: EngineJob, placement: Sequence[HostShare]) -> JobHandle:
        """Start a job; whether it runs is told by :meth:`poll`.

        Raises:
            UsageError: the placement has an unknown host or slot, or not one slot a rank.
            EngineError: a slot is taken, or a job of this id is running.
        """

    def poll(self, timeout_s: float = 0.0) -> Sequence[EngineEvent]:
        """What has happened since the last call, in order; waits for something for so long at the most.

        One caller at a time: an event is given once.
        """

    def stop(self, job_id: str, grace_s: float = 0.0) -> None:
        """Have a job end: asked to at once, and made to after ``grace_s``; ``JobStopped`` follows, or another end.

        Raises:
            EngineError: no such job is running.
        """

    def recover(self, known: Sequence[JobHandle]) -> None:
        """Take up the jobs that an engine before this one started, each of which had no end yet.

        Those that still run are watched on, or ended; what has become of the others comes as events.
        """

    def close(self) -> None:
        """Give back what the engine needs; no error if it was closed before."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
