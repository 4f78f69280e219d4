"""The rule of Moore and Hodgson, which minimises the number of late jobs (Management Science 15(1), 1968).

Jobs are admitted in the order of their deadlines. Whenever their work exceeds what can be done before the deadline of
the last one, the job with the most work is given up. On one machine, with all jobs there, no other choice admits more.
"""

from __future__ import annotations

from collections.abc import Iterable


def admitted(demands: Iterable[tuple[int, int]]) -> list[int]:
    """The positions of the jobs that are not given up, ascending.

    Args:
        demands: a pair a job, in the order of their deadlines: its work, and the work that can be done from now until
            its deadline, in the same unit. Of jobs with equal work the one with the earlier deadline is given up.
    """
    kept: list[int] = []
    work: list[int] = []
    total = 0
    for position, (each, capacity) in enumerate(demands):
        kept.append(position)
        work.append(each)
        total += each
        if total > capacity:
            largest = work.index(max(work))
            total -= work[largest]
            del kept[largest], work[largest]
    return kept
