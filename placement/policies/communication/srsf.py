"""SRSF(n): an all-reduce starts if none of its links then carries more than n (V-A)."""

from __future__ import annotations

from placement.model.compiled import compiled
from placement.model.state import Records


@compiled
def starts(limit: int, jobs: Records, links: Records, places: Records, job: int) -> bool:
    """Whether a job that is ready to communicate starts now."""
    first = jobs[job].first_place
    for place in range(first, first + jobs[job].places):
        if links[places[place].link].running >= limit:
            return False
    return True
