"""The schedulers of a comparison by name: those of `augmented`, and the compiled placement policies.

A compiled policy (random, first-fit, list-scheduling, lwf-K) chooses the GPUs of one job at a time; here it is a
scheduler that goes through the jobs that wait, shortest remaining service first, and passes over those that do not
fit, as in the simulator of Ada-SRSF.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from placement.model.cluster import Cluster
from placement.policies.catalogue import Placement, placement_policy
from placement.policies.schedulers import augmented
from placement.policies.schedulers.scheduler import CANDIDATES, Assignment, JobView
from placement.service.state.slot_pool import SlotPool, SlotRequest

_KAPPA = re.compile(r"(lwf)-(\d+)")


@dataclass(frozen=True)
class Listed:
    """A compiled placement policy as a scheduler: a single candidate, and no job is ever moved."""

    placement: Placement

    @property
    def name(self) -> str:
        """As it is asked for."""
        return self.placement.name

    @property
    def lease_ns(self) -> int | None:
        """To the end of the job."""
        return None

    def candidates(
        self, cluster: Cluster, now_ns: int, jobs: Sequence[JobView], most: int = CANDIDATES
    ) -> tuple[Assignment, ...]:
        """Place the jobs that wait and fit; see `Scheduler.candidates`."""
        pool = SlotPool()
        pool.add([len(server.gpus) for server in cluster.servers], [0] * len(cluster.servers))
        found: dict[str, tuple[int, ...]] = {}
        for job in jobs:
            if job.gpus:
                pool.occupy(job.gpus, _wanted(job), _work_ns(job))
                found[job.name] = job.gpus
        for job in sorted((job for job in jobs if not job.gpus), key=_rank):
            chosen = None
            if job.gpus_wanted <= pool.free:
                chosen = pool.choose(self.placement.rule, self.placement.kappa, _wanted(job))
            if chosen is not None:
                pool.occupy(chosen, _wanted(job), _work_ns(job))
                found[job.name] = chosen
        return (found,)

    def next_ns(self, now_ns: int, jobs: Sequence[JobView]) -> int | None:
        """Only when a job comes or goes."""
        return None


def scheduler(name: str, cassini: bool, seed: int) -> augmented.Policy:
    """The scheduler of this name, alone or with Cassini.

    Raises:
        UsageError: (of `placement`) there is none.
    """
    if name in augmented.SCHEDULERS:
        return augmented.policy(name + (augmented.AUGMENTED if cassini else ""), seed=seed)
    found = _KAPPA.fullmatch(name)
    placement = placement_policy(found[1], int(found[2])) if found else placement_policy(name)
    return augmented.Policy(Listed(placement), cassini)


def _wanted(job: JobView) -> SlotRequest:
    return SlotRequest(job.gpus_wanted)


def _work_ns(job: JobView) -> int:
    """What each of its GPUs has yet to do."""
    return round(job.iterations_left * job.times.iteration_ns(job.gpus_wanted, True))


def _rank(job: JobView) -> tuple[int, int, str]:
    return _work_ns(job) * job.gpus_wanted, job.arrival_ns, job.name
