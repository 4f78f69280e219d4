"""RAND: any GPUs that have enough memory left."""

from __future__ import annotations

import numpy as np

from placement.model.compiled import compiled_with_arrays
from placement.model.state import Records


@compiled_with_arrays
def seed(number: int) -> None:
    """Seed the random number generator of compiled code, which is not numpy's own."""
    np.random.seed(number)


@compiled_with_arrays
def choose(jobs: Records, gpus: Records, job: int, chosen: np.ndarray) -> bool:
    """Write the numbers of the job's GPUs into `chosen`; False if there are not enough."""
    available = np.flatnonzero(gpus.memory_left >= jobs[job].memory)
    wanted = jobs[job].gpus
    if len(available) < wanted:
        return False
    for index in range(wanted):
        other = index + np.random.randint(len(available) - index)
        available[index], available[other] = available[other], available[index]
        chosen[index] = available[index]
    return True
