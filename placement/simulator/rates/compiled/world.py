"""The state of a compiled run as arrays."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np

Records: TypeAlias = Any
"""An array of records; numpy's type annotations do not cover the fields of a record."""

TO_COME, WAITS, RUNS, ENDED = range(4)
"""The states of a job."""

SHARE_SCHEME, SHARE_CLUSTER, SHARE_NODE, SHARE_BATCH = range(4)
"""The kinds of share: a scheme of DRS, the whole cluster, a whole node, or a place in a batch of Themis."""

BY_SLACK, BY_DEADLINE, BY_ARRIVAL, LATE_LAST = range(4)
"""The order of waiting jobs. By slack (least T_dl - T_end) and late last (by T_dl), late jobs come last, by T_end."""

NEVER = 1 << 62

JOB = np.dtype(
    [
        ("arrival", "i8"),
        ("deadline", "i8"),
        ("workload", "i8"),  # into the tables
        ("state", "i8"),
        ("gpus", "i8"),  # N, of a job that runs
        ("cross", "i8"),  # whether it spans nodes
        ("began", "i8"),  # the present span
        ("useful_from", "i8"),  # when the restart at its beginning is over
        ("useful", "i8"),  # ns in which it trained in earlier spans
        ("end", "i8"),
    ]
)

SPAN = np.dtype([("job", "i8"), ("gpus", "i8"), ("start", "i8"), ("end", "i8"), ("hold", "i8")])

CORE = np.dtype(
    [
        ("share", "i8"),
        ("order", "i8"),
        ("migrates", "i8"),
        ("restart", "i8"),  # c in ns
        ("arrived", "i8"),
        ("ended", "i8"),
        ("waiting", "i8"),  # the length of the queue
        ("running", "i8"),
        ("spans", "i8"),
    ]
)


class World(NamedTuple):
    """The state of a run. Jobs are in the order of the trace; kind 0 is one node, and 1 across nodes."""

    core: Records
    jobs: Records
    run_ns: np.ndarray  # per workload, kind and N: T_run of the whole job
    gains: np.ndarray  # per workload, kind and N: whether (11) lets it pass
    step: np.ndarray  # per workload, kind and N: T_step
    samples: np.ndarray  # per workload: N_epoch * S_dataset
    batch: np.ndarray  # per workload: S_batch
    size: np.ndarray  # per node, its GPUs
    free: np.ndarray  # per node, those that are free
    held: np.ndarray  # per job and node, the GPUs that it holds
    queue: np.ndarray  # jobs that wait, in the order of the trace
    active: np.ndarray  # jobs that run, in the order of the trace
    spans: Records
    placed: np.ndarray  # per span and node, the GPUs
    left: np.ndarray  # per node, scratch
    planned: np.ndarray  # per job and node, scratch
    marks: np.ndarray  # per job, scratch
    shares: np.ndarray  # per job, scratch


class Offer(NamedTuple):
    """The GPUs that a waiting job would get now.

    Attributes:
        gpus: N; 0 if it has to wait.
        cross: whether across nodes.
        end: T_end.
    """

    gpus: int
    cross: int
    end: int
