"""The search for time shifts on several links at once, compiled."""

from __future__ import annotations

import numpy as np

from placement.model.compiled import compiled, compiled_with_arrays

_STARTS = 4
_SMALLEST_GAIN = 1e-12


@compiled
def _shift(sums: np.ndarray, circles: np.ndarray, start: int, angles: int, rotation: int, sign: int) -> None:
    begin = start + angles - rotation
    for angle in range(angles):
        sums[angle] += sign * circles[begin + angle]


@compiled
def _cost(
    sums: np.ndarray, circles: np.ndarray, start: int, angles: int, rotation: int, capacity: int
) -> float:
    """The average excess over the capacity, which is 1 minus the link's score."""
    total = np.int64(0)
    begin = start + angles - rotation
    for angle in range(angles):
        over = sums[angle] + circles[begin + angle] - capacity
        total += over if over > 0 else np.int64(0)
    return total / (angles * float(capacity))


@compiled_with_arrays
def descended(
    first: np.ndarray, link: np.ndarray, rotations: np.ndarray, circles: np.ndarray, starts: np.ndarray,
    angles: np.ndarray, capacities: np.ndarray, options: int, best: np.ndarray,
) -> float:  # fmt: skip
    """Improve the options in `best`; returns the sum over the links of 1 minus the score.

    Args:
        first: the first edge of each job; and the number of edges.
        link: the link of each edge.
        rotations: [edge, option].
        circles: the doubled circles of all edges, one after the other, beginning at `starts`.
        angles: the number of angles of each link.
        capacities: the capacity of each link, bit/s.
        options: the number of options.
        best: the initial option of each job, replaced by the best found.
    """
    jobs = best.shape[0]
    links = angles.shape[0]
    sums = np.zeros((links, angles.max()), np.int64)
    chosen = best.copy()
    state = np.uint64(1)
    least = np.inf
    for start in range(_STARTS):
        if start > 0:
            for job in range(1, jobs):
                state = state * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
                chosen[job] = np.int64((state >> np.uint64(33)) % np.uint64(options))
        sums[:, :] = 0
        for job in range(jobs):
            for edge in range(first[job], first[job + 1]):
                _shift(
                    sums[link[edge]],
                    circles,
                    starts[edge],
                    angles[link[edge]],
                    rotations[edge, chosen[job]],
                    1,
                )
        improved = True
        while improved:
            improved = False
            # The first job is the reference of the others' rotations.
            for job in range(1, jobs):
                for edge in range(first[job], first[job + 1]):
                    here = link[edge]
                    _shift(sums[here], circles, starts[edge], angles[here], rotations[edge, chosen[job]], -1)
                before = chosen[job]
                cost_before = np.inf
                cost_least = np.inf
                for option in range(options):
                    cost = 0.0
                    for edge in range(first[job], first[job + 1]):
                        here = link[edge]
                        cost += _cost(
                            sums[here],
                            circles,
                            starts[edge],
                            angles[here],
                            rotations[edge, option],
                            capacities[here],
                        )
                    if option == before:
                        cost_before = cost
                    if cost < cost_least:
                        cost_least = cost
                        chosen[job] = option
                if cost_least < cost_before - _SMALLEST_GAIN:
                    improved = True
                else:
                    chosen[job] = before
                for edge in range(first[job], first[job + 1]):
                    here = link[edge]
                    _shift(sums[here], circles, starts[edge], angles[here], rotations[edge, chosen[job]], 1)
        cost = 0.0
        for number in range(links):
            total = np.int64(0)
            for angle in range(angles[number]):
                over = sums[number, angle] - capacities[number]
                total += over if over > 0 else np.int64(0)
            cost += total / (angles[number] * float(capacities[number]))
        if cost < least - _SMALLEST_GAIN:
            least = cost
            best[:] = chosen
        if least <= 0:
            break
    return least
