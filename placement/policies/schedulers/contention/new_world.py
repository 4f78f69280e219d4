"""Allocation of a `World`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from placement.model.throughput_table import COMBINATIONS, Combination
from placement.policies.schedulers.contention.rule import Rule
from placement.policies.schedulers.contention.tables import Tables
from placement.policies.schedulers.contention.world import (
    CHOICE,
    CORE,
    JOB,
    SLOT,
    World,
)

_A_CANDIDATE = 3


def new_world(
    tables: Tables,
    sizes: Sequence[int],
    jobs: int,
    rule: Rule,
    round_s: float,
    restart_s: float,
    combination: Combination = "minimum",
) -> World:
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
    for name in (
        "family",
        "order",
        "placement",
        "stops",
        "head",
        "fallback",
        "hysteresis",
        "choices",
        "seed",
    ):
        core[name] = getattr(rule, name)
    core["round_s"], core["restart_s"], core["news"] = round_s, restart_s, True
    core["combination"] = COMBINATIONS.index(combination)
    free = np.array(sizes, np.int64)
    room = [
        sum(1 << node for node, size in enumerate(sizes) if size >= gpus) for gpus in range(max(sizes) + 1)
    ]
    slots = min(jobs, int(free.sum()))
    return World(
        core=core,
        jobs=np.zeros(jobs, JOB),
        kinds=tables.kinds,
        cells=tables.cells,
        ratios=tables.ratios,
        sets=tables.sets,
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


def trial_of(world: World) -> World:
    """Scratch for look-ahead: the same tables, and a state of its own."""
    shared = {"kinds", "cells", "ratios", "sets"}
    return World(
        **{name: value if name in shared else value.copy() for name, value in world._asdict().items()}
    )
