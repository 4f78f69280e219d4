"""The constants of the published simulator, and the selection of its policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from mltcp.core.errors import UsageError
from mltcp.core.policy_names import Vocabulary
from placement.model.cluster import GPU_MEMORY_MB
from placement.model.job import Job

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
