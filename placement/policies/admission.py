"""Whether an all-reduce may start: the communication policies by number, for compiled code."""

from __future__ import annotations

import numpy as np

from placement.compiled import compiled
from placement.policies import ada_srsf, srsf
from placement.state import Records

SRSF, ADA_SRSF = range(2)


@compiled
def starts(
    rule: int, limit: int, jobs: Records, links: Records, places: Records, acceptance: np.ndarray, job: int
) -> bool:
    """Whether the job, which is ready to communicate, starts now."""
    if rule == SRSF:
        return srsf.starts(limit, jobs, links, places, job)
    return ada_srsf.starts(jobs, links, places, acceptance, job)
