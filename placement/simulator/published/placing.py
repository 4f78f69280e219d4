"""The placement of queued jobs on GPUs, and the generator of the random one."""

from __future__ import annotations

import numpy as np

from placement.model.compiled import compiled
from placement.simulator.published.iterations import wake
from placement.simulator.published.state import Phase, PlacementRule, PublishedState

_RANDOM, _LWF = int(PlacementRule.RANDOM), int(PlacementRule.LWF)
_FORWARD = int(Phase.FORWARD)


@compiled
def arrive(state: PublishedState) -> None:
    """Queue the jobs that arrive in this step: by least service, and of equals by arrival."""
    clock, jobs = state.clock[0], state.jobs
    while clock.arrived < len(jobs) and jobs[clock.arrived].arrival == clock.now:
        job = clock.arrived
        at = clock.queued
        while at > 0 and jobs[state.queue[at - 1]].service > jobs[job].service:
            state.queue[at] = state.queue[at - 1]
            at -= 1
        state.queue[at] = job
        clock.arrived += 1
        clock.queued += 1
        clock.events += 1
        if jobs[job].workers > state.rules[0].kappa:
            clock.queued_wide += 1
        clock.retry = True


@compiled
def place(state: PublishedState) -> None:
    """Place the queued jobs that fit.

    This can change only after an arrival or a release of memory. Otherwise only the side effects of failed attempts
    remain: LWF sorts the servers, and the random placement draws numbers, which are skipped later.
    """
    clock, rules = state.clock[0], state.rules[0]
    if clock.retry:
        clock.retry = False
        _try_all(state)
    elif clock.queued_wide > 0 and rules.placement == _LWF:
        _sort_servers(state)


@compiled
def _try_all(state: PublishedState) -> None:
    clock, random = state.clock[0], state.rules[0].placement == _RANDOM
    if random:
        skip(state, clock.draws * (clock.now - 1 - clock.drawn))
        clock.drawn = clock.now
    at = 0
    while at < clock.queued:
        job = state.queue[at]
        if _pick(state, job):
            _settle(state, job)
            _unqueue(state, at)
            # The published loop removes from the list that it goes through: the next job is not tried in this step.
            clock.retry = True
        at += 1
    if random:
        clock.draws = _draws_in_vain(state)


@compiled
def _unqueue(state: PublishedState, at: int) -> None:
    clock = state.clock[0]
    if state.jobs[state.queue[at]].workers > state.rules[0].kappa:
        clock.queued_wide -= 1
    clock.queued -= 1
    for later in range(at, clock.queued):
        state.queue[later] = state.queue[later + 1]


@compiled
def _pick(state: PublishedState, job: int) -> bool:
    """Choose the job's GPUs: the first of `found`, if there are enough."""
    rules, workers = state.rules[0], state.jobs[job].workers
    if rules.placement == _LWF and workers > rules.kappa:
        found = _found_by_server(state, state.jobs[job].memory)
    else:
        found = _found(state, state.jobs[job].memory)
        if rules.placement == _RANDOM:
            _shuffle(state, found)
        elif rules.placement == _LWF:
            _sort(state.found, 0, found, state.workload)
    return found >= workers


@compiled
def _found(state: PublishedState, memory: int) -> int:
    count = 0
    for gpu in range(len(state.memory)):
        if state.memory[gpu] >= memory:
            state.found[count] = gpu
            count += 1
    return count


@compiled
def _found_by_server(state: PublishedState, memory: int) -> int:
    _sort_servers(state)
    count, gpus = 0, state.rules[0].gpus
    for server in state.order:
        first = count
        for gpu in range(server * gpus, (server + 1) * gpus):
            if state.memory[gpu] >= memory:
                state.found[count] = gpu
                count += 1
        _sort(state.found, first, count, state.workload)
    return count


@compiled
def _sort_servers(state: PublishedState) -> None:
    """Sort servers by their GPUs' mean workload; the sort is stable with respect to the last one."""
    gpus = state.rules[0].gpus
    for server in range(len(state.order)):
        total = 0.0
        for gpu in range(server * gpus, (server + 1) * gpus):
            total += state.workload[gpu]
        state.means[server] = total / gpus
    _sort(state.order, 0, len(state.order), state.means)


@compiled
def _sort(items: np.ndarray, first: int, end: int, keys: np.ndarray) -> None:
    """Sort `items` from `first` to before `end` stably; the part is short or nearly in order."""
    for unsorted in range(first + 1, end):
        item = items[unsorted]
        at = unsorted
        while at > first and keys[items[at - 1]] > keys[item]:
            items[at] = items[at - 1]
            at -= 1
        items[at] = item


@compiled
def _shuffle(state: PublishedState, count: int) -> None:
    """Shuffle as `random.shuffle` of Python 2 does."""
    for last in range(count - 1, 0, -1):
        other = int(random(state) * (last + 1))
        state.found[last], state.found[other] = state.found[other], state.found[last]


@compiled
def _draws_in_vain(state: PublishedState) -> int:
    """The count of random numbers that shuffling uses for the queued jobs while none of them can be placed."""
    clock, draws = state.clock[0], 0
    for at in range(clock.queued):
        draws += max(0, _found(state, state.jobs[state.queue[at]].memory) - 1)
    return draws


@compiled
def _settle(state: PublishedState, job: int) -> None:
    """Place the job on the first GPUs of `found`."""
    clock, record = state.clock[0], state.jobs[job]
    record.servers = _spread(state, job)
    if record.servers == 1:
        record.charge = record.workload = 0.0
    workload = record.service // record.workers + record.workload
    for worker in range(record.workers):
        gpu = state.found[worker]
        state.workers[job, worker] = gpu
        state.workload[gpu] += workload
        state.memory[gpu] -= record.memory
        state.hosts[gpu, state.hosted[gpu]] = job
        state.hosted[gpu] += 1
        state.phase[job, gpu] = _FORWARD
        wake(state, gpu)
    record.computing = record.workers
    record.place = clock.running + clock.left
    record.placed = record.began = clock.now
    state.running[clock.running] = job
    clock.running += 1


@compiled
def _spread(state: PublishedState, job: int) -> int:
    """Record the servers of the job's GPUs in the order of choice; returns their number."""
    count = 0
    for worker in range(state.jobs[job].workers):
        server = state.found[worker] // state.rules[0].gpus
        known = False
        for other in range(count):
            known = known or state.spread[job, other] == server
        if not known:
            state.spread[job, count] = server
            count += 1
    return count


@compiled
def leave(state: PublishedState) -> None:
    """Remove finished jobs from their GPUs."""
    clock = state.clock[0]
    at = 0
    while at < clock.running:
        job = state.running[at]
        if state.jobs[job].done:
            _release(state, job)
            clock.running -= 1
            for later in range(at, clock.running):
                state.running[later] = state.running[later + 1]
            clock.finished -= 1
            clock.left += 1
            clock.retry = True
        # Also after a removal: the published loop skips the job behind one that leaves.
        at += 1


@compiled
def _release(state: PublishedState, job: int) -> None:
    for worker in range(state.jobs[job].workers):
        gpu = state.workers[job, worker]
        state.memory[gpu] += state.jobs[job].memory
        at = 0
        while state.hosts[gpu, at] != job:
            at += 1
        state.hosted[gpu] -= 1
        for later in range(at, state.hosted[gpu]):
            state.hosts[gpu, later] = state.hosts[gpu, later + 1]


# -- MT19937: the numbers are those that `random.Random` draws ---------------------------------------------------------

WORDS = 624
_SHIFT = 397


@compiled
def random(state: PublishedState) -> float:
    """Return the next number in [0, 1), as `random.Random.random` does."""
    high = _word(state) >> np.uint32(5)
    low = _word(state) >> np.uint32(6)
    return (high * 67108864.0 + low) * (1.0 / 9007199254740992.0)


@compiled
def skip(state: PublishedState, numbers: int) -> None:
    """Advance the generator as `count` calls of `random` would."""
    clock = state.clock[0]
    word = clock.word + 2 * numbers
    while word > WORDS:
        _renew(state.generator)
        word -= WORDS
    clock.word = word


@compiled
def _word(state: PublishedState) -> np.uint32:
    clock = state.clock[0]
    if clock.word == WORDS:
        _renew(state.generator)
        clock.word = 0
    word: np.uint32 = state.generator[clock.word]
    clock.word += 1
    word ^= word >> np.uint32(11)
    word ^= (word << np.uint32(7)) & np.uint32(0x9D2C5680)
    word ^= (word << np.uint32(15)) & np.uint32(0xEFC60000)
    return word ^ (word >> np.uint32(18))


@compiled
def _renew(words: np.ndarray) -> None:
    """Generate the next 624 words."""
    for i in range(WORDS - _SHIFT):
        words[i] = words[i + _SHIFT] ^ _twist(words[i], words[i + 1])
    for i in range(WORDS - _SHIFT, WORDS - 1):
        words[i] = words[i + _SHIFT - WORDS] ^ _twist(words[i], words[i + 1])
    words[WORDS - 1] = words[_SHIFT - 1] ^ _twist(words[WORDS - 1], words[0])


@compiled
def _twist(word: np.uint32, following: np.uint32) -> np.uint32:
    mixed = (word & np.uint32(0x80000000)) | (following & np.uint32(0x7FFFFFFF))
    return (mixed >> np.uint32(1)) ^ ((mixed & np.uint32(1)) * np.uint32(0x9908B0DF))
