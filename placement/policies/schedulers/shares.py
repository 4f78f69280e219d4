"""Dividing GPUs among jobs so that a sum of what each makes of its share is as large as possible, exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np


def best_shares(values: Sequence[Mapping[int, float]], gpus: int) -> tuple[int, ...]:
    """How many GPUs each job gets.

    Args:
        values: of each job, what numbers of GPUs it can use, each with its value. None at all (0) must be among them.
        gpus: to be divided; some may be left over.

    Returns:
        One number a job, with the largest sum of values. Of equal sums it is the one that gives less to the last job,
        then to the one before, and so on.
    """
    best = np.zeros(gpus + 1)
    taken = []
    for of_job in values:
        risen = np.full(gpus + 1, -np.inf)
        choice = np.zeros(gpus + 1, np.int64)
        for count, value in sorted(of_job.items()):
            if count > gpus:
                continue
            with_it = best[: gpus + 1 - count] + value
            better = with_it > risen[count:]
            risen[count:][better] = with_it[better]
            choice[count:][better] = count
        best = risen
        taken.append(choice)
    shares = []
    left = gpus
    for choice in reversed(taken):
        shares.append(int(choice[left]))
        left -= shares[-1]
    return tuple(reversed(shares))
