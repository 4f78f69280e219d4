"""Non-negative linear least squares for few unknowns, with standard errors.

The linear algebra is numpy's. `scipy.optimize.nnls` would not do: it takes any of several equally good solutions, and
a fit must be the same whatever the order of its columns and report which constants the data determine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Relative to the largest singular value; smaller ones are rounding errors.
_RANK_TOLERANCE = 1e-10
_NULL_SPACE_TOLERANCE = 1e-6
# Relative to the data, squared: an unknown must explain more than this to be used at all.
_TIE = 1e-20
_RELATIVE_TIE = 1e-9


def non_negative(design: Array, target: Array, preference: Sequence[int]) -> Array:
    """The x >= 0 that minimises |design @ x - target|.

    Every set of unknowns that may be above zero is tried, so that the result is exact; the effort doubles with
    each unknown. Where several solutions are as good, the one that uses few unknowns is taken, those first that
    come first in `preference`.
    """
    best = np.zeros(design.shape[1])
    least = scale = float(target @ target)
    for used in _subsets(preference):
        solution = _solve(design, target, used)
        if solution is None:
            continue
        residual = target - design @ solution
        squares = float(residual @ residual)
        if squares < least * (1 - _RELATIVE_TIE) - scale * _TIE:
            best, least = solution, squares
    return best


def unbounded(design: Array, target: Array) -> Array | None:
    """The x of any sign that minimises |design @ x - target|; None unless it is unique."""
    columns, norms = _scaled(design)
    if rank(design) < design.shape[1]:
        return None
    return np.asarray(np.linalg.lstsq(columns, target, rcond=None)[0] / norms)


def standard_errors(design: Array, variance: float) -> Array:
    """Standard errors of the unknowns of design @ x = target, for independent errors of the target with this variance.

    Infinite for an unknown that the design leaves undetermined; those of the others are valid nevertheless.
    """
    scaled, norms = _scaled(design)
    # Rows of zeros tell nothing; with as many rows as unknowns, every direction has its singular value.
    padding = np.zeros((max(0, design.shape[1] - len(design)), design.shape[1]))
    _, values, directions = np.linalg.svd(np.vstack([scaled, padding]), full_matrices=False)
    known = values > _RANK_TOLERANCE * values[0]
    undetermined = np.any(np.abs(directions[~known]) > _NULL_SPACE_TOLERANCE, axis=0)
    squares = np.sum((directions[known] / values[known, None]) ** 2, axis=0) * variance / norms**2
    return np.where(undetermined, np.inf, np.sqrt(squares))


def condition_index(design: Array) -> float:
    """The condition index of the columns, each scaled to length 1: 1 for orthogonal, infinite for collinear ones.

    From about 30 on, estimates are of little use (Belsley, Kuh and Welsch, Regression Diagnostics, 1980).
    """
    values = np.linalg.svd(_scaled(design)[0], compute_uv=False)
    exactly = len(values) < design.shape[1] or values[-1] <= _RANK_TOLERANCE * values[0]
    return float("inf") if exactly else float(values[0] / values[-1])


def rank(design: Array) -> int:
    """The rank of the design: the number of unknowns, or combinations of them, that it determines."""
    values = np.linalg.svd(_scaled(design)[0], compute_uv=False)
    return int(np.sum(values > _RANK_TOLERANCE * values[0]))


def _subsets(preference: Sequence[int]) -> Iterator[tuple[int, ...]]:
    for size in range(1, len(preference) + 1):
        yield from combinations(preference, size)


def _solve(design: Array, target: Array, used: tuple[int, ...]) -> Array | None:
    """The least-squares solution with the other unknowns at zero; None if it is negative or not the only one."""
    found = unbounded(design[:, used], target)
    if found is None or np.any(found < 0):
        return None
    solution = np.zeros(design.shape[1])
    solution[list(used)] = found
    return solution


def _scaled(design: Array) -> tuple[Array, Array]:
    norms = np.linalg.norm(design, axis=0)
    norms[norms == 0] = 1.0
    return design / norms, norms
