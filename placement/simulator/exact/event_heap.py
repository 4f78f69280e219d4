"""The heaps of what is due: items with one time each, which may change, and the ends of tasks on GPUs.

Of items that are due at once, the least comes first: what happens does not depend on what else was in the heap.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placement.model.compiled import compiled

NEVER = 1 << 62
_WIDTH = 4


class EventHeap(NamedTuple):
    """A heap of items numbered from 0, each in it at most once.

    Attributes:
        order: the items that are due, as a heap with `_WIDTH` children a node.
        due: the time at which each item is due.
        place: the position of each item in the heap, or -1.
        size: the number of items in the heap, as an array of one.
    """

    order: np.ndarray
    due: np.ndarray
    place: np.ndarray
    size: np.ndarray


def empty(items: int) -> EventHeap:
    """Make a heap for `items` items, none of which is due."""
    return EventHeap(
        np.zeros(items, np.int64),
        np.full(items, NEVER, np.int64),
        np.full(items, -1, np.int64),
        np.zeros(1, np.int64),
    )


@compiled
def put(heap: EventHeap, item: int, due: float) -> None:
    """Set the time at which `item` is due."""
    place = heap.place[item]
    if place < 0:
        place = heap.size[0]
        heap.size[0] += 1
        heap.due[item] = due
        _rise(heap, item, place)
        return
    earlier = due < heap.due[item]
    heap.due[item] = due
    if earlier:
        _rise(heap, item, place)
    else:
        _sink(heap, item, place)


@compiled
def drop(heap: EventHeap, item: int) -> None:
    """Remove `item`, if it is due."""
    place = heap.place[item]
    if place < 0:
        return
    heap.place[item] = -1
    heap.size[0] -= 1
    last = heap.order[heap.size[0]]
    if last == item:
        return
    if _is_before(heap, last, item):
        _rise(heap, last, place)
    else:
        _sink(heap, last, place)


@compiled
def soonest(heap: EventHeap) -> int:
    """The time at which the next item is due; NEVER if there is none."""
    return heap.due[heap.order[0]] if heap.size[0] else NEVER


@compiled
def pop(heap: EventHeap) -> int:
    """Remove and return the item that is due next."""
    item = heap.order[0]
    drop(heap, item)
    return item


@compiled
def _is_before(heap: EventHeap, item: int, other: int) -> bool:
    return heap.due[item] < heap.due[other] or (heap.due[item] == heap.due[other] and item < other)


@compiled
def _rise(heap: EventHeap, item: int, place: int) -> None:
    while place > 0:
        above = (place - 1) // _WIDTH
        other = heap.order[above]
        if _is_before(heap, other, item):
            break
        heap.order[place] = other
        heap.place[other] = place
        place = above
    heap.order[place] = item
    heap.place[item] = place


@compiled
def _sink(heap: EventHeap, item: int, place: int) -> None:
    size = heap.size[0]
    while True:
        below = place * _WIDTH + 1
        if below >= size:
            break
        least = below
        for child in range(below + 1, min(below + _WIDTH, size)):
            if _is_before(heap, heap.order[child], heap.order[least]):
                least = child
        other = heap.order[least]
        if _is_before(heap, item, other):
            break
        heap.order[place] = other
        heap.place[other] = place
        place = least
    heap.order[place] = item
    heap.place[item] = place


# -- the ends of tasks; those that end together, as a job's mostly do, are one entry -----------------------------------

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


def no_tasks(gpus: int) -> TaskEnds:
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
    _raise_end(ends, due, group, numbers[_SIZE] - 1)


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
        _sink_end(ends, ends.due[last], ends.group[last], last)
    return gpu


@compiled
def _raise_end(ends: TaskEnds, due: int, group: int, place: int) -> None:
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
def _sink_end(ends: TaskEnds, due: int, group: int, size: int) -> None:
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
