"""The outcome of a run of training jobs without deadlines."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class ResponseOutcome:
    """The times of the jobs of a trace.

    Attributes:
        arrival_s: of each job.
        end_s: of each job.
        part_s: when the share that was asked about was done.
        most_present: the most jobs at a time.
        left_at_last: the jobs present after the last arrival.
        job_seconds: the integral over time of the jobs present.
    """

    arrival_s: np.ndarray
    end_s: np.ndarray
    part_s: np.ndarray
    most_present: int
    left_at_last: int
    job_seconds: float
