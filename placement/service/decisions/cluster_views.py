"""The cluster as schedulers of one kind of jobs see it: the servers with GPUs, or those with CPU slots."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from placement.model.cluster import Cluster, Gpu, Server, Switch
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
    for each in registry.jobs.values():
        if each.placed and registry.pool(each) is pool and not hidden.isdisjoint(each.slots):
            hidden.update(each.slots)
    return frozenset(hidden)


def _made(registry: Registry, job: JobRecord, hidden: frozenset[int]) -> ClusterView | None:
    pool = registry.pool(job)
    shown = [slot for slot in range(len(pool.gpus)) if slot not in hidden]
    if not shown:
        return None
    counts: dict[int, int] = {}
    for slot in shown:
        server = int(pool.gpus["server"][slot])
        counts[server] = counts.get(server, 0) + 1
    return ClusterView(
        Cluster(_servers(registry, counts), (Switch(_ROOT), *_switches(registry))),
        tuple(shown),
        {slot: number for number, slot in enumerate(shown)},
    )


def _fastest_bps(registry: Registry) -> int:
    return max((server.nic_bps for _, server in registry.servers_in_cluster()), default=1)


def _servers(registry: Registry, counts: dict[int, int]) -> tuple[Server, ...]:
    fastest = _fastest_bps(registry)
    servers: Sequence[tuple[int, int]] = sorted(counts.items())
    return tuple(
        Server(each.name, (Gpu(),) * count, each.switch, Fraction(each.nic_bps, fastest))
        for each, count in ((registry.servers[number], count) for number, count in servers)
    )


def _switches(registry: Registry) -> tuple[Switch, ...]:
    fastest = _fastest_bps(registry)
    above = {link.switch: link for link in registry.links}
    return tuple(
        Switch(name, above[name].above, Fraction(above[name].capacity_bps, fastest))
        if name in above
        else Switch(name, _ROOT)
        for name in sorted(registry.tree.switches)
    )
