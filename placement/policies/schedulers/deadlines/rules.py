"""The table of deadline rules, and the arrays in which a rule sees the cluster and the jobs.

A rule is the share that a waiting job would get now, the order of the waiting jobs, and whether running jobs are moved.
`decide` applies it; simulations, live runs and rollouts all call that function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np

Records: TypeAlias = Any
"""An array of records; numpy's type annotations do not cover the fields of a record."""

SHARE_SCHEME, SHARE_CLUSTER, SHARE_NODE, SHARE_BATCH = range(4)
"""What a job gets: a scheme of DRS, the whole cluster, a whole node, or a place in a batch of Themis."""

BY_SLACK, BY_DEADLINE, BY_ARRIVAL, BY_RUN, LATE_LAST = range(5)
"""The order of waiting jobs: by least slack T_dl - T_end, T_dl, arrival or run time on the fewest GPUs.

`LATE_LAST` is by T_dl. By slack and with late last, jobs that would end late come after all others, by T_end.
"""

NEVER = 1 << 62


@dataclass(frozen=True)
class DeadlineRule:
    """A rule for jobs that keep their number of GPUs.

    Attributes:
        share: what a job gets.
        order: of the waiting jobs; of equals the one that arrived first comes first.
        migrates: whether running jobs are moved.
    """

    share: int
    order: int
    migrates: bool = False

    @property
    def needs_deadlines(self) -> bool:
        """Whether the rule is for jobs with deadlines only."""
        return self.share == SHARE_SCHEME or self.order not in (BY_ARRIVAL, BY_RUN)


RULES: Mapping[str, DeadlineRule] = MappingProxyType(
    {
        # Fu, Hu, Li, Journal of Computer Research and Development 60(6), 2023; NoRM is DRS without migration.
        "drs": DeadlineRule(SHARE_SCHEME, BY_SLACK, migrates=True),
        "norm": DeadlineRule(SHARE_SCHEME, BY_SLACK),
        # The baselines of that paper. Its Themis is not Themis (see `themis` and `themis-leases`): batches of jobs
        # start together, each batch after the one before has ended.
        "edf": DeadlineRule(SHARE_CLUSTER, BY_DEADLINE),
        "fifo": DeadlineRule(SHARE_CLUSTER, BY_ARRIVAL),
        "themis-batch": DeadlineRule(SHARE_BATCH, BY_ARRIVAL),
        # Which of two differences to EDF, the shares or the order, makes DRS better.
        "edf-scheme": DeadlineRule(SHARE_SCHEME, BY_DEADLINE),
        "edf-late-last": DeadlineRule(SHARE_CLUSTER, LATE_LAST),
        "edf-late-last-node": DeadlineRule(SHARE_NODE, LATE_LAST),
        "edf-late-last-scheme": DeadlineRule(SHARE_SCHEME, LATE_LAST),
        "llf": DeadlineRule(SHARE_CLUSTER, BY_SLACK),
    }
)
"""The rules that are schedulers, by name."""

SHORTEST_ON_NODES = DeadlineRule(SHARE_NODE, BY_RUN)
"""For jobs that are late anyway: whole nodes, and the shortest first."""


def record_of(*names: str) -> np.dtype:
    """A record of whole numbers; its fields are attributes in Python, too, where numba's compiler is switched off."""
    return np.dtype((np.record, [(name, "i8") for name in names]))


JOB = record_of("arrival", "deadline", "row", "fewest", "most", "restart", "gpus", "cross")
"""A job: its row of the tables, the fewest and most GPUs that it can use, what a start costs it, and if it runs N and
whether it spans nodes."""

CORE = record_of("share", "order", "migrates", "waiting", "running", "moved", "changed")
"""The rule, the lengths of `queue` and `active`, and how many jobs the last decision moved, and moved or started."""


class DeadlineWorld(NamedTuple):
    """The cluster and the jobs as a rule sees them. Jobs are in the order of their arrival.

    Kind 0 is one node, and 1 across nodes. Times are in one unit, ns unless they would not fit.
    """

    core: Records
    jobs: Records
    run: np.ndarray  # per row, kind and N: T_run of what is left of the job
    gains: np.ndarray  # per row, kind and N: whether (11) of DRS lets it pass
    size: np.ndarray  # per node, its GPUs
    free: np.ndarray  # per node, those that are free
    held: np.ndarray  # per job and node, the GPUs that it holds
    queue: np.ndarray  # the jobs that wait
    active: np.ndarray  # the jobs that run
    changed: (
        np.ndarray
    )  # the jobs that the last decision moved, and then those that it started, in this order
    left: np.ndarray  # per node, scratch
    planned: np.ndarray  # per job and node, scratch
    marks: np.ndarray  # per job, scratch
    shares: np.ndarray  # per job, scratch


def new_world(
    rule: DeadlineRule, jobs: Records, run: np.ndarray, gains: np.ndarray, size: Sequence[int] | np.ndarray
) -> DeadlineWorld:
    """The world of an empty cluster, in which no job has arrived.

    Args:
        rule: decides.
        jobs: records of `JOB`.
        run: see `DeadlineWorld`.
        gains: see `DeadlineWorld`.
        size: the GPUs of each node.
    """
    core = np.zeros(1, CORE)
    core["share"], core["order"], core["migrates"] = rule.share, rule.order, rule.migrates
    sizes = np.array(size, np.int64)
    held, planned = np.zeros((2, len(jobs), len(sizes)), np.int64)
    queue, active, changed, marks, shares = np.zeros((5, len(jobs)), np.int64)
    return DeadlineWorld(
        *(core, jobs, run, gains, sizes, sizes.copy(), held),
        *(queue, active, changed, sizes.copy(), planned, marks, shares),
    )
