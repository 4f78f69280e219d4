"""Exact division of GPUs among jobs, such that the sum of the values of their shares is largest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np


def best_shares(values: Sequence[Mapping[int, float]], gpus: int) -> tuple[int, ...]:
    """Divide GPUs by dynamic programming.

    Args:
        values: for each job, the value of each number of GPUs that it can use; 0 GPUs must be among them.
        gpus: the number to divide; some may be left over.

    Returns:
        The number of GPUs of each job. Among equal sums, the last job gets as few as possible, then the one before it,
        and so on.
    """
    best = np.zeros(gpus + 1)
    taken = []
    for of_job in values:
        improved = np.full(gpus + 1, -np.inf)
        choice = np.zeros(gpus + 1, np.int64)
        for count, value in sorted(of_job.items()):
            if count > gpus:
                continue
            with_it = best[: gpus + 1 - count] + value
            better = with_it > improved[count:]
            improved[count:][better] = with_it[better]
            choice[count:][better] = count
        best = improved
        taken.append(choice)
    shares = []
    left = gpus
    for choice in reversed(taken):
        shares.append(int(choice[left]))
        left -= shares[-1]
    return tuple(reversed(shares))
