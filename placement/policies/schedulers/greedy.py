"""The compiled placement policies (LWF, first fit, list scheduling) as schedulers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from placement.model.cluster import Cluster
from placement.policies.catalogue import SEE_NEIGHBOURS, PlacementPolicy
from placement.policies.schedulers.scheduler import CANDIDATES, Assignment, JobView, Untimed
from placement.policies.slot_pool import Holder, SlotPool, SlotRequest


@dataclass(frozen=True)
class GreedyScheduler(Untimed):
    """A scheduler that places waiting jobs one at a time by a compiled placement policy, and never moves a job.

    Waiting jobs are considered by shortest remaining service first, and those that do not fit are passed over, as in
    the simulator of Ada-SRSF. There is a single candidate.

    Attributes:
        placement: chooses the GPUs of each job.
    """

    placement: PlacementPolicy

    @property
    def name(self) -> str:
        """The name of the placement policy."""
        return self.placement.name

    def candidates(
        self, cluster: Cluster, now_ns: int, jobs: Sequence[JobView], most: int = CANDIDATES
    ) -> tuple[Assignment, ...]:
        """See `Scheduler.candidates`."""
        pool, rule = SlotPool(), self.placement.rule
        servers = cluster.servers
        pool.add([len(each.gpus) for each in servers], [0] * len(servers), [each.switch for each in servers])
        assigned: dict[str, tuple[int, ...]] = {}
        holders = []
        for job in jobs:
            if job.gpus:
                holders.append(Holder(job.gpus, _work_ns(job)))
                pool.occupy(job.gpus, _request(job), holders[-1].left_ns)
                assigned[job.name] = job.gpus
        for job in sorted((job for job in jobs if not job.gpus), key=_rank):
            chosen, work_ns = None, _work_ns(job)
            if job.gpus_wanted <= pool.free:
                neighbours = pool.neighbours(holders) if rule in SEE_NEIGHBOURS else None
                chosen = pool.choose(
                    rule, self.placement.kappa, _request(job), left_ns=work_ns, neighbours=neighbours
                )
            if chosen is not None:
                pool.occupy(chosen, _request(job), work_ns)
                holders.append(Holder(chosen, work_ns))
                assigned[job.name] = chosen
        return (assigned,)


def _request(job: JobView) -> SlotRequest:
    return SlotRequest(job.gpus_wanted)


def _work_ns(job: JobView) -> int:
    """The computation that each of the job's GPUs has left."""
    return round(job.iterations_left * job.times.iteration_ns(job.gpus_wanted, True))


def _rank(job: JobView) -> tuple[int, int, str]:
    return _work_ns(job) * job.gpus_wanted, job.arrival_ns, job.name
