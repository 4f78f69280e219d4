"""The time for which a job holds GPUs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Span:
    """The time for which a job held GPUs, from a start to its stop or end.

    Attributes:
        job: its name.
        gpus: their numbers in the cluster.
        start_ns: when it got them.
        end_ns: when it gave them back.
        hold_ns: the cost of the restart, at the beginning.
    """

    job: str
    gpus: tuple[int, ...]
    start_ns: int
    end_ns: int
    hold_ns: int = 0
