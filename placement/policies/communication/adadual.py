"""AdaDUAL for any number of running transfers: the rule that `docs/adadual.md` derives, for compiled code."""

from __future__ import annotations

import numpy as np

from placement.model.compiled import compiled
from placement.model.state import Records

_TIE = 1.0 + 2.0**-40
"""Larger than the rounding errors of float64 among thousands of transfers; anything this close to a tie waits."""


@compiled
def starts(jobs: Records, links: Records, places: Records, costs: np.ndarray, job: int) -> bool:
    """Whether a job that is ready to communicate starts now: if and only if it should on each of its links alone.

    On a link that carries transfers with R_j left, one of size M should start iff waiting for none of them pays:

        2 * L_i  <  R_i / (1 + eta/b) + sum_{j != i} min(R_i, R_j)    for every i,

    where L_i is the overlap that waiting for i spares. A tie waits, as in Theorem 2, and so does whatever is within
    one part in 10**12 of a tie, so that rounding does not decide; one that has nothing left is waited for.

    Args:
        jobs: `left` of the job is all of its transfer, `left` of a running one its remainder.
        links: the links, with lists of their running transfers.
        places: the entries of those lists.
        costs: c_n / b, the cost of a byte while n transfers share a link over its cost alone (Eq. 5):
            n + (n - 1) * eta / b. Read only where something runs: 0, 1 and 2 + eta/b are then its first elements.
        job: its number.
    """
    new = jobs[job].left
    first = jobs[job].first_place
    for place in range(first, first + jobs[job].places):
        if not _starts_beside(jobs, places, costs, new, links[places[place].link].first_running):
            return False
    return True


@compiled
def _starts_beside(jobs: Records, places: Records, costs: np.ndarray, new: int, running: int) -> bool:
    """Whether a transfer of this size should start beside those in the list."""
    place = running
    while place >= 0:
        if _waiting_pays(jobs, places, costs, new, running, place):
            return False
        place = places[place].next
    return True


@compiled
def _waiting_pays(
    jobs: Records, places: Records, costs: np.ndarray, new: int, running: int, awaited: int
) -> bool:
    """Whether waiting for a transfer in the list is no worse than starting now.

    The differences are taken of integers; the sums, which integers might not hold, are of floats of one sign.
    """
    first = jobs[places[awaited].job].left
    spared = 0.0
    wait = first / (costs[2] - costs[1])
    place = running
    while place >= 0:
        other = jobs[places[place].job].left
        spared += float(min(other, new) - min(max(other - first, 0), new))
        if place != awaited:
            wait += float(min(other, first))
        place = places[place].next
    return 2.0 * spared * _TIE >= wait
