"""A heap of the ends of tasks on GPUs; tasks that end together, as a job's mostly do, are one entry."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placement.model.compiled import compiled
from placement.simulator.exact.event_heap import NEVER

_WIDTH = 4
_SIZE, _LAST_GROUP, _LAST_DUE, _FREE = range(4)


class TaskEnds(NamedTuple):
    """Groups of GPUs, each with the time at which the tasks on them end. A GPU is in one group at most.

    Attributes:
        due: the times as a heap with `_WIDTH` children a node, in ns.
        group: the group of each node of the heap.
        first: a GPU of each group, or, of a free group, the next free one.
        following: the next GPU of the same group for each GPU, or -1.
        numbers: the size of the heap, the group that was added to last and its time, and a free group.
    """

    due: np.ndarray
    group: np.ndarray
    first: np.ndarray
    following: np.ndarray
    numbers: np.ndarray


def none(gpus: int) -> TaskEnds:
    """Make the heap for GPUs on which no task runs."""
    return TaskEnds(
        np.zeros(gpus, np.int64),
        np.zeros(gpus, np.int64),
        np.arange(1, gpus + 1, dtype=np.int64),
        np.full(gpus, -1, np.int64),
        np.array([0, -1, -1, 0], np.int64),
    )


@compiled
def note_end(ends: TaskEnds, gpu: int, due: int) -> None:
    """Schedule the end of the task on a GPU that had none."""
    numbers = ends.numbers
    if numbers[_LAST_DUE] == due:
        group = numbers[_LAST_GROUP]
        ends.following[gpu] = ends.first[group]
        ends.first[group] = gpu
        return
    group = numbers[_FREE]
    numbers[_FREE] = ends.first[group]
    numbers[_LAST_GROUP], numbers[_LAST_DUE] = group, due
    ends.first[group] = gpu
    ends.following[gpu] = -1
    numbers[_SIZE] += 1
    _rise(ends, due, group, numbers[_SIZE] - 1)


@compiled
def next_end(ends: TaskEnds) -> int:
    """The time at which the next task ends; NEVER if none runs."""
    return ends.due[0] if ends.numbers[_SIZE] else NEVER


@compiled
def take_ended(ends: TaskEnds) -> int:
    """Remove the group of GPUs whose tasks end next; returns the first, whose `following` links the others."""
    numbers = ends.numbers
    group = ends.group[0]
    gpu = ends.first[group]
    ends.first[group] = numbers[_FREE]
    numbers[_FREE] = group
    if numbers[_LAST_GROUP] == group:
        numbers[_LAST_DUE] = -1
    numbers[_SIZE] -= 1
    last = numbers[_SIZE]
    if last:
        _sink(ends, ends.due[last], ends.group[last], last)
    return gpu


@compiled
def _rise(ends: TaskEnds, due: int, group: int, place: int) -> None:
    while place > 0:
        above = (place - 1) // _WIDTH
        if ends.due[above] <= due:
            break
        ends.due[place] = ends.due[above]
        ends.group[place] = ends.group[above]
        place = above
    ends.due[place] = due
    ends.group[place] = group


@compiled
def _sink(ends: TaskEnds, due: int, group: int, size: int) -> None:
    place = 0
    while True:
        below = place * _WIDTH + 1
        if below >= size:
            break
        least = below
        for child in range(below + 1, min(below + _WIDTH, size)):
            if ends.due[child] < ends.due[least]:
                least = child
        if ends.due[least] >= due:
            break
        ends.due[place] = ends.due[least]
        ends.group[place] = ends.group[least]
        place = least
    ends.due[place] = due
    ends.group[place] = group
