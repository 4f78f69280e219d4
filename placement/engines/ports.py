"""The ports at which the ranks of jobs meet: one a job, below those that the kernel gives to connections."""

from __future__ import annotations

from placement.engines.engine import EngineError

FIRST, LAST = 20000, 29999


class Ports:
    """Ports in turn, so that one is not used again right away. Not safe to use from several threads."""

    def __init__(self, first: int = FIRST, last: int = LAST) -> None:
        self._first, self._count = first, last - first + 1
        self._taken: dict[str, int] = {}
        self._next = 0

    def take(self, job_id: str) -> int:
        """A port that no other job has.

        Raises:
            EngineError: there is none.
        """
        if len(self._taken) == self._count:
            raise EngineError(f"job {job_id}: no port is free: {self._count} jobs are the most")
        taken = set(self._taken.values())
        while (port := self._first + self._next) in taken:
            self._next = (self._next + 1) % self._count
        self._next = (self._next + 1) % self._count
        self._taken[job_id] = port
        return port

    def release(self, job_id: str) -> None:
        """Take back the port of a job."""
        self._taken.pop(job_id, None)
