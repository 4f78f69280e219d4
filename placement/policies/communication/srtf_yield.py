"""SRTF-Yield: the job with the shortest remaining time has its links exclusively; others yield at the end of a bucket.

Jobs that request links are considered in the order of rank. A job is granted its links if no granted job before it
shares one of them. A granted job starts as soon as its links are free; a sending job that loses its grant stops at the
end of its current bucket. So no bucket is interrupted, and links are never shared.
"""

from __future__ import annotations

import numpy as np

from placement.model.compiled import compiled
from placement.model.state import Records


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
