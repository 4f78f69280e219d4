"""What a policy may see: the jobs, GPUs, servers and links as arrays of records, in a simulation or a live service.

The records are plain numpy, so that policies can be compiled. Times are whole nanoseconds.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

Records: TypeAlias = Any
"""An array of records of one of the types below; numpy's own types do not know the fields of a record."""

NOT_ARRIVED, QUEUED, COMPUTING, WAITING, SENDING, PAUSED, ENDED = range(7)
"""The states of a job: WAITING for links with its gradients ready, SENDING an all-reduce, PAUSED in the midst of one."""

JOB = np.dtype(
    [
        ("job_id", "i8"),
        ("arrival", "i8"),
        ("gpus", "i8"),  # |G(J_k)|
        ("memory", "i8"),  # MB, of each of its GPUs
        ("model", "i8"),  # into the table of models
        ("compute", "i8"),  # t_f + t_b of an iteration
        ("transfer", "i8"),  # of an iteration, alone on the links: a + b*M (Eq. 2)
        ("state", "i8"),
        ("iterations_left", "i8"),
        ("service_left", "i8"),  # what its workers have yet to compute, together; what SRSF ranks by
        ("servers", "i8"),  # |S(J_k)|, once it is placed
        ("first_worker", "i8"),
        ("workers_left", "i8"),  # of this iteration
        ("first_place", "i8"),  # into the places: one for each link it uses
        ("places", "i8"),
        ("latency_left", "i8"),  # of the running transfer, before the first byte moves
        ("left", "i8"),  # of the running transfer: parts of a nanosecond alone on the links
        ("rate", "i8"),  # parts a nanosecond
        ("updated", "i8"),  # when `left` was right
        ("started", "i8"),  # when it was placed
        ("ended", "i8"),
        ("iteration_began", "i8"),
        ("ready", "i8"),  # when it became ready to communicate, or was paused
        ("sending_since", "i8"),
        ("gpu_wait", "i8"),
        ("link_wait", "i8"),
        ("communication", "i8"),
        ("slowest", "i8"),  # compute time of an iteration on its slowest GPU
        ("mark", "i8"),
    ]
)

GPU = np.dtype(
    [
        ("server", "i8"),
        ("kind", "i8"),  # of performance: into the tables of durations
        ("memory_left", "i8"),
        ("workload", "i8"),  # L_g: what is left of its jobs' compute and contention-free communication
        ("workers", "i8"),  # how many it hosts
        ("current", "i8"),  # the worker that computes, or -1
        ("busy", "i8"),
        ("since", "i8"),
        ("mark", "i8"),
    ]
)

SERVER = np.dtype([("first_gpu", "i8"), ("gpus", "i8")])

WORKER = np.dtype([("job", "i8"), ("gpu", "i8"), ("phase", "i8")])

LINK = np.dtype(
    [
        ("kind", "i8"),  # of speed: into the table of rates
        ("running", "i8"),  # k: transfers that it carries
        ("first_running", "i8"),  # place of one, or -1
        ("first_waiting", "i8"),
        ("busy", "i8"),
        ("since", "i8"),
        ("mark", "i8"),
    ]
)

PLACE = np.dtype([("job", "i8"), ("link", "i8"), ("next", "i8"), ("before", "i8")])
"""A job on a link: in the list of those that wait for it, or of those that it carries."""
