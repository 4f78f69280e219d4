"""The search for rotations, compiled: descent from several starts, then branch and bound within a budget.

All demands are whole bits a second and all sums exact. The circles are doubled, `circles[job, angle]` for twice as many
angles as there are, so that a rotated circle is a slice: that of a job rotated by s begins at `angles - s`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from placement.model.compiled import compiled, compiled_with_arrays

_STARTS = 24
_CENTRINGS = 4
_LARGE = 1 << 62


@compiled
def _excesses(
    base: np.ndarray, circle: np.ndarray, angles: int, domain: int, capacity: int, found: np.ndarray
) -> None:
    """The excess (Eq. 4.1, summed over all angles) of the base and one circle, for each rotation in its domain."""
    for rotation in range(domain):
        total = np.int64(0)
        start = angles - rotation
        for angle in range(angles):
            over = base[angle] + circle[start + angle] - capacity
            total += over if over > 0 else np.int64(0)
        found[rotation] = total


@compiled
def _add(base: np.ndarray, circle: np.ndarray, angles: int, rotation: int, sum_: np.ndarray) -> None:
    start = angles - rotation
    for angle in range(angles):
        sum_[angle] = base[angle] + circle[start + angle]


@compiled
def _subtract(sum_: np.ndarray, circle: np.ndarray, angles: int, rotation: int) -> None:
    start = angles - rotation
    for angle in range(angles):
        sum_[angle] -= circle[start + angle]


@compiled
def _first_least(values: np.ndarray, count: int) -> int:
    least = 0
    for position in range(1, count):
        if values[position] < values[least]:
            least = position
    return least


@compiled
def _descend(
    circles: np.ndarray, angles: int, domains: np.ndarray, capacity: int,
    rotations: np.ndarray, sum_: np.ndarray, found: np.ndarray,
) -> tuple[int, int]:  # fmt: skip
    """Rotate one job after the other to where it is best beside the others, until that changes nothing.

    Gives the excess then, and how many jobs were looked at.
    """
    jobs = domains.shape[0]
    best = _LARGE
    steps = 0
    while True:
        before = best
        steps += jobs - 1
        for job in range(1, jobs):
            _subtract(sum_, circles[job], angles, rotations[job])
            _excesses(sum_, circles[job], angles, domains[job], capacity, found)
            least = _first_least(found, domains[job])
            if found[least] < found[rotations[job]]:
                rotations[job] = least
            best = found[rotations[job]]
            _add(sum_, circles[job], angles, rotations[job], sum_)
        if best >= before:
            return best, steps


@compiled_with_arrays
def descended(
    circles: np.ndarray, angles: int, domains: np.ndarray, capacity: int, enough: int, budget: int,
    best_rotations: np.ndarray,
) -> int:  # fmt: skip
    """The least excess that descents from several starts find; its rotations are written into `best_rotations`.

    The first start inserts one job after the other; the others are pseudo-random, the same every time. It ends early
    at `enough`, and when so many sums have been looked at.
    """
    jobs = domains.shape[0]
    rotations = np.zeros(jobs, np.int64)
    sum_ = np.empty(angles, np.int64)
    found = np.empty(angles, np.int64)
    best = _LARGE
    state = np.uint64(1)
    spent = 0
    for start in range(_STARTS):
        if spent > budget:
            break
        for angle in range(angles):
            sum_[angle] = circles[0, angle]
        for job in range(1, jobs):
            if start == 0:
                _excesses(sum_, circles[job], angles, domains[job], capacity, found)
                rotations[job] = _first_least(found, domains[job])
            else:
                state = state * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
                rotations[job] = np.int64((state >> np.uint64(33)) % np.uint64(domains[job]))
            _add(sum_, circles[job], angles, rotations[job], sum_)
        excess, steps = _descend(circles, angles, domains, capacity, rotations, sum_, found)
        spent += steps * angles * domains.max()
        if excess < best:
            best = excess
            best_rotations[:] = rotations
        if best <= enough:
            break
    return int(best)


@compiled_with_arrays
def centre(
    circles: np.ndarray, angles: int, domains: np.ndarray, capacity: int, rotations: np.ndarray
) -> None:
    """Rotate each job to the middle of where it may be beside the others without more excess, one after the other.

    The searches end at an edge of that, where the slightest drift of one of the jobs costs something.
    """
    jobs = domains.shape[0]
    sum_ = circles[0, :angles].copy()
    found = np.empty(angles, np.int64)
    for job in range(1, jobs):
        _add(sum_, circles[job], angles, rotations[job], sum_)
    for _ in range(_CENTRINGS):
        for job in range(1, jobs):
            domain = domains[job]
            _subtract(sum_, circles[job], angles, rotations[job])
            _excesses(sum_, circles[job], angles, domain, capacity, found)
            before = rotations[job]
            least = found[before]
            forth = 0
            while forth < domain and found[(before + forth + 1) % domain] == least:
                forth += 1
            back = 0
            while back < domain and found[(before - back - 1) % domain] == least:
                back += 1
            if forth < domain:
                rotations[job] = (before + (forth - back) // 2) % domain
            _add(sum_, circles[job], angles, rotations[job], sum_)


@compiled_with_arrays
def paired(circles: np.ndarray, angles: int, domains: np.ndarray, capacity: int) -> np.ndarray:
    """The least excess of each pair of jobs alone, over all rotations against each other: [job, job]."""
    jobs = domains.shape[0]
    pairs = np.zeros((jobs, jobs), np.int64)
    found = np.empty(angles, np.int64)
    for first in range(jobs):
        for second in range(first + 1, jobs):
            # to rotate the one further than a whole iteration of the other changes nothing
            domain = min(domains[first], domains[second])
            _excesses(circles[first, :angles], circles[second], angles, domain, capacity, found)
            pairs[first, second] = pairs[second, first] = found[_first_least(found, domain)]
    return pairs


@compiled_with_arrays
def matched(pairs: np.ndarray) -> np.ndarray:
    """For each k, the largest sum of disjoint pairs among the jobs from k on.

    It bounds their excess from below, since excess is superadditive: (x + y - C)+ >= (x - C)+ + (y - C)+.
    """
    jobs = pairs.shape[0]
    suffix = np.zeros(jobs + 1, np.int64)
    best = np.zeros(1 << jobs, np.int64)
    for chosen in range(1, 1 << jobs):
        lowest = 0
        while not chosen >> lowest & 1:
            lowest += 1
        rest = chosen & ~(1 << lowest)
        value = best[rest]
        for other in range(lowest + 1, jobs):
            if rest >> other & 1:
                value = max(value, best[rest & ~(1 << other)] + pairs[lowest, other])
        best[chosen] = value
    for first in range(jobs):
        suffix[first] = best[((1 << jobs) - 1) & ~((1 << first) - 1)]
    return suffix


@compiled_with_arrays
def searched(
    circles: np.ndarray, angles: int, domains: np.ndarray, capacity: int, alike: np.ndarray,
    suffix: np.ndarray, floor: int, best: int, budget: int, best_rotations: np.ndarray,
) -> tuple[int, int]:  # fmt: skip
    """Branch and bound over the rotations of all jobs but the first: the least excess, and a bound from below.

    Children are visited from the least excess up. A child cannot come to less than its own excess and what the jobs
    that are not placed yet come to among themselves (`suffix`), nor than `floor`. Jobs that are `alike` (each one
    with the one before it) are interchangeable, and so rotated in ascending order only.

    Args:
        best: an excess that is known to be reached, with `best_rotations`.
        budget: how many sums may be looked at; when they are spent, the bound is that of what is still open.
    """
    jobs = domains.shape[0]
    base = np.empty((jobs + 1, angles), np.int64)
    excess = np.empty((jobs, angles), np.int64)
    rotations = np.zeros(jobs, np.int64)
    base[1] = circles[0, :angles]
    depth = 1
    entered = True
    spent = 0
    while depth > 0 and best > floor:
        if entered:
            _excesses(base[depth], circles[depth], angles, domains[depth], capacity, excess[depth])
            spent += angles * domains[depth]
            if alike[depth]:
                excess[depth, : rotations[depth - 1]] = _LARGE
            entered = False
        rotation = _first_least(excess[depth], domains[depth])
        least = excess[depth, rotation]
        if least >= _LARGE or least + suffix[depth + 1] >= best:
            depth -= 1
            continue
        if spent > budget:
            break
        excess[depth, rotation] = _LARGE
        rotations[depth] = rotation
        if depth == jobs - 1:
            best = least
            best_rotations[:] = rotations
            continue
        _add(base[depth], circles[depth], angles, rotation, base[depth + 1])
        depth += 1
        entered = True
    bound = best
    if best > floor:
        for level in range(1, depth + 1):
            least = excess[level, _first_least(excess[level], domains[level])]
            if least < _LARGE:
                bound = min(bound, least + suffix[level + 1])
    return best, max(bound, floor)


# -- the mean excess of demands that are independent of each other -----------------------------------------------------

_LEVELS = 4096


def expected_excess(demands: Sequence[np.ndarray], capacity_bps: int) -> float:
    """The mean excess of the sum of demands over the capacity, bit/s, with each at an independent random angle.

    Args:
        demands: each in bit/s at all of its angles.
    """
    if not demands:
        return 0.0
    ends = np.cumsum([len(each) for each in demands])
    return float(_mean_excess(np.concatenate(demands).astype(np.float64), ends, float(capacity_bps), _LEVELS))


@compiled_with_arrays
def _mean_excess(demands: np.ndarray, ends: np.ndarray, capacity: float, most: int) -> float:
    values, shares = np.zeros(1), np.ones(1)
    begin = 0
    for end in ends:
        own, weights = _levels(demands[begin:end])
        begin = end
        values, shares = _added(values, shares, own, weights)
        if len(values) > most:
            values, shares = _binned(values, shares, most)
    mean = 0.0
    for at in range(len(values)):
        mean += max(0.0, values[at] - capacity) * shares[at]
    return mean


@compiled_with_arrays
def _levels(demand: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The values of a demand, ascending, each with its share of the angles."""
    ordered = np.sort(demand)
    values, shares = np.empty(len(ordered)), np.zeros(len(ordered))
    found = 0
    for at in range(len(ordered)):
        if at == 0 or ordered[at] != ordered[at - 1]:
            values[found] = ordered[at]
            found += 1
        shares[found - 1] += 1 / len(ordered)
    return values[:found], shares[:found]


@compiled_with_arrays
def _added(
    values: np.ndarray, shares: np.ndarray, own: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The distribution of the sum of two demands, both ascending: one shifted copy for each level, merged."""
    sums, products = np.empty(len(values) * len(own)), np.empty(len(values) * len(own))
    next_of = np.zeros(len(own), np.int64)
    found = 0
    while True:
        least = np.inf
        for level in range(len(own)):
            if next_of[level] < len(values):
                least = min(least, values[next_of[level]] + own[level])
        if least == np.inf:
            break
        share = 0.0
        for level in range(len(own)):
            at = next_of[level]
            if at < len(values) and values[at] + own[level] == least:
                share += shares[at] * weights[level]
                next_of[level] = at + 1
        sums[found], products[found] = least, share
        found += 1
    return sums[:found], products[:found]


@compiled_with_arrays
def _binned(values: np.ndarray, shares: np.ndarray, bins: int) -> tuple[np.ndarray, np.ndarray]:
    """Reduce to at most `most` values: neighbours are replaced by their mean."""
    width = (values[-1] - values[0]) / bins
    means, weights = np.zeros(bins), np.zeros(bins)
    for at in range(len(values)):
        to = min(int((values[at] - values[0]) / width), bins - 1)
        means[to] += values[at] * shares[at]
        weights[to] += shares[at]
    kept = weights > 0
    return means[kept] / weights[kept], weights[kept]
