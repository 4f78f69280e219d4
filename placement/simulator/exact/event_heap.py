"""What happens next: an indexed heap of items, each due at one time that may change."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placement.model.compiled import compiled

NEVER = 1 << 62
_WIDTH = 4


class Agenda(NamedTuple):
    """Items numbered from 0; at most one entry each.

    Attributes:
        heap: the items that are due, as a heap of `_WIDTH` children a node.
        due: per item, when.
        place: per item, where it is in the heap, or -1.
        size: one number: how many are in the heap.
    """

    heap: np.ndarray
    due: np.ndarray
    place: np.ndarray
    size: np.ndarray


def empty(items: int) -> Agenda:
    """An agenda for `items` items, none of which is due."""
    return Agenda(
        np.zeros(items, np.int64),
        np.full(items, NEVER, np.int64),
        np.full(items, -1, np.int64),
        np.zeros(1, np.int64),
    )


@compiled
def put(agenda: Agenda, item: int, due: int) -> None:
    """Let `item` be due then, whether or not it was due at another time."""
    place = agenda.place[item]
    if place < 0:
        place = agenda.size[0]
        agenda.size[0] += 1
        agenda.due[item] = due
        _rise(agenda, item, place)
        return
    earlier = due < agenda.due[item]
    agenda.due[item] = due
    if earlier:
        _rise(agenda, item, place)
    else:
        _sink(agenda, item, place)


@compiled
def drop(agenda: Agenda, item: int) -> None:
    """Let `item` not be due."""
    place = agenda.place[item]
    if place < 0:
        return
    agenda.place[item] = -1
    agenda.size[0] -= 1
    last = agenda.heap[agenda.size[0]]
    if last == item:
        return
    if agenda.due[last] < agenda.due[item]:
        _rise(agenda, last, place)
    else:
        _sink(agenda, last, place)


@compiled
def soonest(agenda: Agenda) -> int:
    """When the next item is due; NEVER if there is none."""
    return agenda.due[agenda.heap[0]] if agenda.size[0] else NEVER


@compiled
def pop(agenda: Agenda) -> int:
    """Take the item that is due next."""
    item = agenda.heap[0]
    drop(agenda, item)
    return item


@compiled
def _rise(agenda: Agenda, item: int, place: int) -> None:
    due = agenda.due[item]
    while place > 0:
        above = (place - 1) // _WIDTH
        other = agenda.heap[above]
        if agenda.due[other] <= due:
            break
        agenda.heap[place] = other
        agenda.place[other] = place
        place = above
    agenda.heap[place] = item
    agenda.place[item] = place


@compiled
def _sink(agenda: Agenda, item: int, place: int) -> None:
    due = agenda.due[item]
    size = agenda.size[0]
    while True:
        below = place * _WIDTH + 1
        if below >= size:
            break
        least = below
        for child in range(below + 1, min(below + _WIDTH, size)):
            if agenda.due[agenda.heap[child]] < agenda.due[agenda.heap[least]]:
                least = child
        other = agenda.heap[least]
        if agenda.due[other] >= due:
            break
        agenda.heap[place] = other
        agenda.place[other] = place
        place = least
    agenda.heap[place] = item
    agenda.place[item] = place
