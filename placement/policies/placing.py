"""The placement policies, compiled: they choose the GPUs of a job for simulations and for the live service alike."""

from __future__ import annotations

import numpy as np

from placement.model.compiled import compiled, compiled_with_arrays
from placement.model.state import Records
from placement.policies.catalogue import FIRST_FIT, LEAST_DELAY, LIST_SCHEDULING, LWF, RANDOM


@compiled_with_arrays
def choose(
    rule: int,
    kappa: int,
    jobs: Records,
    gpus: Records,
    servers: Records,
    hosted: np.ndarray,
    workers: Records,
    job: int,
    chosen: np.ndarray,
) -> bool:
    """Write the numbers of the job's GPUs into `chosen`; False if there are not enough.

    Args:
        rule: a number of `placement.policies.catalogue.PLACEMENT_RULES`.
        kappa: of LWF.
        jobs, gpus, servers: the records of `placement.model.state`.
        hosted: per GPU, the numbers of its workers, of which the first `workers` of its record are valid. This and the
            next are read by the rules in `placement.policies.catalogue.SEE_NEIGHBOURS` only.
        workers: whose they are.
        job: its number among `jobs`.
        chosen: as many as the job has GPUs.

    Raises:
        ValueError: there is no such rule.
    """
    if rule == LWF:
        return choose_lwf(kappa, jobs, gpus, servers, job, chosen)
    if rule == LIST_SCHEDULING:
        return choose_least_loaded(jobs, gpus, job, chosen)
    if rule == FIRST_FIT:
        return choose_first_fit(jobs, gpus, job, chosen)
    if rule == RANDOM:
        return choose_at_random(jobs, gpus, job, chosen)
    if rule == LEAST_DELAY:
        return choose_least_delay(jobs, gpus, servers, hosted, workers, job, chosen)
    raise ValueError("placement rule: expected one of placement.policies.catalogue.PLACEMENT_RULES")


@compiled
def choose_first_fit(jobs: Records, gpus: Records, job: int, chosen: np.ndarray) -> bool:
    """FF: the first GPUs that have enough memory left, server by server; see `choose`."""
    found = 0
    for gpu in range(len(gpus)):
        if gpus[gpu].memory_left >= jobs[job].memory:
            chosen[found] = gpu
            found += 1
            if found == jobs[job].gpus:
                return True
    return False


@compiled_with_arrays
def choose_least_loaded(jobs: Records, gpus: Records, job: int, chosen: np.ndarray) -> bool:
    """LS: the GPUs with the least workload, wherever they are; see `choose`."""
    if jobs[job].gpus == 1:
        return _choose_one(jobs, gpus, job, chosen)
    available = np.flatnonzero(gpus.memory_left >= jobs[job].memory)
    if len(available) < jobs[job].gpus:
        return False
    order = np.argsort(gpus.workload[available], kind="mergesort")
    for index in range(jobs[job].gpus):
        chosen[index] = available[order[index]]
    return True


@compiled
def _choose_one(jobs: Records, gpus: Records, job: int, chosen: np.ndarray) -> bool:
    """The same for a single GPU, without sorting: half of all jobs need one."""
    best = -1
    for gpu in range(len(gpus)):
        if gpus[gpu].memory_left >= jobs[job].memory and (
            best < 0 or gpus[gpu].workload < gpus[best].workload
        ):
            best = gpu
    chosen[0] = best
    return best >= 0


@compiled_with_arrays
def choose_lwf(
    kappa: int, jobs: Records, gpus: Records, servers: Records, job: int, chosen: np.ndarray
) -> bool:
    """LWF-k (Algorithm 1): the least workload first, but a job of more than k GPUs server by server; see `choose`."""
    wanted, memory = jobs[job].gpus, jobs[job].memory
    if wanted <= kappa:
        return choose_least_loaded(jobs, gpus, job, chosen)
    found = 0
    for server in np.argsort(_workloads(gpus, servers), kind="mergesort"):
        first = servers[server].first_gpu
        of_server = gpus[first : first + servers[server].gpus]
        for index in np.argsort(of_server.workload, kind="mergesort"):
            if of_server[index].memory_left >= memory:
                chosen[found] = first + index
                found += 1
                if found == wanted:
                    return True
    return False


@compiled_with_arrays
def _workloads(gpus: Records, servers: Records) -> np.ndarray:
    """L_S: the sum of the GPUs' workloads of each server."""
    found = np.zeros(len(servers), np.int64)
    for gpu in range(len(gpus)):
        found[gpus[gpu].server] += gpus[gpu].workload
    return found


@compiled_with_arrays
def seed_placements(number: int) -> None:
    """Seed the random number generator of compiled code, which is not numpy's own."""
    np.random.seed(number)


@compiled_with_arrays
def choose_at_random(jobs: Records, gpus: Records, job: int, chosen: np.ndarray) -> bool:
    """RAND: any GPUs that have enough memory left; see `choose`."""
    available = np.flatnonzero(gpus.memory_left >= jobs[job].memory)
    wanted = jobs[job].gpus
    if len(available) < wanted:
        return False
    for index in range(wanted):
        other = index + np.random.randint(len(available) - index)
        available[index], available[other] = available[other], available[index]
        chosen[index] = available[index]
    return True


# -- least delay -------------------------------------------------------------------------------------------------------

_FOR_GOOD = 1 << 62
"""The stamp of a neighbour that counts no more: the job has met it on a server that is chosen."""


@compiled_with_arrays
def choose_least_delay(
    jobs: Records,
    gpus: Records,
    servers: Records,
    hosted: np.ndarray,
    workers: Records,
    job: int,
    chosen: np.ndarray,
) -> bool:
    """The fewest servers, and of these where the job and its neighbours delay each other least; see `choose`.

    Of two jobs that share a GPU or a link, the one with less left goes first: together they wait for what the shorter
    one has left. A neighbour counts once. Of a job that spans servers the neighbours on links count first, then those
    on GPUs; where nothing tells servers apart, the one with the least room. Servers are added one at a time.
    docs/least-delay.md has the reasons.
    """
    wanted = jobs[job].gpus
    room = _room(gpus, servers, jobs[job].memory)
    if room.sum() < wanted:
        return False
    spans = room.max() < wanted
    left = jobs[job].iterations_left * (jobs[job].compute + (jobs[job].transfer if spans else 0))
    order = _by_delay(jobs, gpus, servers, hosted, workers, jobs[job].memory, left)
    on_links, on_gpus = np.zeros(len(jobs), np.int64), np.zeros(len(jobs), np.int64)
    found, stamp = 0, 0
    while found < wanted:
        count = min(wanted - found, room.max())
        best, least = -1, (0, 0, 0)
        for server in range(len(servers)):
            if room[server] < count:
                continue
            stamp += 1
            first, gpus_there = servers[server].first_gpu, servers[server].gpus
            by_links = 0
            if spans:
                there = order[first : first + gpus_there]
                by_links = _met(jobs, gpus, hosted, workers, there, True, left, on_links, stamp)
            by_gpus = _met(
                jobs, gpus, hosted, workers, order[first : first + count], False, left, on_gpus, stamp
            )
            if best < 0 or (by_links, by_gpus, room[server]) < least:
                best, least = server, (by_links, by_gpus, room[server])
        first, gpus_there = servers[best].first_gpu, servers[best].gpus
        taken = order[first : first + count]
        _met(jobs, gpus, hosted, workers, order[first : first + gpus_there], True, left, on_links, _FOR_GOOD)
        _met(jobs, gpus, hosted, workers, taken, False, left, on_gpus, _FOR_GOOD)
        chosen[found : found + count] = taken
        room[best] = 0
        found += count
    return True


@compiled_with_arrays
def _room(gpus: Records, servers: Records, memory: int) -> np.ndarray:
    """The GPUs of each server that have enough memory left."""
    found = np.zeros(len(servers), np.int64)
    for gpu in range(len(gpus)):
        if gpus[gpu].memory_left >= memory:
            found[gpus[gpu].server] += 1
    return found


@compiled_with_arrays
def _by_delay(
    jobs: Records,
    gpus: Records,
    servers: Records,
    hosted: np.ndarray,
    workers: Records,
    memory: int,
    left: int,
) -> np.ndarray:
    """The GPUs of each server, those with enough memory first, and of these those with the least delay."""
    delays, seen = np.zeros(len(gpus), np.int64), np.zeros(len(jobs), np.int64)
    order = np.arange(len(gpus))
    for gpu in range(len(gpus)):
        delays[gpu] = _met(jobs, gpus, hosted, workers, order[gpu : gpu + 1], False, left, seen, gpu + 1)
        if gpus[gpu].memory_left < memory:
            delays[gpu] = _FOR_GOOD
    for server in range(len(servers)):
        first = servers[server].first_gpu
        own = delays[first : first + servers[server].gpus]
        order[first : first + servers[server].gpus] = first + np.argsort(own, kind="mergesort")
    return order


@compiled
def _met(
    jobs: Records,
    gpus: Records,
    hosted: np.ndarray,
    workers: Records,
    there: np.ndarray,
    sending: bool,
    left: int,
    seen: np.ndarray,
    stamp: int,
) -> int:
    """The delay by jobs on these GPUs that were not met before.

    Args:
        jobs, gpus, hosted, workers: of `choose`.
        there: the GPUs.
        sending: whether only jobs count that use links.
        left: what the job itself has left.
        seen: the stamp under which each job was met last.
        stamp: the present one: a job whose own is less has not been met.
    """
    delay = 0
    for gpu in there:
        for index in range(gpus[gpu].workers):
            number = workers[hosted[gpu, index]].job
            other = jobs[number]
            if seen[number] < stamp and (other.places or not sending):
                seen[number] = stamp
                transfer = other.transfer if other.places else 0
                delay += min(left, other.iterations_left * (other.compute + transfer))
    return delay
