"""The running and waiting jobs of the service as schedulers of whole jobs see them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from placement.policies.schedulers.scheduler import JobView
from placement.service.decisions.cluster_views import ClusterView
from placement.service.state.job_progress import done_iterations
from placement.service.state.job_record import JobRecord

NO_DEADLINE_NS = 10 * 365 * 86_400 * 10**9
"""The deadline of a job that has none, after its submission: it comes after all others."""

FOREVER_NS = 1 << 62


@dataclass(frozen=True)
class ProfiledTimes:
    """Iteration times by the profile of a job: the same whatever its slots, since each has a batch of its own.

    Attributes:
        duration_ns: of an iteration.
    """

    duration_ns: int

    def iteration_ns(self, workers: int, one_rack: bool) -> float:
        """See `IterationTimes`."""
        return self.duration_ns


def job_view(job: JobRecord, view: ClusterView, now_ns: int, restart_ns: int, lease_end_ns: int) -> JobView:
    """The view of a job that may have any number of slots of the cluster.

    Args:
        job: that runs or waits.
        view: of the job's kind of slots; it shows the job.
        now_ns: the service's time.
        restart_ns: the cost of a restart.
        lease_end_ns: until when it may keep its slots.
    """
    started = job.placed or job.restarts > 0
    deadline_ns = job.deadline_ns if job.deadline_ns is not None else job.submitted_ns + NO_DEADLINE_NS
    held_ns = max(0, job.placed_ns + restart_ns - now_ns) if job.placed and job.restarts else 0
    return JobView(
        name=job.id,
        arrival_ns=job.submitted_ns,
        gpus_wanted=job.count,
        gpus_min=1,
        gpus_max=max(len(view.slots), job.count),
        iterations=Fraction(job.spec.iterations),
        iterations_left=Fraction(job.spec.iterations - done_iterations(job, now_ns)),
        times=ProfiledTimes(job.iteration_ns),
        gpus=view.gpus_of(job),
        lease_end_ns=lease_end_ns if job.placed else 0,
        restarts=job.restarts,
        noise_scale=math.inf,
        deadline_ns=deadline_ns,
        restart_ns=restart_ns if started else 0,
        restart_left_ns=held_ns,
    )
