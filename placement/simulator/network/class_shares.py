"""Rates of messages where links have a queue for each traffic class.

All messages that contended links connect get new rates together, in three stages of progressive filling:

1. *Parts.* A link with weighted queues divides what it has among the classes that can use more, by their weights, and a
   class's part among its messages, by theirs; what a class leaves is divided again, in as many rounds as there are
   classes at most. A link without classes divides as always; strict priorities hold nobody here. This gives limits.
2. *Order.* Up to these limits, class after class from 7 down, each with what those above it have left.
3. *Rest.* What is still left, up to peaks, in the same order.

With strict priorities on all contended links the second stage is all: the max-min fair rates of each class in turn.
With weighted queues the first one is: on one link exactly those of fluid weighted fair queueing. With both, or with
links that ignore classes beside strict ones, a message is sure of its fair share on the links that are not strict.
"""

from __future__ import annotations

import numpy as np

from placement.model.compiled import compiled
from placement.model.state import Records
from placement.simulator.exact.event_heap import pop, put
from placement.simulator.network.max_min import (
    ShareState,
    count_lost,
    is_contended,
    join,
    schedule,
    settle,
    weight_of,
)
from placement.simulator.network.topology import CLASSES

STRICT, WEIGHTED = 1, 2
"""Kinds of queues of a link; 0: it ignores classes."""

QUEUE = np.dtype([("spare", "f8"), ("weight", "f8"), ("unsettled", "i8")])
"""What messages compete for in one filling: a class's part of a link, or all of it, which is its queue 0."""

_PARTS, _ORDER, _REST, _STAGES = (CLASSES * stage for stage in range(4))
_EQUAL = 1e-11
_ROUNDING = 1e-12


@compiled
def class_of(state: ShareState, message: Records) -> int:
    """The traffic class of a message that begins to be sent (`RemainingClass`)."""
    job = state.jobs[message.job]
    if job.bounds == 0 or message.links == 0:
        return job.priority
    rate = state.links[state.places[message.first].link].rate
    for place in range(message.first, message.first + message.links):
        rate = min(rate, state.links[state.places[place].link].rate)
    connection = state.connections[message.connection]
    left = (connection.total - connection.sent) / rate
    for place in range(job.bounds):
        if left < state.bounds[job.first_bound + place]:
            return CLASSES - 1 - place
    return CLASSES - 1 - job.bounds


@compiled
def fill_by_class(state: ShareState) -> None:
    """Set the rates of the messages that were noted, and of all that contended links connect with them."""
    core = state.core[0]
    is_strict, is_fair = _gather(state)
    classes = 0
    for place in range(core.messages):
        message = state.messages[state.group[place]]
        message.counted = core.now
        if message.full >= 0:
            state.links[message.full].settled -= 1
        message.before, message.rate, message.full, message.limit = message.rate, 0.0, -1, message.peak
        classes |= 1 << message.priority
    first, last = 0, _STAGES
    if not is_fair:  # links that are strict need the order alone, and none but the peaks
        first, last = (_ORDER, _REST) if is_strict else (0, 1)
    _restore(state)
    for stage in range(first, last):
        if stage == _ORDER and is_strict:
            _restore(state)
        for place in range(core.messages if is_fair else 0):
            message = state.messages[state.group[place]]
            if stage == _ORDER:
                message.limit, message.rate = message.rate, 0.0 if is_strict else message.rate
            elif stage == _REST:
                message.limit = message.peak
        is_present = stage < _ORDER or not is_strict or (classes >> _class(stage)) & 1 == 1
        if is_present and (stage < _ORDER or is_strict or stage == _REST):
            _rise(state, stage, is_strict)
    core.fills += 1
    core.filled += core.messages
    for place in range(core.messages):
        number = state.group[place]
        if state.messages[number].full >= 0:
            state.links[state.messages[number].full].settled += 1
        schedule(state, number)


@compiled
def _gather(state: ShareState) -> tuple[bool, bool]:
    """List the messages and their contended links; whether some of these have strict priorities, and some have not."""
    core = state.core[0]
    core.epoch += 1
    core.messages = core.links = 0
    for place in range(core.seeds):
        state.messages[state.seeds[place]].seed = 0
        if state.messages[state.seeds[place]].sending == 1:
            join(state, state.seeds[place])
    core.seeds = done = 0
    is_strict = is_fair = False
    while done < core.messages:
        number = state.group[done]
        message = state.messages[number]
        done += 1
        if message.full >= 0:
            count_lost(state, number)
        settle(state, number)
        message.weight = weight_of(state, message)
        for place in range(message.first, message.first + message.links):
            item = state.places[place].link
            link = state.links[item]
            if link.visited == core.epoch or not is_contended(link):
                continue
            link.visited = core.epoch
            state.group_links[core.links] = item
            core.links += 1
            is_strict = is_strict or link.queues == STRICT
            is_fair = is_fair or link.queues != STRICT
            node = link.head
            while node >= 0:
                join(state, state.places[node].message)
                node = state.places[node].after
    return is_strict, is_fair


@compiled
def _class(stage: int) -> int:
    """The class whose turn it is."""
    return CLASSES - 1 - stage % CLASSES


@compiled
def _restore(state: ShareState) -> None:
    for place in range(state.core[0].links):
        link = state.links[state.group_links[place]]
        link.spare = link.rate


@compiled
def _queue(state: ShareState, item: int, message: Records, stage: int) -> int:
    """The queue of a link on which a message competes in a stage, or -1."""
    link = state.links[item]
    if link.visited != state.core[0].epoch or (stage < _ORDER and link.queues == STRICT):
        return -1
    return item * CLASSES + (message.priority if stage < _ORDER and link.queues == WEIGHTED else 0)


@compiled
def _rise(state: ShareState, stage: int, is_strict: bool) -> None:
    """Let the messages of a stage rise by progressive filling, from their rates to their limits."""
    core = state.core[0]
    for place in range(core.links * CLASSES):
        item = state.group_links[place // CLASSES] * CLASSES + place % CLASSES
        state.queues[item].weight, state.queues[item].unsettled = 0.0, 0
    for place in range(core.messages):
        number = state.group[place]
        message = state.messages[number]
        message.rising = 1 if _rises(state, message, stage, is_strict) else 0
        if message.rising:
            put(state.levels, len(state.queues) + number, (message.limit - message.rate) / message.weight)
            for node in range(message.first, message.first + message.links):
                item = _queue(state, state.places[node].link, message, stage)
                if item >= 0:
                    state.queues[item].weight += message.weight
                    state.queues[item].unsettled += 1
    _divide(state, stage)
    while state.levels.size[0] > 0:
        item = pop(state.levels)
        if item >= len(state.queues):
            number = item - len(state.queues)
            if state.messages[number].rising:
                _add(state, number, state.messages[number].limit - state.messages[number].rate, -1, stage)
            continue
        queue = state.queues[item]
        if queue.unsettled == 0:
            continue
        risen = max(0.0, queue.spare) / queue.weight
        if risen > state.levels.due[item] * (1 + _ROUNDING):
            put(state.levels, item, risen)
            continue
        node = state.links[item // CLASSES].head
        while node >= 0:
            number = state.places[node].message
            message = state.messages[number]
            if message.rising and _queue(state, item // CLASSES, message, stage) == item:
                _add(state, number, message.weight * risen, item // CLASSES, stage)
            node = state.places[node].after


@compiled
def _rises(state: ShareState, message: Records, stage: int, is_strict: bool) -> bool:
    """Whether a message takes part in a stage: for parts, it must be able to have more."""
    if message.rate >= message.limit * (1 - _EQUAL):
        return False
    if stage >= _ORDER:
        return not is_strict or message.priority == _class(stage)
    for place in range(message.first, message.first + message.links):
        link = state.links[state.places[place].link]
        is_held = link.visited == state.core[0].epoch and link.queues != STRICT
        if is_held and link.spare <= link.rate * _EQUAL:
            return False
    return True


@compiled
def _divide(state: ShareState, stage: int) -> None:
    """Divide what links have left among their queues."""
    for place in range(state.core[0].links):
        item = state.group_links[place]
        link = state.links[item]
        by_class = stage < _ORDER and link.queues == WEIGHTED
        spare = link.spare if link.spare > link.rate * _EQUAL else 0.0
        total = 0.0
        for queue in range(CLASSES):
            if state.queues[item * CLASSES + queue].unsettled > 0:
                total += state.class_weights[item, queue] if by_class else 1.0
        for number in range(CLASSES):
            queue = state.queues[item * CLASSES + number]
            if queue.unsettled > 0:
                queue.spare = spare * (state.class_weights[item, number] / total if by_class else 1.0)
                put(state.levels, item * CLASSES + number, queue.spare / queue.weight)


@compiled
def _add(state: ShareState, number: int, rate: float, full: int, stage: int) -> None:
    """Let a message rise by a rate, and no further in this stage."""
    message = state.messages[number]
    message.rate = message.rate + rate if full >= 0 else message.limit
    message.full, message.rising = full, 0
    for place in range(message.first, message.first + message.links):
        item = _queue(state, state.places[place].link, message, stage)
        if item >= 0:
            queue = state.queues[item]
            queue.spare -= rate
            queue.unsettled -= 1
            queue.weight = queue.weight - message.weight if queue.unsettled else 0.0
            state.links[item // CLASSES].spare -= rate
