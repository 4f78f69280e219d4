"""LWF-k (Algorithm 1): the least workload first, but a job of more than k GPUs server by server."""

from __future__ import annotations

import numpy as np

from placement.model.compiled import compiled_with_arrays
from placement.model.state import Records
from placement.policies.placing import list_scheduling


@compiled_with_arrays
def choose(kappa: int, jobs: Records, gpus: Records, servers: Records, job: int, chosen: np.ndarray) -> bool:
    """Write the numbers of the job's GPUs into `chosen`; False if there are not enough."""
    wanted, memory = jobs[job].gpus, jobs[job].memory
    if wanted <= kappa:
        return list_scheduling.choose(jobs, gpus, job, chosen)
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
