"""Admission of all-reduces: dispatches to the communication policies by number, for compiled code."""

from __future__ import annotations

import numpy as np

from placement.model.compiled import compiled
from placement.model.state import Records
from placement.policies.communication import ada_srsf, adadual, srsf
from placement.policies.rule_numbers import ADA_SRSF, ADA_SRSF_K, LIMITED


@compiled
def starts(
    rule: int,
    limit: int,
    jobs: Records,
    links: Records,
    places: Records,
    costs: np.ndarray,
    acceptance: np.ndarray,
    job: int,
) -> bool:
    """Whether a job that is ready to communicate starts now.

    Raises:
        ValueError: there is no such rule.
    """
    if rule == LIMITED:
        return srsf.starts(limit, jobs, links, places, job)
    if rule == ADA_SRSF_K:
        return adadual.starts(jobs, links, places, costs, job)
    if rule == ADA_SRSF:
        return ada_srsf.starts(jobs, links, places, acceptance, job)
    raise ValueError("communication rule: expected one of placement.policies.rule_numbers")
