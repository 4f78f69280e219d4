"""LS: the GPUs with the least workload, wherever they are."""

from __future__ import annotations

import numpy as np

from placement.model.compiled import compiled, compiled_with_arrays
from placement.model.state import Records


@compiled_with_arrays
def choose(jobs: Records, gpus: Records, job: int, chosen: np.ndarray) -> bool:
    """Write the numbers of the job's GPUs into `chosen`; False if there are not enough."""
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
