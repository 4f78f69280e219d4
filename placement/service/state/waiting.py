"""The jobs that wait for a place, in the order of the service they need (SRSF), by what they ask for."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from placement.service.state.job import Job, Shape

_Key = tuple[int, int, str]


class Waiting:
    """A queue in which jobs of a shape that does not fit are passed over together, however many they are."""

    def __init__(self) -> None:
        self._by_shape: dict[Shape, list[_Key]] = {}
        self._places: dict[str, tuple[Shape, _Key]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._places

    def add(self, job: Job, shape: Shape) -> None:
        """Let a job wait."""
        key = (job.service_ns, job.number, job.id)
        self._places[job.id] = (shape, key)
        insort(self._by_shape.setdefault(shape, []), key)

    def remove(self, job_id: str) -> None:
        """A job waits no longer; nothing happens if it did not."""
        if job_id not in self._places:
            return
        shape, key = self._places.pop(job_id)
        keys = self._by_shape[shape]
        del keys[bisect_left(keys, key)]
        if not keys:
            del self._by_shape[shape]

    def heads(self) -> Iterator[tuple[str, Shape]]:
        """The first job of each shape, the least service first."""
        heads = sorted(((keys[0], shape) for shape, keys in self._by_shape.items()), key=lambda head: head[0])
        for (_, _, job_id), shape in heads:
            yield job_id, shape
