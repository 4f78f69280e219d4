"""The interface of engines, which start, watch and stop the ranks of placed jobs, on this or on other hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

from mltcp.core.errors import MltcpError, UsageError


class EngineError(MltcpError):
    """A request that the engine's state does not permit, such as a slot that is taken or a job that is not running."""


class SlotTakenError(EngineError):
    """A slot of a placement is held by another job, which may be about to end."""


class EngineUnreachableError(EngineError):
    """The workload manager does not answer for now; a start is to be tried again until it does."""


@dataclass(frozen=True)
class EngineJob:
    """The part of a job that an engine needs.

    Attributes:
        id: unique among the jobs of the service.
        command: program and arguments of every rank; the engine sets the environment variables of a rank (RANK,
            LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT).
        ranks: number of ranks.
        environment: further variables of every rank.
        launch: tells this start of the job from its earlier and later ones, and from those of jobs that had its id
            before; empty: unknown, so that a start cannot be found again.
        held: the workload manager's own reference to the job, if it waits there (`HeldJob`); it has no command then.

    Raises:
        UsageError: the id or the command is empty, or `ranks` is less than 1.
    """

    id: str
    command: tuple[str, ...]
    ranks: int
    environment: Mapping[str, str] = field(default_factory=dict)
    launch: str = ""
    held: str = ""

    def __post_init__(self) -> None:
        if not self.id:
            raise UsageError("job.id: expected a name, got ''")
        if not self.held and not (self.command and self.command[0]):
            raise UsageError(f"job {self.id}: command: expected a program with its arguments, got none")
        if self.ranks < 1:
            raise UsageError(f"job {self.id}: ranks: expected 1 or more, got {self.ranks}")


@dataclass(frozen=True)
class HostShare:
    """The slots of one host that a job gets, one per rank; ranks are numbered share by share."""

    host: str
    slots: tuple[int, ...]


@dataclass(frozen=True)
class JobHandle:
    """A started job, as the service stores it to recover the job after a restart.

    Attributes:
        job_id: the job's id.
        reference: the engine's opaque reference to the job.
    """

    job_id: str
    reference: str


@dataclass(frozen=True)
class JobStarted:
    """Every host of a job has started torchrun."""

    job_id: str


@dataclass(frozen=True)
class JobFinished:
    """Every rank has exited with status 0, and the job's slots are free."""

    job_id: str


@dataclass(frozen=True)
class JobFailed:
    """A job has failed: all of its ranks have ended, and its slots are free.

    Attributes:
        job_id: the job's id.
        why: the reason in one line, with rank and host if known.
        rank: the rank that failed first; None if unknown, or if something other than a rank failed.
        host: the host that failed first; None if unknown.
        lost: whether the engine or a host ended, and the job with it; the job itself has not failed.
        again: whether a job that was lost is to be started again from its beginning, if it cannot be resumed.
    """

    job_id: str
    why: str
    rank: int | None = None
    host: str | None = None
    lost: bool = False
    again: bool = False


@dataclass(frozen=True)
class JobStopped:
    """A job has ended because it was asked to stop: all of its ranks have ended, and its slots are free.

    Attributes:
        job_id: the job's id.
        orderly: whether every rank exited with status 0 within the grace period, as one does that has written a
            checkpoint at the end of a step; False if a rank was killed, or does not know of being stopped.
        why: who asked, if it was not the engine's user.
    """

    job_id: str
    orderly: bool = False
    why: str = ""


@dataclass(frozen=True)
class JobSeen:
    """A workload manager's state of a job that has not ended, in one line, such as why it waits there."""

    job_id: str
    text: str


@dataclass(frozen=True)
class HostOut:
    """A host takes no jobs for now: a workload manager has it down or drained."""

    host: str
    why: str


@dataclass(frozen=True)
class HostBack:
    """A host takes jobs; told at the start too, of every host that does."""

    host: str


@dataclass(frozen=True)
class HostUsed:
    """So many slots of a host are used by jobs that the workload manager runs without the engine's user.

    It is told whenever the number has changed; before the first time it is 0.
    """

    host: str
    slots: int


@dataclass(frozen=True)
class HeldJob:
    """A job that its user gave to the workload manager, which holds it until it is placed.

    Attributes:
        reference: the workload manager's own, such as its number.
        owner: the account of its user.
        gpus: how many it asks for.
        per_host: how many of each host that it gets; 0: any number.
        hosts: those on which the workload manager would let it run; empty: all.
    """

    reference: str
    owner: str
    gpus: int
    per_host: int = 0
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True)
class JobsHeld:
    """All jobs that the workload manager holds for the engine's user to place, whenever they have changed."""

    jobs: tuple[HeldJob, ...]


JobEvent = JobStarted | JobSeen | JobFinished | JobFailed | JobStopped
"""An event of a job: JobStarted at most once, JobSeen any number of times, then exactly one of the others."""

EngineEvent = JobEvent | HostOut | HostBack | HostUsed | JobsHeld


class Engine(Protocol):
    """Runs jobs; a context manager that closes the engine.

    Attributes:
        jobs_survive: whether jobs go on when the engine is closed, as on a cluster; a local one ends them.
    """

    jobs_survive: bool

    def start(self, job: EngineJob, placement: Sequence[HostShare]) -> JobHandle:
        """Start a job; :meth:`poll` reports its events.

        Raises:
            UsageError: the placement has an unknown host or slot, or not one slot per rank.
            EngineError: a slot is taken, or a job with this id is running.
            EngineUnreachableError: nobody answers; a start that was carried out nevertheless is found at the next one.
        """

    def poll(self, timeout_s: float = 0.0) -> Sequence[EngineEvent]:
        """The events since the last call, in order; waits up to `timeout_s` for the first one.

        Each event is returned once. Only one thread may call this at a time.
        """

    def stop(self, job_id: str, grace_s: float = 0.0) -> None:
        """Stop a job with SIGTERM, and after ``grace_s`` with SIGKILL; ``JobStopped`` or another end follows.

        Raises:
            EngineError: the job is not running.
        """

    def decline(self, reference: str, why: str) -> None:
        """Give a job of `JobsHeld` back to the workload manager, which runs it as it likes.

        Args:
            reference: as told.
            why: it cannot be placed, in one line.
        """

    def forget(self, handle: JobHandle) -> None:
        """Remove what is kept of a job that is over, such as its logs."""

    def recover(self, known: Sequence[JobHandle]) -> None:
        """Take over the jobs that an earlier engine started and whose end it did not report.

        Jobs that still run are watched, or ended, as the engine can; the ends of all others follow as events.
        """

    def close(self) -> None:
        """Release the engine's resources; idempotent."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
