"""The state that a decision in rounds depends on, as arrays: jobs, free GPUs, throughputs and ratios.

A *kind* is what jobs have in common that run the same model on the same number of GPUs. A *cell* is a kind on a number
of nodes, with as many GPUs on each; a row and a column of the table of ratios. A *place* is a cell and the set of its
nodes, as bits. Jobs are in the order of their arrival, which decides between equals.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np

Records: TypeAlias = Any
"""An array of records; numpy's type annotations do not cover the fields of a record."""

TO_COME, WAITS, RUNS, ENDED = range(4)
"""The states of a job."""

ORDERED, RANDOM, GREEDY, REOPT, GREEDY_LOOK, REOPT_LOOK = range(6)
"""The families of rules."""

FIFO, LAS, TIRESIAS, SRTF, SRSF = range(5)
"""The orders of the ordered rules."""

FIRST, PACKED, TABLE, MOST_NODES = range(4)
"""The placements of the ordered rules."""

NO_STOPS, STOPS_BY_RATIO, ALL_COMPETE = range(3)
"""Which running jobs are stopped before a decision: none, those with a small ratio, or all."""

MINIMUM, PRODUCT, SUM = range(3)
"""How the ratios beside several neighbours combine, in the order of `COMBINATIONS`."""

MOST_NODES_IN_ALL = 62
"""A set of nodes is the bits of a 64-bit number."""

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

CELL = np.dtype(
    [
        ("rate", "f8"),  # T, samples/s
        ("speed", "f8"),  # T over that of the kind's fastest cell
        ("gpus", "i8"),  # on each node
        ("nodes", "i8"),  # how many
        ("first", "i8"),  # its sets of nodes, in `sets`
        ("sets", "i8"),
    ]
)

KIND = np.dtype(
    [
        ("gpus", "i8"),  # g
        ("best", "f8"),  # the largest T of its cells
        ("first", "i8"),  # its cells, by ascending number of nodes
        ("cells", "i8"),
    ]
)

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


class World(NamedTuple):
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
