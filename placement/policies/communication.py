"""The communication policies, compiled: they admit transfers to shared links, simulated and live."""

from __future__ import annotations

import numpy as np

from placement.model.compiled import compiled
from placement.model.state import Records
from placement.policies.catalogue import (
    ADA_SRSF,
    ADA_SRSF_K,
    LIMITED,
    REMAINING_TIME,
    SERVICE,
    WEIGHTED_COMPUTE,
)

_TIE = 1.0 + 2.0**-40
"""Larger than the rounding errors of float64 among thousands of transfers; anything this close to a tie waits."""


@compiled
def rank(kind: int, jobs: Records, job: int) -> int:
    """The rank of a job that has been placed.

    Raises:
        ValueError: there is no such rank.
    """
    record = jobs[job]
    if kind == SERVICE:
        return record.service_left
    if kind == REMAINING_TIME:
        return record.iterations_left * (record.compute + record.transfer)
    if kind != WEIGHTED_COMPUTE:
        raise ValueError("rank: expected one of placement.policies.catalogue")
    # The compute that a worker has left, in 1024ths (which loses about a microsecond, but no range), times the cube
    # root of the number of workers; halved if the job communicates.
    work = ((record.iterations_left * record.compute) >> 10) * record.weight
    return work >> 1 if record.places else work


# -- admission of all-reduces ------------------------------------------------------------------------------------------


@compiled
def starts(
    rule: int,
    limit: int,
    jobs: Records,
    links: Records,
    places: Records,
    costs: np.ndarray,
    acceptance: np.ndarray,
    job: int,
) -> bool:
    """Whether a job that is ready to communicate starts now.

    Raises:
        ValueError: there is no such rule.
    """
    if rule == LIMITED:
        return starts_below_limit(limit, jobs, links, places, job)
    if rule == ADA_SRSF_K:
        return starts_beside_any(jobs, links, places, costs, job)
    if rule == ADA_SRSF:
        return starts_beside_one(jobs, links, places, acceptance, job)
    raise ValueError("communication rule: expected one of placement.policies.catalogue")


@compiled
def starts_below_limit(limit: int, jobs: Records, links: Records, places: Records, job: int) -> bool:
    """SRSF(n): whether none of the links of an all-reduce would carry more than n with it (V-A)."""
    first = jobs[job].first_place
    for place in range(first, first + jobs[job].places):
        if links[places[place].link].running >= limit:
            return False
    return True


@compiled
def starts_beside_one(
    jobs: Records, links: Records, places: Records, acceptance: np.ndarray, job: int
) -> bool:
    """AdaDUAL (Algorithm 2), in Ada-SRSF (Algorithm 3): two at once on a link where that ends both sooner on average.

    As written, the one running transfer that counts is that of the first of the job's links that carries one (lines
    4 to 9: a later one with no more than it does not replace it).
    """
    most, old = 0, -1
    first = jobs[job].first_place
    for place in range(first, first + jobs[job].places):
        link = links[places[place].link]
        if link.running > most:
            most, old = link.running, link.first_running
    if most != 1:
        return most == 0
    return jobs[places[old].job].left > acceptance[jobs[job].model]


@compiled
def starts_beside_any(jobs: Records, links: Records, places: Records, costs: np.ndarray, job: int) -> bool:
    """AdaDUAL for any number of running transfers: whether a job should start on each of its links alone.

    The rule of `placement.model.adadual`, for compiled code.

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


# -- SRTF-Yield --------------------------------------------------------------------------------------------------------
# SRTF-Yield: the job with the shortest remaining time has its links exclusively; others yield at the end of a bucket.
#
# Jobs that request links are considered in the order of rank. A job is granted its links if no granted job before it
# shares one of them. A granted job starts as soon as its links are free; a sending job that loses its grant stops at
# the end of its current bucket. So no bucket is interrupted, and links are never shared.


@compiled
def grant(
    jobs: Records, links: Records, places: Records, pending: np.ndarray, count: int, touched: np.ndarray
) -> int:
    """Bring the grants up to date, as `jobs[...].granted` and `links[...].granted`.

    Args:
        jobs: the jobs; those that request links have their rank.
        links: the links, with lists of waiting and of running jobs.
        places: of the jobs on the links.
        pending: `count` jobs that ask, around whose links something has changed; there is room for all jobs. Each has
            its mark set, and no other has.
        count: as above.
        touched: room for all jobs.

    Returns:
        The number of jobs in `touched`, which are marked: all that were considered, among them all whose grant changed.
    """
    for position in range(count // 2 - 1, -1, -1):
        _sink(jobs, pending, count, position)
    found = 0
    while count:
        job = pending[0]
        count -= 1
        pending[0] = pending[count]
        _sink(jobs, pending, count, 0)
        # A mark of 2: considered. A job cannot change after one of higher rank number was considered.
        jobs[job].mark = 2
        touched[found] = job
        found += 1
        if not jobs[job].granted and not _is_behind(jobs, links, places, job):
            count = _take(jobs, links, places, job, pending, count)
    return found


@compiled
def _is_before(jobs: Records, job: int, other: int) -> bool:
    return (jobs[job].rank, job) < (jobs[other].rank, other)


@compiled
def _is_behind(jobs: Records, links: Records, places: Records, job: int) -> bool:
    first = jobs[job].first_place
    for place in range(first, first + jobs[job].places):
        owner = links[places[place].link].granted
        if owner >= 0 and _is_before(jobs, owner, job):
            return True
    return False


@compiled
def _take(jobs: Records, links: Records, places: Records, job: int, pending: np.ndarray, count: int) -> int:
    """Grant the job its links; the jobs that had them, and those behind these, are considered next."""
    first = jobs[job].first_place
    for place in range(first, first + jobs[job].places):
        owner = links[places[place].link].granted
        if owner >= 0:
            count = _lose(jobs, links, places, owner, pending, count)
    for place in range(first, first + jobs[job].places):
        links[places[place].link].granted = job
    jobs[job].granted = 1
    return count


@compiled
def _lose(jobs: Records, links: Records, places: Records, owner: int, pending: np.ndarray, count: int) -> int:
    jobs[owner].granted = 0
    first = jobs[owner].first_place
    for place in range(first, first + jobs[owner].places):
        link = places[place].link
        if links[link].granted == owner:
            links[link].granted = -1
        for carried in range(2):
            other = links[link].first_running if carried else links[link].first_waiting
            while other >= 0:
                count = _add(jobs, pending, count, places[other].job)
                other = places[other].next
    return count


@compiled
def _add(jobs: Records, pending: np.ndarray, count: int, job: int) -> int:
    if jobs[job].mark:
        return count
    jobs[job].mark = 1
    position = count
    while position > 0:
        above = (position - 1) // 2
        if not _is_before(jobs, job, pending[above]):
            break
        pending[position] = pending[above]
        position = above
    pending[position] = job
    return count + 1


@compiled
def _sink(jobs: Records, pending: np.ndarray, count: int, position: int) -> None:
    if position >= count:
        return
    job = pending[position]
    while True:
        below = 2 * position + 1
        if below >= count:
            break
        if below + 1 < count and _is_before(jobs, pending[below + 1], pending[below]):
            below += 1
        if not _is_before(jobs, pending[below], job):
            break
        pending[position] = pending[below]
        position = below
    pending[position] = job
