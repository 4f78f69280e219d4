"""What a simulation of jobs in a network found."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class JobCourse:
    """When each iteration of a job began and ended, in nanoseconds, and how long one takes without the others."""

    name: str
    begins_ns: NDArray[np.int64]
    ends_ns: NDArray[np.int64]
    alone_ns: float

    @property
    def slowdowns(self) -> NDArray[np.float64]:
        """Of each iteration."""
        return (self.ends_ns - self.begins_ns) / self.alone_ns


@dataclass(frozen=True)
class LinkUse:
    """What a link has carried, marked and dropped, in bytes, and its longest queue."""

    name: str
    sent_bytes: float
    marked_bytes: float
    dropped_bytes: float
    largest_queue_bytes: float


@dataclass(frozen=True)
class NetworkOutcome:
    """Jobs and links, in the order in which they were given, after so many nanoseconds."""

    jobs: tuple[JobCourse, ...]
    links: tuple[LinkUse, ...]
    ended_ns: int
