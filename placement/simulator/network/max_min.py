"""Weighted max-min fair rates of the messages that share links, kept up to date group by group.

A message alone would have its *peak*, the rate of the slowest link of its route. A link whose messages could not all
have their peaks is *contended*; only contended links hold rates down. Messages that are connected by contended links
are a group, and a change of one of them changes rates of its group at most. Within a group all rates rise in proportion
to their weights; a link that is full settles the rates of its messages (progressive filling), each link in its turn.

Times are in picoseconds, rates in bytes a picosecond.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placement.model.compiled import compiled
from placement.model.state import Records
from placement.simulator.exact.event_heap import EventHeap, drop, pop, put
from placement.simulator.network.laws.state import factor

MESSAGE = np.dtype(
    [
        ("job", "i8"),
        ("step", "i8"),
        ("connection", "i8"),
        ("first", "i8"),  # of its places on links
        ("links", "i8"),
        ("size", "f8"),  # bytes
        ("delay", "i8"),  # of propagation
        ("peak", "f8"),
        ("peak_bps", "f8"),
        ("sending", "i8"),
        ("left", "f8"),
        ("rate", "f8"),
        ("before", "f8"),  # its rate before the group was filled
        ("weight", "f8"),
        ("full", "i8"),  # the link that settled its rate, or -1
        ("since", "i8"),  # the time of which `left` is
        ("waited", "i8"),  # the message before it on its connection for which it waited, or -1
        ("behind", "i8"),  # the message that waits for it on its connection, or -1
        ("parts", "i8"),  # the first of its parts of lost time, or -1
        ("seed", "i8"),  # whether its group is to be filled again
        ("visited", "i8"),
    ]
)

LINK = np.dtype(
    [
        ("rate", "f8"),
        ("rate_bps", "f8"),
        ("asked_bps", "f8"),  # the sum of its messages' peaks
        ("messages", "i8"),
        ("head", "i8"),  # the first place on it, or -1
        ("sent", "f8"),  # bytes of messages that have ended
        ("spare", "f8"),
        ("weight", "f8"),  # of messages whose rates are not settled
        ("unsettled", "i8"),
        ("visited", "i8"),
    ]
)

PLACE = np.dtype([("link", "i8"), ("message", "i8"), ("before", "i8"), ("after", "i8")])
"""A message on a link: a node of the link's list."""

STEP = np.dtype(
    [
        ("job", "i8"),
        ("compute", "i8"),
        ("computed", "i8"),  # with the noise of the iteration
        ("first", "i8"),  # of its messages
        ("messages", "i8"),
        ("waits", "i8"),  # for so many steps
        ("first_next", "i8"),
        ("nexts", "i8"),  # so many steps wait for it
        ("pending", "i8"),
        ("sending", "i8"),
        ("left", "i8"),  # messages
        ("arrived", "i8"),
        ("last", "i8"),  # the message that arrived last, or -1
        ("waited", "i8"),  # the step for which it waited last, or -1
    ]
)

JOB = np.dtype(
    [
        ("shape", "i8"),
        ("slope", "f8"),
        ("intercept", "f8"),
        ("increase", "f8"),  # the exponent of F
        ("decrease", "f8"),  # the exponent of max(1, F)
        ("noise", "f8"),  # what a nanosecond of noise is of the computing
        ("scale", "f8"),  # of this iteration's computing
        ("first_step", "i8"),
        ("steps", "i8"),
        ("first_message", "i8"),
        ("messages", "i8"),
        ("first_connection", "i8"),
        ("connections", "i8"),
        ("iterations", "i8"),
        ("number", "i8"),
        ("left", "i8"),  # steps
        ("began", "i8"),
        ("parts", "i8"),
    ]
)

CONNECTION = np.dtype([("total", "f8"), ("sent", "f8"), ("tail", "i8")])

PART = np.dtype([("next", "i8"), ("neighbour", "i8"), ("link", "i8"), ("lost", "f8")])
"""Time lost to a neighbour on a link; a list for each message and each job, and one of what is free."""

ENDED = np.dtype([("job", "i8"), ("began", "i8"), ("ended", "i8"), ("unhindered", "f8")])

CORE = np.dtype(
    [
        ("now", "i8"),
        ("hold", "i8"),
        ("attributes", "i8"),
        ("epoch", "i8"),
        ("seeds", "i8"),
        ("messages", "i8"),  # of the group
        ("links", "i8"),
        ("sending", "i8"),
        ("most", "i8"),  # messages that were on a link at once
        ("free", "i8"),
        ("free_parts", "i8"),
        ("logged", "i8"),
        ("fills", "i8"),
        ("filled", "i8"),  # messages, in all fills
    ]
)


class ShareState(NamedTuple):
    """The state of a simulation.

    Attributes:
        core, messages, links, places, steps, jobs, connections, parts, ended: of the records above.
        nexts: the steps that wait for each step, one after the other.
        noise: for each job, that of its iterations in nanoseconds, used in turn.
        due: what happens next: ends of messages, steps, starts of jobs, and fills that are due, numbered in this order.
        levels: of the links, and of the peaks of messages, in the group that is filled.
        seeds, group, group_links: scratch.
    """

    core: Records
    messages: Records
    links: Records
    places: Records
    steps: Records
    jobs: Records
    connections: Records
    parts: Records
    ended: Records
    nexts: np.ndarray
    noise: np.ndarray
    due: EventHeap
    levels: EventHeap
    seeds: np.ndarray
    group: np.ndarray
    group_links: np.ndarray


_ROUNDING = 1e-12


@compiled
def is_contended(link: Records) -> bool:
    """Whether the peaks of its messages exceed its rate."""
    return link.asked_bps > link.rate_bps * (1 + _ROUNDING)


@compiled
def enter(state: ShareState, number: int) -> None:
    """Put a message on its links."""
    message = state.messages[number]
    message.rate, message.full = 0.0, -1
    for place in range(message.first, message.first + message.links):
        node = state.places[place]
        link = state.links[node.link]
        node.before, node.after = -1, link.head
        if link.head >= 0:
            state.places[link.head].before = place
        link.head = place
        link.messages += 1
        link.asked_bps += message.peak_bps
        state.core[0].most = max(state.core[0].most, link.messages)
    state.core[0].sending += 1
    plant(state, number)


@compiled
def leave(state: ShareState, number: int) -> None:
    """Take a message off its links; what it has lost and kept from others until now is counted before."""
    message = state.messages[number]
    for place in range(message.first, message.first + message.links):
        link = state.links[state.places[place].link]
        if is_contended(link):
            node = link.head
            while node >= 0:
                other = state.places[node].message
                settle(state, other)
                if other != number:
                    plant(state, other)
                node = state.places[node].after
    for place in range(message.first, message.first + message.links):
        node = state.places[place]
        link = state.links[node.link]
        if node.before >= 0:
            state.places[node.before].after = node.after
        else:
            link.head = node.after
        if node.after >= 0:
            state.places[node.after].before = node.before
        link.messages -= 1
        link.asked_bps = link.asked_bps - message.peak_bps if link.messages else 0.0
        link.sent += message.size
    message.rate = 0.0
    state.core[0].sending -= 1
    drop(state.due, hold_item(state, number))


@compiled
def hold_item(state: ShareState, number: int) -> int:
    """The number, in `due`, of the next fill of the group that was filled from this message."""
    return len(state.messages) + len(state.steps) + len(state.jobs) + number


@compiled
def plant(state: ShareState, number: int) -> None:
    """Note that the group of a message is to be filled again."""
    if state.messages[number].seed == 0:
        state.messages[number].seed = 1
        state.seeds[state.core[0].seeds] = number
        state.core[0].seeds += 1


@compiled
def fill_planted(state: ShareState) -> None:
    """Fill the groups of all messages that were noted."""
    core = state.core[0]
    core.epoch += 1
    for place in range(core.seeds):
        number = state.seeds[place]
        message = state.messages[number]
        message.seed = 0
        if message.sending and message.visited != core.epoch:
            _gather(state, number)
            _fill(state)
            _schedule(state, number)
    core.seeds = 0


@compiled
def settle(state: ShareState, number: int) -> None:
    """Count what a message has sent, and lost to whom, since its rate was set."""
    message = state.messages[number]
    took = state.core[0].now - message.since
    if took > 0:
        message.left = max(0.0, message.left - message.rate * took)
        if state.core[0].attributes and message.full >= 0 and message.rate < message.peak:
            _attribute(state, message, number, took * (1 - message.rate / message.peak))
    message.since = state.core[0].now


@compiled
def _attribute(state: ShareState, message: Records, number: int, lost: float) -> None:
    """Divide lost time among the others on the full link, in proportion to the rates that they have there."""
    others, node = 0.0, state.links[message.full].head
    while node >= 0:
        other = state.places[node].message
        if other != number:
            others += state.messages[other].rate
        node = state.places[node].after
    # Parts are in the order of the link's list, so that the next one is mostly the one after the last.
    last, node = -1, state.links[message.full].head
    while node >= 0:
        other = state.messages[state.places[node].message]
        if state.places[node].message != number and other.rate > 0:
            last = _part(state, message, other.job, last)
            state.parts[last].lost += lost * other.rate / others
        node = state.places[node].after


@compiled
def _part(state: ShareState, message: Records, neighbour: int, last: int) -> int:
    """The part of a message that belongs to a neighbour on its full link; a new one stands after `last`."""
    for first, end in ((state.parts[last].next if last >= 0 else message.parts, -1), (message.parts, last)):
        part = first
        while part != end:
            if state.parts[part].neighbour == neighbour and state.parts[part].link == message.full:
                return part
            part = state.parts[part].next
    if last >= 0 and state.parts[last].neighbour == neighbour and state.parts[last].link == message.full:
        return last
    core = state.core[0]
    new = core.free
    core.free = state.parts[new].next
    core.free_parts -= 1
    entry = state.parts[new]
    entry.neighbour, entry.link, entry.lost = neighbour, message.full, 0.0
    if last >= 0:
        entry.next, state.parts[last].next = state.parts[last].next, new
    else:
        entry.next, message.parts = message.parts, new
    return new


@compiled
def _gather(state: ShareState, seed: int) -> None:
    """Gather the group of a message, and their contended links."""
    core = state.core[0]
    state.group[0] = seed
    state.messages[seed].visited = core.epoch
    core.messages, core.links = 1, 0
    done = 0
    while done < core.messages:
        message = state.messages[state.group[done]]
        done += 1
        for place in range(message.first, message.first + message.links):
            number = state.places[place].link
            link = state.links[number]
            if link.visited == core.epoch or not is_contended(link):
                continue
            link.visited = core.epoch
            state.group_links[core.links] = number
            core.links += 1
            node = link.head
            while node >= 0:
                other = state.places[node].message
                if state.messages[other].visited != core.epoch:
                    state.messages[other].visited = core.epoch
                    state.group[core.messages] = other
                    core.messages += 1
                node = state.places[node].after
    core.fills += 1
    core.filled += core.messages


@compiled
def _fill(state: ShareState) -> None:
    """Settle the rates of a group, by rising level: rate / weight."""
    core = state.core[0]
    for place in range(core.links):
        link = state.links[state.group_links[place]]
        link.spare, link.weight, link.unsettled = link.rate, 0.0, 0
    for place in range(core.messages):
        settle(state, state.group[place])
    for place in range(core.messages):
        _offer(state, state.group[place])
    for place in range(core.links):
        link = state.links[state.group_links[place]]
        put(state.levels, state.group_links[place], link.spare / link.weight)
    left = core.messages
    while left > 0:
        item = pop(state.levels)
        level = state.levels.due[item]
        if item >= len(state.links):
            number = item - len(state.links)
            if state.messages[number].rate < 0:
                _take(state, number, state.messages[number].peak, -1)
                left -= 1
            continue
        link = state.links[item]
        if link.unsettled == 0:
            continue
        # Levels of links only rise while others are settled: they are looked at again when their turn comes.
        risen = max(0.0, link.spare) / link.weight
        if risen > level * (1 + _ROUNDING):
            put(state.levels, item, risen)
            continue
        node = link.head
        while node >= 0:
            number = state.places[node].message
            if state.messages[number].rate < 0:
                _take(state, number, state.messages[number].weight * risen, item)
                left -= 1
            node = state.places[node].after
    while state.levels.size[0] > 0:
        pop(state.levels)


@compiled
def _offer(state: ShareState, number: int) -> None:
    """Add a message to the contended links of its route, or its peak as a level where none of them implies it."""
    message = state.messages[number]
    message.before, message.rate = message.rate, -1.0
    message.weight = _weight(state, message)
    implied = False
    for place in range(message.first, message.first + message.links):
        link = state.links[state.places[place].link]
        if link.visited == state.core[0].epoch:
            link.weight += message.weight
            link.unsettled += 1
            implied = implied or link.rate <= message.peak
    if not implied:
        put(state.levels, len(state.links) + number, message.peak / message.weight)


@compiled
def _weight(state: ShareState, message: Records) -> float:
    job = state.jobs[message.job]
    if job.shape == 0:
        return 1.0
    connection = state.connections[message.connection]
    sent = connection.sent + message.size - message.left
    f = factor(job, min(1.0, sent / connection.total), 1.0)
    weight = 1.0
    if job.increase != 0.0:
        weight = f if job.increase == 1.0 else f**job.increase
    if job.decrease != 0.0 and f > 1.0:
        weight *= f**job.decrease
    return weight


@compiled
def _take(state: ShareState, number: int, rate: float, full: int) -> None:
    """Settle the rate of a message, and take it and its weight from its links."""
    message = state.messages[number]
    message.rate, message.full = rate, full
    for place in range(message.first, message.first + message.links):
        link = state.links[state.places[place].link]
        if link.visited == state.core[0].epoch:
            link.spare -= rate
            link.weight -= message.weight
            link.unsettled -= 1


@compiled
def _schedule(state: ShareState, seed: int) -> None:
    """Schedule the ends of a group's messages, and the next fill where weights change by themselves."""
    core = state.core[0]
    changes = False
    for place in range(core.messages):
        number = state.group[place]
        message = state.messages[number]
        if abs(message.rate - message.before) <= message.before * _ROUNDING:
            # Elsewhere in the group: its end is scheduled.
            message.rate = message.before
        else:
            put(state.due, number, core.now + np.int64(round(message.left / message.rate)))
        drop(state.due, hold_item(state, number))
        job = state.jobs[message.job]
        changes = changes or (job.shape > 0 and (job.increase != 0.0 or job.decrease != 0.0))
    if changes and core.messages > 1:
        put(state.due, hold_item(state, seed), core.now + core.hold)
