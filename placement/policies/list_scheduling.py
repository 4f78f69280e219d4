"""LS: the GPUs with the least workload, wherever they are."""

from __future__ import annotations

import numpy as np

from placement.compiled import compiled_with_arrays
from placement.state import Records


@compiled_with_arrays
def choose(jobs: Records, gpus: Records, job: int, chosen: np.ndarray) -> bool:
    """Write the numbers of the job's GPUs into `chosen`; False if there are not enough."""
    available = np.flatnonzero(gpus.memory_left >= jobs[job].memory)
    if len(available) < jobs[job].gpus:
        return False
    order = np.argsort(gpus.workload[available], kind="mergesort")
    for index in range(jobs[job].gpus):
        chosen[index] = available[order[index]]
    return True
