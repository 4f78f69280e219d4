"""FF: the first GPUs that have enough memory left, server by server."""

from __future__ import annotations

import numpy as np

from placement.model.compiled import compiled
from placement.model.state import Records


@compiled
def choose(jobs: Records, gpus: Records, job: int, chosen: np.ndarray) -> bool:
    """Write the numbers of the job's GPUs into `chosen`; False if there are not enough."""
    found = 0
    for gpu in range(len(gpus)):
        if gpus[gpu].memory_left >= jobs[job].memory:
            chosen[found] = gpu
            found += 1
            if found == jobs[job].gpus:
                return True
    return False
