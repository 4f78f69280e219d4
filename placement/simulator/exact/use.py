"""Accounting of the use of GPUs and links over time."""

from __future__ import annotations

import numpy as np

from placement.model.compiled import compiled


@compiled
def note_use(use: np.ndarray, interval: int, row: int, since: int, until: int) -> None:
    """Add the time from `since` to `until` to the intervals of this row, if there are any."""
    intervals = use.shape[1]
    if intervals == 0:
        return
    at = since
    while at < until:
        column = min(at // interval, intervals - 1)
        end = until if column == intervals - 1 else min(until, (column + 1) * interval)
        use[row, column] += end - at
        at = end
