"""The cluster, and the running and waiting jobs of the service, as schedulers see them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction

from placement.model.cluster import Cluster, Gpu, Server, Switch
from placement.policies.schedulers.scheduler import JobView
from placement.service.contention import iteration_samples
from placement.service.context import ServiceContext
from placement.service.state.job_record import JobRecord
from placement.service.state.registry import Registry

_ROOT = "/roots"


@dataclass(frozen=True)
class ClusterView:
    """A cluster for schedulers, whose GPUs are slots of a pool.

    Slots that are out of use are not in it, nor are those of jobs that hold some of these: such jobs go on, and no
    scheduler is asked about them.

    Attributes:
        cluster: what schedulers see.
        slots: the number in the pool of each of its GPUs.
        numbers: the inverse of `slots`.
    """

    cluster: Cluster
    slots: tuple[int, ...]
    numbers: dict[int, int]

    def shows(self, job: JobRecord) -> bool:
        """Whether schedulers are asked about a job that runs or waits."""
        return not job.placed or all(slot in self.numbers for slot in job.slots)

    def gpus_of(self, job: JobRecord) -> tuple[int, ...]:
        """The GPUs of a job that runs; none of one that waits."""
        return tuple(self.numbers[slot] for slot in job.slots) if job.placed else ()

    def slots_of(self, gpus: Iterable[int]) -> tuple[int, ...]:
        """The slots behind these GPUs, ascending."""
        return tuple(sorted(self.slots[gpu] for gpu in gpus))


def cluster_view(registry: Registry, job: JobRecord) -> ClusterView | None:
    """The view of the schedulers of this kind of jobs; None if there is nothing to be seen."""
    gpus = bool(job.spec.gpus)
    if not registry.pool(job).all_open:
        return _made(registry, job, _hidden(registry, job))
    if gpus not in registry.views:
        registry.views[gpus] = _made(registry, job, frozenset())
    return registry.views[gpus]


def _hidden(registry: Registry, job: JobRecord) -> frozenset[int]:
    """The slots that are out of use, and all slots of the jobs that hold some of them."""
    pool = registry.pool(job)
    hidden = {slot for slot in range(len(pool.gpus)) if not pool.is_open(slot)}
    for each in registry.unended.values():
        if each.placed and registry.pool(each) is pool and not hidden.isdisjoint(each.slots):
            hidden.update(each.slots)
    return frozenset(hidden)


def _made(registry: Registry, job: JobRecord, hidden: frozenset[int]) -> ClusterView | None:
    pool = registry.pool(job)
    shown = [slot for slot in range(len(pool.gpus)) if slot not in hidden]
    if not shown:
        return None
    counts = Counter(pool.gpus["server"][shown].tolist())
    fastest = max((server.nic_bps for _, server in registry.servers_in_cluster()), default=1)
    servers = [(registry.servers[number], count) for number, count in sorted(counts.items())]
    uplinks = {link.switch: (link.above, Fraction(link.capacity_bps, fastest)) for link in registry.links}
    return ClusterView(
        Cluster(
            tuple(
                Server(each.name, (Gpu(),) * count, each.switch, Fraction(each.nic_bps, fastest))
                for each, count in servers
            ),
            (
                Switch(_ROOT),
                *(Switch(name, *uplinks.get(name, (_ROOT,))) for name in sorted(registry.tree.switches)),
            ),
        ),
        tuple(shown),
        {slot: number for number, slot in enumerate(shown)},
    )


# -------------------------------------------------------------------------------- jobs, for schedulers of whole jobs


NO_DEADLINE_NS = 10 * 365 * 86_400 * 10**9
"""The deadline of a job that has none, after its submission: it comes after all others."""

FOREVER_NS = 1 << 62


@dataclass(frozen=True)
class JobProfileTimes:
    """Iteration times by the profile of a job: the same whatever its slots, since each has a batch of its own.

    Attributes:
        duration_ns: of an iteration.
    """

    duration_ns: int

    def iteration_ns(self, workers: int, one_node: bool) -> float:
        """See `IterationTimes`."""
        return self.duration_ns


def job_view(
    context: ServiceContext,
    job: JobRecord,
    view: ClusterView,
    now_ns: int,
    lease_end_ns: int,
    since_ns: int,
) -> JobView:
    """The view of a job: it may have any number of slots, or just as many as it asks for if a table has its model.

    A job whose speed is a table of its own may have as many as that goes up to.

    Args:
        context: the service's state.
        job: that runs or waits.
        view: of the job's kind of slots; it shows the job.
        now_ns: the service's time.
        lease_end_ns: until when it may keep its slots.
        since_ns: when it joined the queue, of one that waits.
    """
    started = job.placed or job.restarts > 0
    deadline_ns = job.deadline_ns if job.deadline_ns is not None else job.submitted_ns + NO_DEADLINE_NS
    restart_ns, start_ns = context.restarts.restart_ns(job.id), context.restarts.start_ns(job.id)
    held_ns = max(0, job.placed_ns + start_ns - now_ns) if job.placed and job.restarts else 0
    done, most = context.done(job), None if job.speed is None else job.speed.most
    # The time for which a job has held slots is not stored: it is taken to be that of its iterations.
    held_for_ns = int(done * job.iteration_ns) if started else 0
    plain = JobView(
        name=job.id,
        arrival_ns=job.submitted_ns,
        gpus_wanted=job.count,
        gpus_min=1,
        gpus_max=max(len(view.slots), job.count) if most is None else most,
        iterations=Fraction(job.spec.iterations),
        iterations_left=job.spec.iterations - done,
        times=job.speed or JobProfileTimes(job.iteration_ns),
        gpus=view.gpus_of(job),
        lease_end_ns=lease_end_ns if job.placed else 0,
        restarts=job.restarts,
        noise_scale=math.inf,
        deadline_ns=deadline_ns,
        restart_ns=restart_ns if started else 0,
        restart_left_ns=held_ns,
        restart_cost_ns=restart_ns,
        since_ns=job.placed_ns if job.placed else since_ns,
        started_ns=job.placed_ns if job.placed else 0,
        held_ns=held_for_ns,
    )
    return _of_table(context, job, plain) if context.contention is not None and job.spec.model else plain


def _of_table(context: ServiceContext, job: JobRecord, plain: JobView) -> JobView:
    """The view of a job whose model is in the table: an iteration is one sample on each slot."""
    contention = context.contention
    assert contention is not None, "a job has a model only where the service has a table"
    samples = Fraction(iteration_samples(job)) / job.count
    times = contention.times(job)
    done = plain.iterations - plain.iterations_left
    held_ns = (
        int(float(done * samples) * times.iteration_ns(job.count, one_node=False)) if plain.held_ns else 0
    )
    return replace(
        plain,
        gpus_min=job.count,
        gpus_max=job.count,
        iterations=plain.iterations * samples,
        iterations_left=plain.iterations_left * samples,
        times=times,
        held_ns=held_ns,
        ratio=contention.ratio(context.registry, job) if job.placed else 1.0,
    )
