"""AdaDUAL (Algorithm 2), in Ada-SRSF (Algorithm 3): two at once on a link where that ends both sooner on average."""

from __future__ import annotations

import numpy as np

from placement.model.compiled import compiled
from placement.model.state import Records


@compiled
def starts(jobs: Records, links: Records, places: Records, acceptance: np.ndarray, job: int) -> bool:
    """Whether a job that is ready to communicate starts now.

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
