"""The GPU allocation of DRS (3.2), compiled; see `placement.policies.schedulers.drs.allocation`."""

from __future__ import annotations

import numpy as np

from placement.model.compiled import compiled
from placement.simulator.rates.compiled.world import NEVER


@compiled
def take(left: np.ndarray, gpus: int, cross: int, taken: np.ndarray) -> bool:
    """Take GPUs of the nodes with `left` free ones; `taken` is what each gives. False: there is no room."""
    fill(taken, 0)
    if not cross:
        node = tightest(left, gpus, taken)
        if node < 0:
            return False
        left[node] -= gpus
        taken[node] = gpus
        return True
    total = 0
    for node in range(len(left)):
        total += left[node]
    if total < gpus:
        return False
    missing = gpus
    while missing > 0:
        node = tightest(left, 1, taken)
        taken[node] = min(left[node], missing)
        missing -= taken[node]
    for node in range(len(left)):
        left[node] -= taken[node]
    return True


@compiled
def tightest(left: np.ndarray, gpus: int, taken: np.ndarray) -> int:
    """The node with the fewest free GPUs of those that have as many and gave none yet; -1 if there is none."""
    found, fewest = -1, NEVER
    for node in range(len(left)):
        if gpus <= left[node] < fewest and taken[node] == 0:
            found, fewest = node, left[node]
    return found


@compiled
def fill(numbers: np.ndarray, value: int) -> None:
    """Set all numbers; numpy's way would need to allocate."""
    for index in range(len(numbers)):
        numbers[index] = value


@compiled
def copy(source: np.ndarray, target: np.ndarray) -> None:
    """Copy all numbers; numpy's way would need to allocate."""
    for index in range(len(source)):
        target[index] = source[index]
