"""The choice of a job's GPUs: dispatches to the placement policies by number, for compiled code."""

from __future__ import annotations

import numpy as np

from placement.model.compiled import compiled_with_arrays
from placement.model.state import Records
from placement.policies.placing import first_fit, list_scheduling, lwf, random
from placement.policies.rule_numbers import FIRST_FIT, LIST_SCHEDULING, LWF, RANDOM


@compiled_with_arrays
def choose(
    rule: int, kappa: int, jobs: Records, gpus: Records, servers: Records, job: int, chosen: np.ndarray
) -> bool:
    """Write the numbers of the job's GPUs into `chosen`; False if there are not enough.

    Raises:
        ValueError: there is no such rule.
    """
    if rule == LWF:
        return lwf.choose(kappa, jobs, gpus, servers, job, chosen)
    if rule == LIST_SCHEDULING:
        return list_scheduling.choose(jobs, gpus, job, chosen)
    if rule == FIRST_FIT:
        return first_fit.choose(jobs, gpus, job, chosen)
    if rule == RANDOM:
        return random.choose(jobs, gpus, job, chosen)
    raise ValueError("placement rule: expected one of placement.policies.rule_numbers")
