"""Common multiples of measured times, compiled."""

from __future__ import annotations

import numpy as np

from placement.model.compiled import compiled_with_arrays


@compiled_with_arrays
def closest_multiples(times: np.ndarray, most: int, tolerance: float, best: np.ndarray) -> float:
    """Search multiples of all times that lie close together, write them into `best`, and return their distance.

    The distance is (largest - smallest) / largest, times the largest multiple: the more iterations there are on a
    circle, the less there is to gain from rotating it, and the less drift is worth it. The multiples next to the first,
    second, ... `most`-th multiple of the longest time are tried; the first within the tolerance are taken, or else the
    closest.

    Args:
        times: different, ascending, ns.
        most: the largest multiple of the longest time.
        tolerance: the distance at which the search ends.
        best: the multiples found, one for each time.
    """
    jobs = times.shape[0]
    closest = np.inf
    for repeat in range(1, most + 1):
        about = times[jobs - 1] * repeat
        chosen = np.empty(jobs, np.int64)
        # a window begins at a multiple of one time below (or above) and takes the first multiple of each from there on
        for first in range(2 * jobs):
            time = times[first // 2]
            begin = about // time * time
            if first % 2 and begin < about:
                begin += time
            if begin == 0:
                continue
            end = begin
            largest = 1
            for job in range(jobs):
                chosen[job] = -(-begin // times[job])
                end = max(end, chosen[job] * times[job])
                largest = max(largest, chosen[job])
            if chosen[jobs - 1] > most:
                continue
            spread = (end - begin) / end * largest
            if spread < closest:
                closest = spread
                best[:] = chosen
        if closest <= tolerance:
            break
    return closest
