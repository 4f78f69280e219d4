"""The policies and the state of the published simulator, as arrays, so that its rules can be compiled.

Times are in steps of a millisecond, sizes in MB, as in the published code. Jobs are numbered in the order of their
arrivals and then of their numbers in the trace; GPUs server by server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from random import Random
from typing import NamedTuple

import numpy as np

from mltcp.core.errors import UsageError
from mltcp.core.policy_names import Vocabulary
from placement.model.cluster import GPU_MEMORY_MB
from placement.model.job import Job

# -- constants and policies --------------------------------------------------------------------------------------------

MS_PER_MB = 0.856
"""b: the cost of a transfer alone."""

PENALTY_MS_PER_MB = 0.235
"""eta: the extra cost for each transfer of every further one on a server."""

LWF_MS_PER_MB = 7.8125
"""The cost of communication that LWF assumes, whatever it is: that of 1 Gbit/s Ethernet."""

ASKED_FOR = 2 * (MS_PER_MB + PENALTY_MS_PER_MB) / MS_PER_MB
"""AdaDUAL: the factor by which the rest of the running transfer must be larger for a second one to start."""

ADA_DUAL = -1
"""The value of `most` that selects AdaDUAL instead of a number of transfers."""

_STEP_NS = 1_000_000
_PLACEMENTS = Vocabulary(
    "placement of the published simulator", ("random", "first-fit", "list-scheduling", "lwf")
)
_COMMUNICATIONS = Vocabulary("communication of the published simulator", ("ada-srsf", "srsf-N"))


class PlacementRule(IntEnum):
    """The choice of GPUs."""

    RANDOM = 0
    FIRST_FIT = 1
    LWF = 2


RULES = np.dtype(
    [
        ("placement", np.int64),
        ("kappa", np.int64),
        ("most", np.int64),  # transfers that a server may have, or ADA_DUAL
        ("defect", np.bool_),
        ("gpus", np.int64),  # of a server
    ],
    align=True,
)


@dataclass(frozen=True)
class PublishedRules:
    """The policies and the cluster of a run.

    Attributes:
        placement: the choice of GPUs.
        kappa: of LWF: jobs with more workers are kept together on servers.
        most: the number of transfers that a server may have; or ADA_DUAL.
        defect: whether AdaDUAL's queries advance the queried transfer.
        servers: of the cluster.
        gpus: of a server.
        memory_mb: of a GPU.
    """

    placement: PlacementRule
    kappa: int
    most: int
    defect: bool
    servers: int = 16
    gpus: int = 4
    memory_mb: int = GPU_MEMORY_MB

    def __post_init__(self) -> None:
        for name in ("kappa", "servers", "gpus", "memory_mb"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name}: expected 1 or more, got {getattr(self, name)}")

    def record(self) -> np.ndarray:
        """The rules as a record for compiled code."""
        return np.array([(self.placement, self.kappa, self.most, self.defect, self.gpus)], RULES)

    def check_jobs(self, jobs: Sequence[Job]) -> None:
        """Check that the published simulator could run the jobs to their end.

        Raises:
            UsageError: a job that is larger than the cluster or has times that are not whole milliseconds, or a
                duplicate number.
        """
        seen: set[int] = set()
        for job in jobs:
            if job.job_id in seen:
                raise UsageError(f"job {job.job_id}: the number is used more than once")
            seen.add(job.job_id)
            self._check_size(job)
            _check_times(job)

    def _check_size(self, job: Job) -> None:
        gpus = self.servers * self.gpus
        if job.gpus > gpus:
            raise UsageError(f"job {job.job_id}: expected at most the cluster's {gpus} GPUs, got {job.gpus}")
        if not 0 <= job.model.memory_mb <= self.memory_mb:
            raise UsageError(
                f"job {job.job_id}: memory of a worker: expected 0 to {self.memory_mb} MB, got {job.model.memory_mb}"
            )
        if job.model.size_bytes <= 0:
            raise UsageError(
                f"job {job.job_id}: size_bytes of {job.model.name}: expected 1 or more, got {job.model.size_bytes}"
            )


def _check_times(job: Job) -> None:
    times = {
        "arrival_ns": (job.arrival_ns, 0),
        "forward_ns": (job.model.forward_ns, 1),
        "backward_ns": (job.model.backward_ns, 1),
    }
    for name, (value, least) in times.items():
        if value % _STEP_NS or value < least:
            raise UsageError(
                f"job {job.job_id}: {name} is {value}: the published simulator allows whole milliseconds,"
                f" {least} or more"
            )


def rules_of(placement: str, kappa: int, communication: str) -> tuple[PlacementRule, int, int]:
    """Look up the placement rule, its kappa and `most` of the policies with these names.

    Raises:
        UsageError: an unknown name.
    """
    part = _COMMUNICATIONS.parse(communication)
    most = part.number or ADA_DUAL
    match _PLACEMENTS.parse(placement).base:
        case "random":
            return PlacementRule.RANDOM, kappa, most
        case "first-fit":
            return PlacementRule.FIRST_FIT, kappa, most
        case "list-scheduling":
            # It chooses as LWF does for jobs that are not kept together, which is every job here.
            return PlacementRule.LWF, np.iinfo(np.int64).max, most
    return PlacementRule.LWF, kappa, most


# -- the state ---------------------------------------------------------------------------------------------------------

NEVER = np.iinfo(np.int64).max


class Phase(IntEnum):
    """The task that a worker runs or will run next."""

    FORWARD = 0
    BACKWARD = 1
    COMPUTED = 2


CLOCK = np.dtype(
    [
        ("now", np.int64),
        ("arrived", np.int64),  # how many jobs have
        ("queued", np.int64),
        ("queued_wide", np.int64),  # of these, how many have more than kappa workers
        ("running", np.int64),  # how many jobs are placed and have not left
        ("finished", np.int64),  # of these, how many have no iteration left
        ("left", np.int64),  # how many jobs have left their GPUs
        ("local", np.int64),  # how many of one server have computed
        ("waiting", np.int64),  # how many would like to start a transfer
        ("transfers", np.int64),
        ("woken", np.int64),  # how many GPUs may have something new to do
        ("retry", np.bool_),  # whether a queued job could be placed now
        ("ask", np.bool_),  # whether a waiting job could start now
        ("due", np.int64),  # no transfer ends before
        ("draws", np.int64),  # random numbers that queued jobs use up in every step
        ("drawn", np.int64),  # until when they have
        ("word", np.int64),  # of the generator: the next one
        ("events", np.int64),
    ],
    align=True,
)

JOB = np.dtype(
    [
        ("arrival", np.int64),
        ("forward", np.int64),
        ("backward", np.int64),
        ("workers", np.int64),
        ("memory", np.int64),
        ("size", np.float64),
        ("iterations", np.int64),  # left
        ("service", np.int64),  # what all workers compute from beginning to end
        ("remaining", np.int64),  # of it
        ("workload", np.float64),  # what its transfers add to that of its GPUs, as LWF computes it
        ("charge", np.float64),  # of it, one transfer
        ("place", np.int64),  # how many jobs were placed before it
        ("servers", np.int64),  # how many it is on
        ("computing", np.int64),  # workers that have not computed in this iteration
        ("sending", np.bool_),
        ("done", np.bool_),
        ("sent", np.float64),
        ("speed", np.float64),
        ("updated", np.int64),  # `sent` is that of the end of this step
        ("asks", np.int64),  # that advance its transfer in every step
        ("placed", np.int64),
        ("ended", np.int64),
        ("began", np.int64),  # this iteration
        ("ready", np.int64),  # its transfer could start
        ("started", np.int64),  # its transfer
        ("transfers", np.int64),
        ("gpu_wait", np.int64),
        ("link_wait", np.int64),
        ("communication", np.int64),
    ],
    align=True,
)


class PublishedState(NamedTuple):
    """The whole state of a run, with its rules.

    Attributes:
        rules: one record of `rules.RULES`.
        clock: one record of CLOCK.
        jobs: records of JOB.
        phase: of each job's worker on each GPU.
        workers: per job, the GPUs of its workers.
        spread: per job, the servers that it is on.
        queue: jobs that are not placed, in order of service.
        running: jobs in the order in which they were placed.
        local: jobs of one server that have computed.
        waiting: jobs that would like to start a transfer, in order of remaining service.
        transfers: jobs that send.
        order: servers, as LWF sorted them last.
        means: per server, the mean of its GPUs' workloads.
        load: per server, the number of transfers.
        sending: per server, the jobs of these transfers in the order of their starts.
        ends: per GPU, the end of its task.
        task: per GPU, the job that it computes for.
        memory: per GPU, the free memory.
        workload: per GPU, as LWF computes it.
        active: per GPU, the time that it has computed.
        hosted: per GPU, the number of its jobs.
        hosts: per GPU, its jobs in the order of placement.
        is_woken: per GPU, whether it is in `woken`.
        woken: GPUs that may have something new to do.
        found: the GPUs that a job could use; it gets the first ones.
        generator: the 624 words of the random number generator.
    """

    rules: np.ndarray
    clock: np.ndarray
    jobs: np.ndarray
    phase: np.ndarray
    workers: np.ndarray
    spread: np.ndarray
    queue: np.ndarray
    running: np.ndarray
    local: np.ndarray
    waiting: np.ndarray
    transfers: np.ndarray
    order: np.ndarray
    means: np.ndarray
    load: np.ndarray
    sending: np.ndarray
    ends: np.ndarray
    task: np.ndarray
    memory: np.ndarray
    workload: np.ndarray
    active: np.ndarray
    hosted: np.ndarray
    hosts: np.ndarray
    is_woken: np.ndarray
    woken: np.ndarray
    found: np.ndarray
    generator: np.ndarray


def initial_state(jobs: Sequence[Job], rules: PublishedRules, seed: int) -> PublishedState:
    """Build the state before the first step. The jobs are in the order of arrival and pass `rules.check_jobs`."""
    count, gpus = len(jobs), rules.servers * rules.gpus
    most = max(job.gpus for job in jobs)
    least_mb = min(job.model.memory_mb for job in jobs)
    hosted = min(count, rules.memory_mb // least_mb) if least_mb else count
    words = Random(seed).getstate()[1]
    clock = np.zeros(1, CLOCK)
    clock["due"], clock["word"] = NEVER, words[-1]
    return PublishedState(
        rules=rules.record(),
        clock=clock,
        jobs=_records(jobs),
        phase=np.full((count, gpus), Phase.FORWARD, np.int8),
        workers=np.zeros((count, most), np.int64),
        spread=np.zeros((count, min(most, rules.servers)), np.int64),
        queue=np.zeros(count, np.int64),
        running=np.zeros(count, np.int64),
        local=np.zeros(count, np.int64),
        waiting=np.zeros(count, np.int64),
        transfers=np.zeros(count, np.int64),
        order=np.arange(rules.servers, dtype=np.int64),
        means=np.zeros(rules.servers),
        load=np.zeros(rules.servers, np.int64),
        sending=np.zeros((rules.servers, min(count, hosted * rules.gpus)), np.int64),
        ends=np.full(gpus, NEVER, np.int64),
        task=np.zeros(gpus, np.int64),
        memory=np.full(gpus, rules.memory_mb, np.int64),
        workload=np.zeros(gpus),
        active=np.zeros(gpus, np.int64),
        hosted=np.zeros(gpus, np.int64),
        hosts=np.zeros((gpus, hosted), np.int64),
        is_woken=np.zeros(gpus, np.bool_),
        woken=np.zeros(gpus, np.int64),
        found=np.zeros(gpus, np.int64),
        generator=np.array(words[:-1], np.uint32),
    )


def _records(jobs: Sequence[Job]) -> np.ndarray:
    records = np.zeros(len(jobs), JOB)
    for record, job in zip(records, jobs, strict=True):
        record["arrival"] = job.arrival_ns // 1_000_000
        record["forward"] = job.model.forward_ns // 1_000_000
        record["backward"] = job.model.backward_ns // 1_000_000
        record["workers"], record["memory"] = job.gpus, job.model.memory_mb
        record["size"] = job.model.size_bytes / 1e6
        record["iterations"] = job.iterations
        record["service"] = record["remaining"] = job.service_ns // 1_000_000
        record["charge"] = record["size"] * LWF_MS_PER_MB
        record["workload"] = record["charge"] * job.iterations
    return records
