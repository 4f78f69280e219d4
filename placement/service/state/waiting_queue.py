"""The queue of jobs that wait for placement."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from placement.service.state.job_record import JobRecord, ResourceClass

_Key = tuple[int, int, str]


class WaitingQueue:
    """A queue of jobs by remaining service (SRSF), grouped by resource class.

    When the first job of a class does not fit, the whole class is skipped, at a cost independent of its length.
    """

    def __init__(self) -> None:
        self._by_class: dict[ResourceClass, list[_Key]] = {}
        self._places: dict[str, tuple[ResourceClass, _Key]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._places

    def add(self, job: JobRecord, resource_class: ResourceClass) -> None:
        """Add a job."""
        key = (job.service_ns, job.number, job.id)
        self._places[job.id] = (resource_class, key)
        insort(self._by_class.setdefault(resource_class, []), key)

    def remove(self, job_id: str) -> None:
        """Remove a job if it is in the queue."""
        if job_id not in self._places:
            return
        resource_class, key = self._places.pop(job_id)
        keys = self._by_class[resource_class]
        del keys[bisect_left(keys, key)]
        if not keys:
            del self._by_class[resource_class]

    def heads(self) -> Iterator[tuple[str, ResourceClass]]:
        """The first job of each resource class with the class, ordered by service."""
        heads = sorted(
            ((keys[0], resource_class) for resource_class, keys in self._by_class.items()),
            key=lambda head: head[0],
        )
        for (_, _, job_id), resource_class in heads:
            yield job_id, resource_class
