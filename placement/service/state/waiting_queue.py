"""The queue of jobs that wait for placement."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field

from placement.service.state.job_record import JobRecord, ResourceClass

_Key = tuple[int, int, str]


@dataclass
class _Waiting:
    """A job in the queue: its keys by age, among the jobs that are in time, and among the others."""

    resource_class: ResourceClass
    by_age: _Key
    by_service: _Key
    by_deadline: _Key | None
    latest_start_ns: int = 0


@dataclass
class _ClassQueue:
    """The jobs of one resource class: those that can meet their deadline, and the others."""

    in_time: list[_Key] = field(default_factory=list)
    others: list[_Key] = field(default_factory=list)


class WaitingQueue:
    """A queue of jobs: first those that can still meet their deadline, by deadline; then the others, by service (SRSF).

    A job that would end late if it were placed now never becomes early again: it takes its place among the jobs without
    a deadline. Within a resource class, when the first job does not fit, the whole class is skipped, at a cost
    independent of its length.
    """

    def __init__(self) -> None:
        self._by_class: dict[ResourceClass, _ClassQueue] = {}
        self._jobs: dict[str, _Waiting] = {}
        self._by_age: list[_Key] = []

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._jobs

    def add(self, job: JobRecord, resource_class: ResourceClass) -> None:
        """Add a job."""
        by_age = (job.submitted_ns, job.number, job.id)
        waiting = _Waiting(resource_class, by_age, (job.service_ns, job.number, job.id), None)
        queue = self._by_class.setdefault(resource_class, _ClassQueue())
        if job.deadline_ns is None:
            insort(queue.others, waiting.by_service)
        else:
            waiting.by_deadline = (job.deadline_ns, job.number, job.id)
            waiting.latest_start_ns = job.deadline_ns - job.run_ns
            insort(queue.in_time, waiting.by_deadline)
        self._jobs[job.id] = waiting
        insort(self._by_age, waiting.by_age)

    def oldest(self) -> tuple[str, int] | None:
        """The job that was submitted first, and when, since the epoch; None if no job waits."""
        if not self._by_age:
            return None
        submitted_ns, _, job_id = self._by_age[0]
        return job_id, submitted_ns

    def remove(self, job_id: str) -> None:
        """Remove a job if it is in the queue."""
        if job_id not in self._jobs:
            return
        waiting = self._jobs.pop(job_id)
        del self._by_age[bisect_left(self._by_age, waiting.by_age)]
        queue = self._by_class[waiting.resource_class]
        if waiting.by_deadline is not None:
            del queue.in_time[bisect_left(queue.in_time, waiting.by_deadline)]
        else:
            del queue.others[bisect_left(queue.others, waiting.by_service)]
        if not queue.in_time and not queue.others:
            del self._by_class[waiting.resource_class]

    def heads(self, now_ns: int) -> Iterator[tuple[str, ResourceClass]]:
        """The first job of each resource class with the class; jobs in time before the others."""
        in_time: list[tuple[_Key, ResourceClass]] = []
        others: list[tuple[_Key, ResourceClass]] = []
        for resource_class, queue in self._by_class.items():
            self._set_late_apart(queue, now_ns)
            if queue.in_time:
                in_time.append((queue.in_time[0], resource_class))
            else:
                others.append((queue.others[0], resource_class))
        for found in (in_time, others):
            for (_, _, job_id), resource_class in sorted(found, key=lambda head: head[0]):
                yield job_id, resource_class

    def _set_late_apart(self, queue: _ClassQueue, now_ns: int) -> None:
        while queue.in_time:
            waiting = self._jobs[queue.in_time[0][2]]
            if waiting.latest_start_ns >= now_ns:
                return
            del queue.in_time[0]
            waiting.by_deadline = None
            insort(queue.others, waiting.by_service)
