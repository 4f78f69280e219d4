"""Themis as the DRS paper describes it: batches of jobs that start together, each batch after the one before has ended.

A batch has as many waiting jobs as the cluster has GPUs, by arrival, with one GPU each. Then the job with the longest
run time gets the next larger number of GPUs that shortens it, again and again, until no GPU is left. This is not Themis
(see `themis` and `themis_leases`); it is kept because the paper's figures compare with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from placement.model.cluster import Cluster
from placement.policies.schedulers.drs.allocation import FreeGpus
from placement.policies.schedulers.scheduler import CANDIDATES, Assignment, JobView
from placement.policies.schedulers.untimed import Untimed


@dataclass(frozen=True)
class ThemisBatch(Untimed):
    """The Themis of the DRS paper."""

    @property
    def name(self) -> str:
        """Its name on the command line."""
        return "themis-batch"

    def candidates(
        self, cluster: Cluster, now_ns: int, jobs: Sequence[JobView], most: int = CANDIDATES
    ) -> tuple[Assignment, ...]:
        """See `Scheduler.candidates`."""
        held = {job.name: job.gpus for job in jobs if job.gpus}
        if held:
            return (held,)
        free = FreeGpus(cluster, {})
        batch = _admitted(jobs, free.total)
        shares = _shares(batch, free.total, max(free.counts))
        assignment = {}
        for job in sorted(batch, key=lambda job: -shares[job.name]):
            gpus = free.take_room(shares[job.name])
            assert gpus is not None, "the shares fit together"
            assignment[job.name] = gpus
        return (assignment,)


def _admitted(jobs: Sequence[JobView], gpus: int) -> list[JobView]:
    """The first jobs that fit together on as few GPUs as each can run on."""
    batch: list[JobView] = []
    for job in jobs:
        gpus -= job.gpus_min
        if gpus < 0:
            break
        batch.append(job)
    return batch


def _shares(batch: Sequence[JobView], gpus: int, per_node: int) -> dict[str, int]:
    """The number of GPUs of each job."""
    shares = {job.name: job.gpus_min for job in batch}
    left = gpus - sum(shares.values())
    growing = list(batch)
    while growing and left:
        job = max(growing, key=lambda job: job.run_ns(shares[job.name], shares[job.name] <= per_node))
        larger = _next_larger(job, shares[job.name], left, per_node)
        if larger is None:
            growing = [each for each in growing if each is not job]
        else:
            left -= larger - shares[job.name]
            shares[job.name] = larger
    return shares


def _next_larger(job: JobView, present: int, left: int, per_node: int) -> int | None:
    """The next larger number of GPUs that shortens the job; None if there is none within reach."""
    now_ns = job.run_ns(present, present <= per_node)
    for gpus in range(present + 1, min(present + left, job.gpus_max) + 1):
        if job.run_ns(gpus, gpus <= per_node) < now_ns:
            return gpus
    return None
