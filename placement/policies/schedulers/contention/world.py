"""The state that a decision in rounds depends on, as arrays: jobs, free GPUs, throughputs and ratios.

A *kind* is what jobs have in common that run the same model on the same number of GPUs. A *cell* is a kind on a number
of nodes, with as many GPUs on each; a row and a column of the table of ratios. A *place* is a cell and the set of its
nodes, as bits. Jobs are in the order of their arrival, which decides between equals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import NamedTuple

import numpy as np

from placement.model.throughput_table import COMBINATIONS, Combination
from placement.policies.schedulers.contention.rule import RoundsRule
from placement.policies.schedulers.contention.tables import Records, RoundsTables

TO_COME, WAITS, RUNS, ENDED = range(4)
"""The states of a job."""

MINIMUM, PRODUCT, SUM = range(3)
"""How the ratios beside several neighbours combine, in the order of `COMBINATIONS`."""

JOB = np.dtype(
    [
        ("arrival", "i8"),  # ns
        ("kind", "i8"),
        ("state", "i8"),
        ("remaining", "f8"),  # samples
        ("cell", "i8"),  # of a job that runs
        ("nodes", "i8"),  # likewise, as bits
        ("cell_before", "i8"),  # where it ran when the decision began; -1 if it waited
        ("nodes_before", "i8"),
        ("ratio", "f8"),  # r in the last round
        ("hold", "f8"),  # s of its restart that are left
        ("held", "f8"),  # s for which it has held GPUs
        ("rounds", "i8"),  # since its last start
        ("started", "i8"),  # when it was last started, ns
        ("starts", "i8"),
        ("finish", "f8"),  # s
        ("rounds_run", "i8"),
        ("sensitivity", "f8"),  # sum of 1 / r over these rounds
    ]
)

SLOT = np.dtype(
    [
        ("job", "i8"),
        ("cell", "i8"),
        ("nodes", "i8"),  # as bits
        ("raw", "f8"),  # the combination of its ratios, before the floor
        ("value", "f8"),  # its weight times its speed without contention
    ]
)
"""A running job."""

CORE = np.dtype(
    [
        ("now", "i8"),  # ns
        ("round_s", "f8"),
        ("restart_s", "f8"),
        ("combination", "i8"),
        ("family", "i8"),
        ("order", "i8"),
        ("placement", "i8"),
        ("stops", "i8"),
        ("head", "?"),  # whether a job that does not fit blocks those behind it
        ("fallback", "?"),
        ("stop_ratio", "f8"),
        ("hysteresis", "f8"),  # h
        ("choices", "i8"),
        ("seed", "i8"),
        ("seen", "i8"),  # the jobs before this one are known
        ("waiting", "i8"),
        ("running", "i8"),
        ("ended", "i8"),
        ("finish_sum", "f8"),  # of the jobs that have ended, s
        ("news", "?"),  # whether jobs have arrived, ended or stopped since the last decision
        ("rounds", "i8"),
        ("gpu_rounds", "i8"),
    ]
)

CHOICE = np.dtype([("job", "i8"), ("cell", "i8"), ("nodes", "i8"), ("worth", "f8")])


class RoundsWorld(NamedTuple):
    """The observation from which a decision is made, and in which it is carried out."""

    core: Records
    jobs: Records
    kinds: Records
    cells: Records
    ratios: np.ndarray  # of a cell beside another
    sets: np.ndarray  # sets of nodes as bits, in lexicographic order for each number of nodes
    free: np.ndarray  # GPUs of each node
    room: np.ndarray  # for each number of GPUs, the nodes that have as many, as bits
    queue: Records  # jobs that wait, the longest waiting first
    slots: Records  # jobs that run, in the order of `jobs`
    spare_slots: Records  # scratch
    spare_free: np.ndarray  # scratch
    heads: np.ndarray  # for each kind, the waiting job with the least left; -1 if none waits
    competing: np.ndarray  # per job, scratch
    choices: Records  # scratch


SHARED = frozenset({"kinds", "cells", "ratios", "sets"})
"""The fields that no decision changes: tables, which copies of a world share."""

_A_CANDIDATE = 3


def new_world(
    tables: RoundsTables,
    sizes: Sequence[int],
    jobs: int,
    rule: RoundsRule,
    round_s: float,
    restart_s: float,
    combination: Combination = "minimum",
) -> RoundsWorld:
    """An empty cluster, and jobs that are all zero.

    Args:
        tables: of the kinds of jobs.
        sizes: the GPUs of each node.
        jobs: how many there are.
        rule: that decides.
        round_s: the length of a round.
        restart_s: c, the time for which a restarted job makes no progress.
        combination: of the ratios beside several neighbours.
    """
    core = np.zeros(1, CORE)
    for field in fields(rule):
        core[field.name] = getattr(rule, field.name)
    core["round_s"], core["restart_s"], core["news"] = round_s, restart_s, True
    core["combination"] = COMBINATIONS.index(combination)
    free = np.array(sizes, np.int64)
    room = [
        sum(1 << node for node, size in enumerate(sizes) if size >= gpus) for gpus in range(max(sizes) + 1)
    ]
    slots = min(jobs, int(free.sum()))
    return RoundsWorld(
        core=core,
        jobs=np.zeros(jobs, JOB),
        **tables._asdict(),
        free=free,
        room=np.array(room, np.int64),
        queue=np.zeros(jobs, np.int64),
        slots=np.zeros(slots, SLOT),
        spare_slots=np.zeros(slots, SLOT),
        spare_free=free.copy(),
        heads=np.full(len(tables.kinds), -1, np.int64),
        competing=np.zeros(jobs, np.int64),
        choices=np.zeros(rule.choices + _A_CANDIDATE, CHOICE),
    )


def trial_of(world: RoundsWorld) -> RoundsWorld:
    """Scratch for look-ahead: the same tables, and a state of its own."""
    return RoundsWorld(
        **{name: value if name in SHARED else value.copy() for name, value in world._asdict().items()}
    )
