"""The recursions of MVA over the population, compiled to machine code.

A link with sharing degree gamma has the response time gamma * T(PS) + (1 - gamma) * T(FCFS) (Equation 3). The exact
solution (Equation 1) is gamma = 1 throughout, the approximate one (Equation 2) gamma = 0; in the hybrid one gamma
follows the utilisation of the link (Equation 4), so that each step is a fixed point.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from placement.model.compiled import compiled

if TYPE_CHECKING:
    import numpy as np

EXACT, APPROXIMATE, HYBRID = range(3)

_SETTLED = 1e-14
_ROUNDS = 64
_MOST_ROUNDS = 32 * _ROUNDS


@compiled
def solve_identical(
    method: int,
    times: np.ndarray,
    threshold: float,
    full: float,
    rates: np.ndarray,
    responses: np.ndarray,
) -> None:
    """Solve the network for 1, 2, ... identical workers, in time proportional to their number.

    Args:
        method: `EXACT`, `APPROXIMATE` or `HYBRID`.
        times: S^W, S^U, S^S, S^D in seconds.
        threshold: of g; see `LinkSharing`.
        full: of g.
        rates: filled with X(1), X(2), ...; its length is K.
        responses: K rows, filled with T^W, T^U, T^S, T^D.
    """
    worker, uplink, server, downlink = times
    at_uplink = at_server = at_downlink = 0.0
    busy_uplink = busy_downlink = 0.0
    for workers in range(1, len(rates) + 1):
        elsewhere = worker + server * (1 + at_server)
        up_shared, down_shared = uplink * (1 + at_uplink), downlink * (1 + at_downlink)
        # What first come first served saves: half of the transfer that an arrival finds in service.
        up_saved, down_saved = uplink * busy_uplink / 2, downlink * busy_downlink / 2
        if method == EXACT:
            up, down = up_shared, down_shared
        elif method == APPROXIMATE:
            up, down = up_shared - up_saved, down_shared - down_saved
        else:
            low, high = 0.0, workers / (worker + uplink + server + downlink)
            # The left side of x * T(x) = n grows strictly with x.
            while True:
                rate = (low + high) / 2
                up = up_shared - (1 - _ramp(rate * uplink, threshold, full)) * up_saved
                down = down_shared - (1 - _ramp(rate * downlink, threshold, full)) * down_saved
                if not low < rate < high:
                    break
                if rate * (elsewhere + up + down) < workers:
                    low = rate
                else:
                    high = rate
        rate = workers / (elsewhere + up + down)
        rates[workers - 1] = rate
        responses[workers - 1, 0] = worker
        responses[workers - 1, 1] = up
        responses[workers - 1, 2] = server * (1 + at_server)
        responses[workers - 1, 3] = down
        at_server = rate * responses[workers - 1, 2]
        at_uplink, at_downlink = rate * up, rate * down
        busy_uplink, busy_downlink = rate * uplink, rate * downlink


@compiled
def solve_classes(
    method: int,
    times: np.ndarray,
    counts: np.ndarray,
    threshold: float,
    full: float,
    found: np.ndarray,
    present: np.ndarray,
    rates: np.ndarray,
    responses: np.ndarray,
) -> None:
    """Solve the network for classes of identical workers, over all product(counts + 1) populations.

    A population vector is a number in mixed radix, the first class its last digit, so that all smaller populations
    come before it.

    Args:
        method: `EXACT`, `APPROXIMATE` or `HYBRID`.
        times: a row for each class: S^W, S^U, S^S, S^D in seconds.
        counts: the workers of each class, 1 or more.
        threshold: of g; see `LinkSharing`.
        full: of g.
        found: scratch, zeros, a row for each population: tasks at U, S, D, and the unfinished work in seconds of an
            average transfer's point of view at U, D if they are first come first served (Equation 2).
        present: scratch, a zero for each class.
        rates: filled with the throughput of each class with all workers.
        responses: filled, a row for each class: T^W, T^U, T^S, T^D with all workers.
    """
    classes = len(counts)
    for population in range(1, len(found)):
        digit = 0
        while present[digit] == counts[digit]:
            present[digit] = 0
            digit += 1
        present[digit] += 1
        share_up = share_down = 1.0 if method == EXACT else 0.0
        damping = 0.5
        for attempt in range(1, _MOST_ROUNDS + 1):
            busy_up = busy_down = 0.0
            stride = 1
            for each in range(classes):
                rates[each] = 0.0
                if present[each]:
                    before = population - stride
                    up, server, down = times[each, 1], times[each, 2], times[each, 3]
                    at_up = share_up * up * (1 + found[before, 0])
                    at_up += (1 - share_up) * (up + found[before, 3])
                    at_server = server * (1 + found[before, 1])
                    at_down = share_down * down * (1 + found[before, 2])
                    at_down += (1 - share_down) * (down + found[before, 4])
                    rates[each] = present[each] / (times[each, 0] + at_up + at_server + at_down)
                    responses[each, 0] = times[each, 0]
                    responses[each, 1] = at_up
                    responses[each, 2] = at_server
                    responses[each, 3] = at_down
                    busy_up += rates[each] * up
                    busy_down += rates[each] * down
                stride *= counts[each] + 1
            if method != HYBRID:
                break
            move_up = _ramp(busy_up, threshold, full) - share_up
            move_down = _ramp(busy_down, threshold, full) - share_down
            if max(abs(move_up), abs(move_down)) < _SETTLED:
                break
            # A steep g needs more damping than the half that suffices for the paper's.
            if attempt % _ROUNDS == 0:
                damping /= 2
            share_up += damping * move_up
            share_down += damping * move_down
        for each in range(classes):
            if rates[each] > 0:
                up, down = times[each, 1], times[each, 3]
                for station in range(3):
                    found[population, station] += rates[each] * responses[each, station + 1]
                found[population, 3] += rates[each] * up * (responses[each, 1] - up / 2)
                found[population, 4] += rates[each] * down * (responses[each, 3] - down / 2)


@compiled
def _ramp(utilisation: float, threshold: float, full: float) -> float:
    """See `LinkSharing.degree`."""
    return min(1.0, max(0.0, (utilisation - threshold) / (full - threshold)))
