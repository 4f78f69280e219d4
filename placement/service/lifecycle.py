"""The life of a job: the stages that it passes through, saved as part of each transition, of which listeners are told.

Clients see six states. PLACED covers three stages, which differ in whether the job has processes and may keep them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum, auto
from typing import Any

from mltcp.core.errors import MltcpError
from placement.service.context import ServiceContext
from placement.service.protocol import placement_pb2 as pb
from placement.service.state.job_record import JobRecord
from placement.service.state.persistence import save_job, save_new_job

JobListener = Callable[[JobRecord | None, JobRecord], None]
"""Called with a job's record before a change, None of a new job, and after it."""


class JobStage(Enum):
    """A stage in the life of a job."""

    REGISTERED = auto()
    """Known, but not to be placed yet."""
    QUEUED = auto()
    """Waits for slots: for the first time, or after it has been stopped."""
    LAUNCHING = auto()
    """PLACED: has slots, and the engine is starting it."""
    RUNNING = auto()
    """PLACED: has slots; the engine has started it, or no engine runs it."""
    RELEASING = auto()
    """PLACED: is being stopped for good, for the reason in its record; it ends when its processes have ended."""
    STOPPING = auto()
    """Is being stopped, and will be QUEUED when its processes have ended."""
    ENDED = auto()
    FAILED = auto()


OVER = frozenset({JobStage.ENDED, JobStage.FAILED})
_PLACED = frozenset({JobStage.LAUNCHING, JobStage.RUNNING})

TRANSITIONS = {
    JobStage.REGISTERED: {JobStage.QUEUED, *_PLACED, *OVER},
    JobStage.QUEUED: {*_PLACED, *OVER},
    # QUEUED: its processes were lost before the engine had said that it has started them.
    JobStage.LAUNCHING: {JobStage.RUNNING, JobStage.RELEASING, JobStage.QUEUED, *OVER},
    # QUEUED: its processes were lost, and it can go on or begin again.
    JobStage.RUNNING: {JobStage.STOPPING, JobStage.RELEASING, JobStage.QUEUED, *OVER},
    JobStage.RELEASING: {*OVER},
    JobStage.STOPPING: {JobStage.QUEUED, JobStage.RELEASING, *OVER},
    JobStage.ENDED: set[JobStage](),
    JobStage.FAILED: set[JobStage](),
}
"""The stages that may follow each stage."""


class TransitionError(MltcpError):
    """A job was to pass to a stage that does not follow its present one; nothing has changed."""


class JobLifecycle:
    """Changes the records of jobs: every change is checked, made in the registry, saved, and told to the listeners.

    Args:
        context: the service's state.
        has_engine: whether jobs with a command are run by the service's engine.
    """

    def __init__(self, context: ServiceContext, has_engine: bool) -> None:
        self._context, self._registry = context, context.registry
        self._has_engine = has_engine
        self._listeners: list[JobListener] = []
        for job in self._registry.jobs.values():
            if not job.over:
                context.counts.passed(None, self.stage(job).name)

    def subscribe(self, listener: JobListener) -> None:
        """Tell a listener of each change from now on, after those that have subscribed before."""
        self._listeners.append(listener)

    def stage(self, job: JobRecord) -> JobStage:
        """The stage of a job."""
        if job.state != pb.PLACED:
            return JobStage[job.state_name]
        if self._has_engine and (job.engine or job.spec.command or job.spec.held):
            if job.reason:
                return JobStage.RELEASING
            return JobStage.RUNNING if job.engine else JobStage.LAUNCHING
        return JobStage.RUNNING

    def has_processes(self, job: JobRecord) -> bool:
        """Whether the engine runs a job, or is starting it."""
        return self._has_engine and job.placed and bool(job.engine or job.spec.command or job.spec.held)

    def add(self, job: JobRecord) -> None:
        """Register a new job, REGISTERED or QUEUED."""
        self._registry.add_job(job)
        save_new_job(self._context.store, job)
        self._tell(None, job)

    def queue(self, job: JobRecord) -> None:
        """Queue a job that was registered."""
        queued = replace(job, state=pb.QUEUED)
        self._check(job, queued)
        self._registry.add_job(queued)
        self._saved(job, queued)

    def place(self, job: JobRecord, policy: str, slots: Sequence[int]) -> JobRecord:
        """Give a job slots, as a policy has decided."""
        self._check(job, replace(job, state=pb.PLACED, reason=""))
        named, now_ns = replace(job, policy=policy), self._context.clock.now_ns()
        placed = self._registry.place(named, slots, self._registry.links_of(job, slots), now_ns)
        return self._saved(job, placed)

    def change(self, job: JobRecord, **fields: Any) -> JobRecord:
        """Replace fields of a job's record, which keeps its slots: it is launched, released, stopped, or as it was."""
        changed = replace(job, **fields)
        self._check(job, changed)
        self._registry.update(changed)
        return self._saved(job, changed)

    def requeue(self, job: JobRecord, reason: str, done: int) -> JobRecord:
        """Take the slots of a job whose processes have ended, and queue it with so many iterations done."""
        self._check(job, replace(job, state=pb.QUEUED))
        self._context.decisions.pop(job.number, None)
        return self._saved(job, self._registry.requeue(job, reason, done))

    def end(self, job: JobRecord, state: int, reason: str) -> JobRecord:
        """End a job: ENDED or FAILED."""
        self._check(job, replace(job, state=state))
        return self._saved(job, self._registry.end(job, state, reason, self._context.clock.now_ns()))

    def relink(self) -> None:
        """Recompute the links of all jobs that hold slots, after links were added."""
        for before, after in self._registry.relink():
            self._saved(before, after)

    def _check(self, before: JobRecord, after: JobRecord) -> None:
        """Raise `TransitionError` unless the stage stays, or may follow."""
        now, then = self.stage(before), self.stage(after)
        if now is not then and then not in TRANSITIONS[now]:
            allowed = ", ".join(sorted(each.name for each in TRANSITIONS[now])) or "no other stage"
            raise TransitionError(f"job {before.id!r}: expected {allowed} after {now.name}, got {then.name}")

    def _saved(self, before: JobRecord, after: JobRecord) -> JobRecord:
        save_job(self._context.store, after, self._registry.places(after))
        self._tell(before, after)
        return after

    def _tell(self, before: JobRecord | None, after: JobRecord) -> None:
        was = None if before is None else self.stage(before).name
        self._context.counts.passed(was, self.stage(after).name)
        for listener in self._listeners:
            listener(before, after)
