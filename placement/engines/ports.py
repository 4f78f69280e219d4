"""Allocation of rendezvous ports to jobs, below the kernel's range of ephemeral ports."""

from __future__ import annotations

import secrets

from placement.engines.engine import EngineError

FIRST, LAST = 20000, 29999


class Ports:
    """Ports, handed out in turn so that one is not reused at once. Not thread-safe.

    Args:
        first, last: the range.
        begin: the first port to be handed out.
    """

    def __init__(self, first: int = FIRST, last: int = LAST, begin: int | None = None) -> None:
        self._first, self._count = first, last - first + 1
        self._taken: dict[str, int] = {}
        self._next = 0 if begin is None else begin - first

    @classmethod
    def begun_anywhere(cls) -> Ports:
        """Ports that begin at a random one: engines that know nothing of each other may use the same hosts."""
        return cls(begin=FIRST + secrets.randbelow(LAST - FIRST + 1))

    def take(self, job_id: str) -> int:
        """Allocate a port to a job.

        Raises:
            EngineError: all ports are taken.
        """
        if len(self._taken) == self._count:
            raise EngineError(f"job {job_id}: no port is free: all {self._count} are taken")
        taken = set(self._taken.values())
        while (port := self._first + self._next) in taken:
            self._next = (self._next + 1) % self._count
        self._next = (self._next + 1) % self._count
        self._taken[job_id] = port
        return port

    def release(self, job_id: str) -> None:
        """Free the port of a job."""
        self._taken.pop(job_id, None)
