"""The traffic class of a job that keeps it while it runs, chosen when it starts beside jobs whose classes are settled.

A network interface takes the class of its connections from the environment of a job's processes (``NCCL_IB_TC``), so
that no later decision changes it. Where one link serves either of two jobs, the utilization of the GPUs is as the
intensity of the job that is served (Crux, SIGCOMM 2024, Theorem 1): two jobs whose classes are in the order of their
intensities lose nothing, two of one class half of the difference, and two in the wrong order all of it. So the class
with the least loss beside the jobs that are there is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class SettledClass:
    """A running job that shares a link: its worth, as the rule has it, and its class."""

    worth: float
    traffic_class: int


def class_beside(worth: float, settled: Sequence[SettledClass], classes: int) -> int:
    """The class, from 0 to `classes` - 1, of a job of this worth, of which the higher goes first.

    Of equally good ones it is the nearest to the middle, which leaves room on both sides for jobs that come later.
    """
    middle = (classes - 1) / 2

    def rank(each: int) -> tuple[float, float, int]:
        return sum(_lost(worth, each, other) for other in settled), abs(each - middle), each

    return min(range(classes), key=rank)


def _lost(worth: float, traffic_class: int, other: SettledClass) -> float:
    difference = abs(worth - other.worth)
    if traffic_class == other.traffic_class:
        return difference / 2
    is_in_order = (worth > other.worth) == (traffic_class > other.traffic_class)
    return 0.0 if is_in_order else difference
