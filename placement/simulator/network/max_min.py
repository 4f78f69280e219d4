"""Weighted max-min fair rates of the messages that share links, kept up to date where something changes.

A message alone would have its *peak*, the rate of the slowest link of its route. A link whose messages could not all
have their peaks is *contended*; only contended links hold rates down. Rates are weighted max-min fair exactly if each
message has its peak or a link that is full, where no other has a higher *level*, rate / weight (Bertsekas and Gallager,
Data Networks, 6.5.2): the link that *settled* it.

A message that comes, goes or has a new weight disturbs this on its own links only. So these messages alone rise again,
from level 0, in proportion to their weights, while all others keep their rates, until a link is full (progressive
filling). Another message joins them when a link is about to settle a lower level than it has, or when the link that
settled it would have room left at its level. Levels only rise meanwhile, and a message joins at no level above its own:
what was settled before stays right.

Times are in picoseconds, rates in bytes a picosecond.
"""

from __future__ import annotations

import math
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
        ("room", "i8"),  # so many places it may have there
        ("size", "f8"),  # bytes
        ("burst_bytes", "f8"),  # that its connection sends in its burst
        ("burst_before", "f8"),  # of them, those before it
        ("delay", "i8"),  # of propagation
        ("peak", "f8"),
        ("peak_bps", "f8"),
        ("most_bps", "f8"),  # whatever its links have
        ("sending", "i8"),  # 0, 1, or WAITS
        ("down", "i8"),  # a link of its way that is down, or -1
        ("passed", "f8"),  # bytes that it sent before it last had to wait or got another way, and
        ("passed_in", "f8"),  # the time that they take at the peaks of those ways
        ("left", "f8"),
        ("rate", "f8"),  # below 0 while it is not settled
        ("before", "f8"),  # its rate before it rose again
        ("weight", "f8"),
        ("full", "i8"),  # the link that settled its rate, or -1
        ("since", "i8"),  # the time of which `left` is
        ("counted", "i8"),  # the time until which lost time is attributed
        ("waited", "i8"),  # the message before it on its connection for which it waited, or -1
        ("behind", "i8"),  # the message that waits for it on its connection, or -1
        ("parts", "i8"),  # the first of its parts of lost time, or -1
        ("seed", "i8"),  # whether it is to rise again
        ("visited", "i8"),
        ("priority", "i8"),  # its traffic class
        ("limit", "f8"),  # below which it rises, and
        ("rising", "i8"),  # whether it does: of `class_shares`
    ]
)

LINK = np.dtype(
    [
        ("rate", "f8"),
        ("rate_bps", "f8"),
        ("asked_bps", "f8"),  # the sum of its messages' peaks
        ("messages", "i8"),
        ("head", "i8"),  # the first place on it, or -1
        ("used", "f8"),  # the sum of its messages' rates
        ("level", "f8"),  # of the messages that it has settled
        ("settled", "i8"),  # so many
        ("spare", "f8"),
        ("weight", "f8"),  # of messages whose rates are not settled
        ("unsettled", "i8"),
        ("visited", "i8"),
        ("sent", "f8"),  # bytes of messages that have ended
        ("queues", "i8"),  # for traffic classes: of the kinds in `class_shares`
    ]
)

PLANNED = 2
"""A step that asks for nobody's leave, and waits for the time at which its iteration may send."""

WAITS = 2
"""A message that a link on its way has no place for: it is down. It is on no link."""

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
        ("asks", "i8"),  # to send: 1, or PLANNED
        ("arrived", "i8"),
        ("last", "i8"),  # the message that arrived last, or -1
        ("waited", "i8"),  # the step for which it waited last, or -1
        ("begun", "i8"),  # computing
        ("held", "i8"),  # the time for which its gate held back what it sends
    ]
)

JOB = np.dtype(
    [
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
        ("delay", "i8"),  # of its next iteration
        ("held", "i8"),  # the delay of this iteration, which is a part of it
        ("shifted", "i8"),  # the same once it has begun
        ("is_silent", "i8"),  # whether this iteration has not sent yet
        ("first_sent", "i8"),  # when the last iteration that has sent began to
        ("told", "i8"),  # whether that was after its last delay
        ("gated", "i8"),  # whether it sends only when it is granted its links
        ("granted", "i8"),
        ("asks", "i8"),
        ("gives_back", "i8"),  # it has sent all that it was granted
        ("steps_sending", "i8"),
        ("planned", "i8"),  # so many iterations
        ("plan", "i8"),  # the number of the first of them
        ("parts", "i8"),
        ("priority", "i8"),  # its traffic class, where it is fixed
        ("first_bound", "i8"),  # of `bounds`, where it follows from what is left
        ("bounds", "i8"),
    ]
)

CONNECTION = np.dtype(
    [
        ("total", "f8"),
        ("sent", "f8"),
        ("tail", "i8"),
        ("shape", "i8"),
        ("slope", "f8"),
        ("intercept", "f8"),
        ("increase", "f8"),  # the exponent of F
        ("decrease", "f8"),  # the exponent of max(1, F)
    ]
)

PART = np.dtype([("next", "i8"), ("neighbour", "i8"), ("link", "i8"), ("lost", "f8")])
"""Time lost to a neighbour on a link, or (-1) while it was down; a list for each message and job, one of free ones."""

ENDED = np.dtype([("job", "i8"), ("began", "i8"), ("ended", "i8"), ("unhindered", "f8"), ("waited", "f8")])

CORE = np.dtype(
    [
        ("now", "i8"),
        ("hold", "i8"),
        ("attributes", "i8"),
        ("epoch", "i8"),
        ("seeds", "i8"),
        ("messages", "i8"),  # that rise again
        ("links", "i8"),  # of `group_links`
        ("sending", "i8"),
        ("most", "i8"),  # messages that were on a link at once
        ("free", "i8"),
        ("free_parts", "i8"),
        ("logged", "i8"),
        ("stops", "i8"),  # whether to stop when a job has ended
        ("finished", "i8"),  # jobs that have ended
        ("calls", "i8"),  # jobs that ask, or give back
        ("fills", "i8"),
        ("filled", "i8"),  # messages, in all fills
        ("classed", "i8"),  # whether traffic classes matter
    ]
)


class ShareState(NamedTuple):
    """The state of a simulation.

    Attributes:
        core, messages, links, places, steps, jobs, connections, parts, ended: of the records above.
        nexts: the steps that wait for each step, one after the other.
        noise: for each job, that of its iterations in nanoseconds, used in turn.
        plans: for each job, when its planned iterations may send.
        bounds: of traffic classes that follow from what is left, in picoseconds.
        class_weights: of each link and class.
        queues: of `class_shares.QUEUE`, for each link and class.
        due: what happens next: ends of messages, steps, starts of jobs, and when the weight of a message is looked at
            again, numbered in this order.
        levels: at which links are full and messages have their peaks.
        seeds: messages that are to rise again.
        group, group_links: those that rise, and, where classes matter, all contended links of theirs.
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
    plans: np.ndarray
    bounds: np.ndarray
    class_weights: np.ndarray
    queues: Records
    due: EventHeap
    levels: EventHeap
    seeds: np.ndarray
    group: np.ndarray
    group_links: np.ndarray


_ROUNDING = 1e-12
_FAR = 1e18
_EQUAL = 1e-11
"""Levels that differ by less are equal: so much rates may miss the exact ones by, relatively."""


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
        was_contended = is_contended(link)
        node.before, node.after = -1, link.head
        if link.head >= 0:
            state.places[link.head].before = place
        link.head = place
        link.messages += 1
        link.asked_bps += message.peak_bps
        state.core[0].most = max(state.core[0].most, link.messages)
        if not was_contended and is_contended(link):
            # Weights had no meaning on it until now, and may be old.
            other = node.after
            while other >= 0:
                plant(state, state.places[other].message)
                other = state.places[other].after
    state.core[0].sending += 1
    plant(state, number)


@compiled
def leave(state: ShareState, number: int) -> None:
    """Take a message off its links, and note those that may have more then."""
    core, message = state.core[0], state.messages[number]
    for place in range(message.first, message.first + message.links):
        item = state.places[place].link
        link = state.links[item]
        node = link.head if link.settled > 0 or (core.classed and is_contended(link)) else -1
        while node >= 0:
            other = state.places[node].message
            is_held = state.messages[other].full == item
            if is_held:
                count_lost(state, other)
            if other != number and (is_held or core.classed):
                plant(state, other)
            node = state.places[node].after
    if message.full >= 0:
        state.links[message.full].settled -= 1
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
        link.used = link.used - message.rate if link.messages else 0.0
        link.sent += message.size - message.passed
    message.rate, message.full = 0.0, -1
    core.sending -= 1
    drop(state.due, hold_item(state, number))


@compiled
def hold_item(state: ShareState, number: int) -> int:
    """The number, in `due`, of the time at which the weight of this message is looked at again."""
    return len(state.messages) + len(state.steps) + len(state.jobs) + number


@compiled
def plant(state: ShareState, number: int) -> None:
    """Note that a message is to rise again, with the weight that it has now."""
    if state.messages[number].seed == 0:
        state.messages[number].seed = 1
        state.seeds[state.core[0].seeds] = number
        state.core[0].seeds += 1


# -- what messages have sent and lost -----------------------------------------------------------


@compiled
def settle(state: ShareState, number: int) -> None:
    """Count what a message has sent since its rate was set."""
    message = state.messages[number]
    message.left = max(0.0, message.left - message.rate * (state.core[0].now - message.since))
    message.since = state.core[0].now


@compiled
def count_lost(state: ShareState, number: int) -> None:
    """Attribute what a message that a full link holds down has lost; before a rate on that link changes."""
    message = state.messages[number]
    took = state.core[0].now - message.counted
    if took > 0 and state.core[0].attributes and message.rate < message.peak:
        _attribute(state, message, number, took * (1 - message.rate / message.peak))
    message.counted = state.core[0].now


@compiled
def _attribute(state: ShareState, message: Records, number: int, lost: float) -> None:
    """Divide lost time among the others on the full link, in proportion to the rates that they have there."""
    others = state.links[message.full].used - message.rate
    # Parts are kept in the order of the link's list, so that the next one is mostly the one after the last.
    last, node = -1, state.links[message.full].head
    while node >= 0:
        other = state.messages[state.places[node].message]
        if state.places[node].message != number and other.rate > 0:
            last = _part(state, message, other.job, last)
            state.parts[last].lost += lost * other.rate / others
        node = state.places[node].after


@compiled
def _is_part(state: ShareState, part: int, neighbour: int, link: int) -> bool:
    return state.parts[part].neighbour == neighbour and state.parts[part].link == link


@compiled
def _part(state: ShareState, message: Records, neighbour: int, last: int) -> int:
    """The part of a message that belongs to a neighbour on its full link, which is put after `last`."""
    if last >= 0 and _is_part(state, last, neighbour, message.full):
        return last
    core, before = state.core[0], last
    new = state.parts[last].next if last >= 0 else message.parts
    while new >= 0 and not _is_part(state, new, neighbour, message.full):
        before, new = new, state.parts[new].next
    if new < 0 and last >= 0:
        before, new = -1, message.parts
        while new != last and not _is_part(state, new, neighbour, message.full):
            before, new = new, state.parts[new].next
        new = -1 if new == last else new
    if new >= 0 and before == last:
        return new
    entry = state.parts[new]
    if new < 0:
        new = core.free
        entry = state.parts[new]
        core.free = entry.next
        core.free_parts -= 1
        entry.neighbour, entry.link, entry.lost = neighbour, message.full, 0.0
    elif before >= 0:
        state.parts[before].next = entry.next
    else:
        message.parts = entry.next
    if last >= 0:
        entry.next, state.parts[last].next = state.parts[last].next, new
    else:
        entry.next, message.parts = message.parts, new
    return new


@compiled
def take_off(state: ShareState, number: int) -> None:
    """Let a message that is sent wait, on no link; what it has sent counts on those of its way until now."""
    message = state.messages[number]
    settle(state, number)
    leave(state, number)
    drop(state.due, number)
    for place in range(message.first, message.first + message.links):
        state.links[state.places[place].link].sent -= message.left
    message.passed_in += (message.size - message.left - message.passed) / message.peak
    message.passed = message.size - message.left
    message.sending, message.counted = WAITS, state.core[0].now


@compiled
def count_waiting(state: ShareState, number: int) -> None:
    """Attribute the time for which a message has waited to the link that is down."""
    message = state.messages[number]
    took = state.core[0].now - message.counted
    message.counted = state.core[0].now
    if took > 0 and state.core[0].attributes and message.down >= 0:
        message.full = message.down
        state.parts[_part(state, message, -1, -1)].lost += took
        message.full = -1


@compiled
def set_down(state: ShareState, down: np.ndarray) -> None:
    """Let messages wait whose ways have a link that is down (by number), and those go on whose ways are whole."""
    for number in range(len(state.messages)):
        message = state.messages[number]
        broken = -1
        for place in range(message.first, message.first + message.links):
            broken = state.places[place].link if down[state.places[place].link] else broken
        if message.sending == 1 and broken >= 0:
            take_off(state, number)
        elif message.sending == WAITS:
            count_waiting(state, number)
            if broken < 0:
                message.sending, message.since = 1, state.core[0].now
                enter(state, number)
        message.down = broken


# -- rates -------------------------------------------------------------------------------------


@compiled
def fill(state: ShareState) -> None:
    """Let the messages that were noted rise again, and those that they disturb."""
    core = state.core[0]
    core.epoch += 1
    core.messages = risen = 0
    for place in range(core.seeds):
        number = state.seeds[place]
        state.messages[number].seed = 0
        if state.messages[number].sending == 1:
            settle(state, number)
            state.messages[number].weight = weight_of(state, state.messages[number])
            join(state, number)
    core.seeds = 0
    while risen < core.messages or state.levels.size[0] > 0:
        if risen < core.messages:
            _release(state, state.group[risen])
            risen += 1
            continue
        item = pop(state.levels)
        if item < len(state.links):
            _look_at(state, item, state.levels.due[item])
        elif state.messages[item - len(state.links)].rate < 0:
            _take(state, item - len(state.links), state.messages[item - len(state.links)].peak, -1)
    core.fills += 1
    core.filled += core.messages
    for place in range(core.messages):
        schedule(state, state.group[place])


@compiled
def join(state: ShareState, number: int) -> None:
    """Let a message be among those that rise, once."""
    core = state.core[0]
    if state.messages[number].visited != core.epoch:
        state.messages[number].visited = core.epoch
        state.group[core.messages] = number
        core.messages += 1


@compiled
def _release(state: ShareState, number: int) -> None:
    """Take back the rate of a message, and let its links, and its peak where none implies it, settle it again."""
    core, message = state.core[0], state.messages[number]
    for place in range(message.first, message.first + message.links):
        item = state.places[place].link
        if is_contended(state.links[item]) and state.links[item].visited != core.epoch:
            _visit(state, item)
    settle(state, number)
    message.counted = core.now
    if message.full >= 0:
        state.links[message.full].settled -= 1
    message.before, message.rate, message.full = message.rate, -1.0, -1
    implied = False
    for place in range(message.first, message.first + message.links):
        item = state.places[place].link
        link = state.links[item]
        if link.visited == core.epoch:
            link.spare += message.before
            link.weight += message.weight
            link.unsettled += 1
            implied = implied or link.rate <= message.peak
            put(state.levels, item, _next_level(link))
    if not implied:
        put(state.levels, len(state.links) + number, message.peak / message.weight)


@compiled
def _visit(state: ShareState, item: int) -> None:
    """Begin with a link, on which no rate has changed yet."""
    link = state.links[item]
    link.visited = state.core[0].epoch
    link.spare, link.weight, link.unsettled = link.rate - link.used, 0.0, 0
    node = link.head if state.core[0].attributes and link.settled > 0 else -1
    while node >= 0:
        if state.messages[state.places[node].message].full == item:
            count_lost(state, state.places[node].message)
        node = state.places[node].after


@compiled
def _next_level(link: Records) -> float:
    """The level at which the link is full, or at which those that it has settled may rise, whichever is lower."""
    level = link.level if link.settled > 0 else math.inf
    return min(level, max(0.0, link.spare) / link.weight) if link.unsettled > 0 else level


@compiled
def _look_at(state: ShareState, item: int, level: float) -> None:
    """Settle the messages of a link, unless others have to rise before."""
    link = state.links[item]
    now_at = _next_level(link)
    if now_at == math.inf:
        return
    # Levels of links only rise while others are settled: they are looked at again when their turn comes.
    if now_at > level * (1 + _ROUNDING):
        put(state.levels, item, now_at)
        return
    full_at = max(0.0, link.spare) / link.weight if link.unsettled else math.inf
    has_room = link.spare > link.rate * _EQUAL and full_at > link.level * (1 + _EQUAL)
    joins = link.settled > 0 and has_room and _join_settled(state, item)
    if link.unsettled > 0 and not joins and not _join_above(state, item, full_at):
        link.level = full_at
        node = link.head
        while node >= 0:
            number = state.places[node].message
            if state.messages[number].rate < 0:
                _take(state, number, state.messages[number].weight * full_at, item)
            node = state.places[node].after


@compiled
def _join_settled(state: ShareState, item: int) -> bool:
    """Those that a link has settled rise again; whether there are any that do not."""
    before, node = state.core[0].messages, state.links[item].head
    while node >= 0:
        if state.messages[state.places[node].message].full == item:
            join(state, state.places[node].message)
        node = state.places[node].after
    return state.core[0].messages > before


@compiled
def _join_above(state: ShareState, item: int, level: float) -> bool:
    """Those that have a higher level than a link is full at rise again; whether there are any.

    The level at which it is full rises when they do, at least to that which all of its messages could have together.
    """
    core, link = state.core[0], state.links[item]
    weights, higher, node = 0.0, 0, link.head
    while node >= 0:
        message = state.messages[state.places[node].message]
        weights += message.weight
        higher += message.rate > message.weight * level * (1 + _EQUAL)
        node = state.places[node].after
    if higher == 0:
        return False
    level = max(level, link.rate / weights) * (1 + _EQUAL)
    before, node = core.messages, link.head
    while node >= 0:
        message = state.messages[state.places[node].message]
        if message.rate > message.weight * level:
            join(state, state.places[node].message)
        node = state.places[node].after
    return core.messages > before


@compiled
def _take(state: ShareState, number: int, rate: float, full: int) -> None:
    """Settle the rate of a message, and take it and its weight from its links."""
    message = state.messages[number]
    message.rate, message.full = rate, full
    for place in range(message.first, message.first + message.links):
        link = state.links[state.places[place].link]
        if link.visited == state.core[0].epoch:
            link.spare -= rate
            link.unsettled -= 1
            link.weight = link.weight - message.weight if link.unsettled else 0.0
    if full >= 0:
        state.links[full].settled += 1


@compiled
def weight_of(state: ShareState, message: Records) -> float:
    """F^e at what the message's connection has sent in its burst."""
    connection = state.connections[message.connection]
    if connection.shape == 0:
        return 1.0
    sent = message.burst_before + message.size - message.left
    f = factor(connection, min(1.0, sent / message.burst_bytes), 1.0)
    weight = 1.0
    if connection.increase != 0.0:
        weight = f if connection.increase == 1.0 else f**connection.increase
    if connection.decrease != 0.0 and f > 1.0:
        weight *= f**connection.decrease
    return weight


@compiled
def schedule(state: ShareState, number: int) -> None:
    """Schedule the end of a message that was settled, and when its weight is looked at again."""
    core, message = state.core[0], state.messages[number]
    hold = hold_item(state, number)
    if abs(message.rate - message.before) <= message.before * _ROUNDING:
        message.rate = message.before  # its end is scheduled
    elif message.rate * _FAR > message.left:
        put(state.due, number, core.now + np.int64(round(message.left / message.rate)))
    else:
        drop(state.due, number)
    contends = False
    for place in range(message.first, message.first + message.links):
        link = state.links[state.places[place].link]
        link.used += message.rate - message.before
        contends = contends or link.visited == core.epoch
    connection = state.connections[message.connection]
    if not contends or connection.shape == 0 or connection.increase == connection.decrease == 0.0:
        drop(state.due, hold)
    elif state.due.place[hold] < 0:
        # At multiples of the hold, so that all messages of a link rise again together.
        put(state.due, hold, (core.now // core.hold + 1) * core.hold)
