"""The placement policies, compiled: they choose the GPUs of a job for simulations and for the live service alike."""

from __future__ import annotations

import numpy as np

from placement.model.compiled import compiled, compiled_with_arrays
from placement.model.state import Occupancy, Records
from placement.policies.catalogue import FIRST_FIT, LEAST_DELAY, LIST_SCHEDULING, LWF, RANDOM
from placement.policies.least_delay import choose_least_delay


@compiled_with_arrays
def choose(rule: int, kappa: int, there: Occupancy, job: int, chosen: np.ndarray) -> bool:
    """Write the numbers of the job's GPUs into `chosen`; False if there are not enough.

    Args:
        rule: a number of `placement.policies.catalogue.PLACEMENT_RULES`.
        kappa: of LWF.
        there: the jobs and the cluster. Who is where is read by the rules in
            `placement.policies.catalogue.SEE_NEIGHBOURS` only.
        job: its number among the jobs.
        chosen: as many as the job has GPUs.

    Raises:
        ValueError: there is no such rule.
    """
    if rule == LWF:
        return choose_lwf(kappa, there.jobs, there.gpus, there.servers, job, chosen)
    if rule == LIST_SCHEDULING:
        return choose_least_loaded(there.jobs, there.gpus, job, chosen)
    if rule == FIRST_FIT:
        return choose_first_fit(there.jobs, there.gpus, job, chosen)
    if rule == RANDOM:
        return choose_at_random(there.jobs, there.gpus, job, chosen)
    if rule == LEAST_DELAY:
        return choose_least_delay(there, job, chosen)
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
