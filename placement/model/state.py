"""The state that policies see: jobs, GPUs, servers and links as arrays of records, in a simulation or a live service.

The records are plain numpy, so that policies can be compiled. Times are whole nanoseconds.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np

Records: TypeAlias = Any
"""An array of records of one of the types below; numpy's type annotations do not cover the fields of a record."""

NOT_ARRIVED, QUEUED, COMPUTING, WAITING, SENDING, ENDED = range(6)
"""The states of a job: WAITING for its links with gradients ready, SENDING them, or COMPUTING with none to send."""

JOB = np.dtype(
    [
        ("job_id", "i8"),
        ("arrival", "i8"),
        ("gpus", "i8"),  # |G(J_k)|
        ("memory", "i8"),  # MB, of each of its GPUs
        ("model", "i8"),  # into the table of models
        ("compute", "i8"),  # t_f + t_b of an iteration
        ("transfer", "i8"),  # of an iteration, alone on links of speed 1: a + b*M (Eq. 2)
        ("buckets", "i8"),  # all-reduces of an iteration, one after the other, of equal sizes
        ("weight", "i8"),  # cube root of the GPUs, in 1024ths
        ("state", "i8"),
        ("iterations", "i8"),  # I_k
        ("iterations_left", "i8"),
        ("service_left", "i8"),  # what its workers have yet to compute, together; what SRSF ranks by
        ("servers", "i8"),  # |S(J_k)|, once it is placed
        ("first_worker", "i8"),
        ("workers_left", "i8"),  # that compute in this iteration
        ("backward_left", "i8"),  # workers that have yet to begin their backward task
        ("backward_began", "i8"),  # when the last of them did
        ("first_place", "i8"),  # into the places: one for each link it uses
        ("places", "i8"),
        ("rank", "i8"),  # among those that ask for links; the smallest is the first
        ("granted", "i8"),  # whether its links are its own, by rank
        ("yields", "i8"),  # whether it stops after this bucket
        ("sent", "i8"),  # buckets of this iteration
        ("latency_left", "i8"),  # of the running bucket, before the first byte moves
        ("left", "i8"),  # of the running bucket, or the next: parts of a nanosecond alone on the links
        ("rate", "i8"),  # parts a nanosecond
        ("updated", "i8"),  # when `left` was right
        ("started", "i8"),  # when it was placed
        ("ended", "i8"),
        ("iteration_began", "i8"),
        ("computed", "i8"),  # when its workers had all computed, or -1 while they have not
        ("ready", "i8"),  # since when it has asked for its links
        ("sending_since", "i8"),
        ("slowest", "i8"),  # forward and backward, on the slowest of its GPUs
        ("slowest_backward", "i8"),
        ("gpu_wait", "i8"),
        ("link_wait", "i8"),
        ("communication", "i8"),  # while nothing of it was computed
        ("sending", "i8"),  # in all
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

SERVER = np.dtype(
    [
        ("first_gpu", "i8"),
        ("gpus", "i8"),
        ("rack", "i8"),  # the number of its switch
    ]
)

WORKER = np.dtype([("job", "i8"), ("gpu", "i8"), ("phase", "i8")])

LINK = np.dtype(
    [
        ("kind", "i8"),  # of speed: into the table of rates
        ("running", "i8"),  # k: transfers that it carries
        ("first_running", "i8"),  # place of one, or -1
        ("first_waiting", "i8"),
        ("granted", "i8"),  # the job whose it is by rank, or -1
        ("busy", "i8"),
        ("since", "i8"),
        ("mark", "i8"),
    ]
)

PLACE = np.dtype([("job", "i8"), ("link", "i8"), ("next", "i8"), ("before", "i8")])
"""A job on a link, in the link's list of waiting or of running transfers."""


class Occupancy(NamedTuple):
    """Jobs, the cluster, and who is where."""

    jobs: Records
    gpus: Records
    servers: Records
    hosted: np.ndarray  # per GPU, the numbers of its workers; `workers` of GPU are valid
    workers: Records
