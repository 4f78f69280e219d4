"""An indexed heap of items, each due at one time, which may change."""

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
def put(heap: EventHeap, item: int, due: int) -> None:
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
    if heap.due[last] < heap.due[item]:
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
def _rise(heap: EventHeap, item: int, place: int) -> None:
    due = heap.due[item]
    while place > 0:
        above = (place - 1) // _WIDTH
        other = heap.order[above]
        if heap.due[other] <= due:
            break
        heap.order[place] = other
        heap.place[other] = place
        place = above
    heap.order[place] = item
    heap.place[item] = place


@compiled
def _sink(heap: EventHeap, item: int, place: int) -> None:
    due = heap.due[item]
    size = heap.size[0]
    while True:
        below = place * _WIDTH + 1
        if below >= size:
            break
        least = below
        for child in range(below + 1, min(below + _WIDTH, size)):
            if heap.due[heap.order[child]] < heap.due[heap.order[least]]:
                least = child
        other = heap.order[least]
        if heap.due[other] >= due:
            break
        heap.order[place] = other
        heap.place[other] = place
        place = least
    heap.order[place] = item
    heap.place[item] = place
