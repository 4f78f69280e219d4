"""The deadline rules by plain means: the reference of the compiled ones, in whole numbers of any size."""

from __future__ import annotations

from dataclasses import dataclass

from placement.policies.schedulers.deadlines.rules import (
    BY_ARRIVAL,
    BY_DEADLINE,
    LATE_LAST,
    RULES,
    SHARE_BATCH,
    SHARE_CLUSTER,
    SHARE_SCHEME,
)
from placement.policies.schedulers.free_gpus import FreeGpus
from placement.policies.schedulers.non_preemptive import NonPreemptive, Scheme
from placement.policies.schedulers.scheduler import CANDIDATES, Untimed, deadline_of, progress


def reference(name):
    """The scheduler of a rule by plain means."""
    return PlainBatch() if RULES[name].share == SHARE_BATCH else PlainRule(name)


class PlainGpus(FreeGpus):
    """The free GPUs, with the allocation of DRS (3.2) by plain means."""

    def take(self, gpus, cross_node):
        """Take GPUs for a job of one kind, of nodes by ascending free GPUs and then by number.

        On one node it is the first that has room; across nodes all that each has, in turn.

        Returns:
            Their numbers, ascending; None, and nothing is taken, if there is no room.
        """
        counts = self.counts
        order = sorted((node for node in range(len(counts)) if counts[node]), key=lambda node: counts[node])
        if not cross_node:
            order = [node for node in order if counts[node] >= gpus][:1]
        if sum(counts[node] for node in order) < gpus:
            return None
        taken = []
        for node in order:
            count = min(counts[node], gpus - len(taken))
            taken += self.take_of([0] * node + [count])
        return tuple(sorted(taken))


@dataclass(frozen=True)
class PlainRule(NonPreemptive):
    """A rule without batches."""

    name: str = ""

    def share(self, job, now_ns, free):
        share = RULES[self.name].share
        if share == SHARE_SCHEME:
            return decide(job, now_ns, free.counts)
        return whole_cluster(job, now_ns, free) if share == SHARE_CLUSTER else whole_node(job, now_ns, free)

    def rank(self, job, now_ns, scheme):
        order = RULES[self.name].order
        if order == BY_ARRIVAL:
            return (job.arrival_ns,)
        deadline_ns = deadline_of(job)
        if order == BY_DEADLINE:
            return (deadline_ns,)
        if scheme.end_ns > deadline_ns:
            return (1, scheme.end_ns)
        return (0, deadline_ns) if order == LATE_LAST else (0, deadline_ns - scheme.end_ns, deadline_ns)

    def candidates(self, cluster, now_ns, jobs, most=CANDIDATES):
        held = {job.name: job.gpus for job in jobs if job.gpus}
        assignment = dict(migrated(cluster, held) if RULES[self.name].migrates else held)
        free = PlainGpus(cluster, assignment)
        waiting = [job for job in jobs if not job.gpus]
        while waiting and free.total and (chosen := self._first(waiting, now_ns, free)):
            job, scheme = chosen
            assignment[job.name] = free.take(scheme.gpus, scheme.cross_node)
            waiting.remove(job)
        return (assignment,)


class PlainBatch(Untimed):
    """The Themis of the DRS paper: batches of jobs that start together, each after the one before has ended."""

    name = "themis-batch"

    def candidates(self, cluster, now_ns, jobs, most=CANDIDATES):
        """See `Scheduler.candidates`."""
        held = {job.name: job.gpus for job in jobs if job.gpus}
        if held:
            return (held,)
        free = PlainGpus(cluster, {})
        batch = _admitted(jobs, free.total)
        shares = _shares(batch, free.total, max(free.counts))
        assignment = {}
        for job in sorted(batch, key=lambda job: -shares[job.name]):
            gpus = free.take_room(shares[job.name])
            assert gpus is not None, "the shares fit together"
            assignment[job.name] = gpus
        return (assignment,)


def _admitted(jobs, gpus):
    """The first jobs that fit together on as few GPUs as each can run on."""
    batch = []
    for job in jobs:
        gpus -= job.gpus_min
        if gpus < 0:
            break
        batch.append(job)
    return batch


def _shares(batch, gpus, per_node):
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


def _next_larger(job, present, left, per_node):
    """The next larger number of GPUs that shortens the job; None if there is none within reach."""
    now_ns = job.run_ns(present, present <= per_node)
    for gpus in range(present + 1, min(present + left, job.gpus_max) + 1):
        if job.run_ns(gpus, gpus <= per_node) < now_ns:
            return gpus
    return None


def decide(job, now_ns, free):
    """The scheme of a waiting job; None if it cannot run on as few GPUs as are free.

    Only the multiset of `free`, the free GPUs of each node, counts.

    Raises:
        UsageError: the job has no deadline.
    """
    deadline_ns = deadline_of(job)
    single = schemes(job, now_ns, max(free), cross_node=False)
    across = schemes(job, now_ns, sum(free), cross_node=True) if sum(map(bool, free)) > 1 else []
    expected_across, expected_single = (expected(across, deadline_ns), expected(single, deadline_ns))
    if expected_across is not None and _uses_fragment(free, expected_across.gpus):
        return expected_across
    if expected_single is not None:
        return expected_single
    late_across, late_single = (late(across, deadline_ns), late(single, deadline_ns))
    if late_across is not None and _uses_fragment(free, late_across.gpus):
        return late_across
    return late_single


def schemes(job, now_ns, most, cross_node):
    """The schemes of a kind with up to `most` GPUs that (11) lets pass, by their numbers of GPUs.

    (11) refuses GPUs that make the job slower than on the fewest that it can run on, which always pass.
    """
    found = []
    for gpus in range(job.gpus_min, min(most, job.gpus_max) + 1):
        one_node = not cross_node or gpus == 1
        if gpus == job.gpus_min or gains(job, gpus, one_node):
            found.append(Scheme(gpus, not one_node, now_ns + job.restart_ns + job.run_ns(gpus, one_node)))
    return found


def gains(job, gpus, one_node):
    """Whether the job is faster than on the fewest GPUs that it can run on: (10), and so (11)."""
    fewest = job.gpus_min
    time, fewest_time = (job.times.iteration_ns(gpus, one_node), job.times.iteration_ns(fewest, True))
    return time * progress(job, fewest) < fewest_time * progress(job, gpus)


def expected(listed, deadline_ns):
    """Of the schemes that meet the deadline, that with the largest PR = (T_dl - T_end) / N (12), or the fewest GPUs."""
    best = None
    for each in listed:
        slack_ns = deadline_ns - each.end_ns
        if slack_ns >= 0 and (best is None or slack_ns * best.gpus > (deadline_ns - best.end_ns) * each.gpus):
            best = each
    return best


def late(listed, deadline_ns):
    """Of the schemes that miss the deadline, that which ends first, or has the fewest GPUs."""
    return min(
        (each for each in listed if each.end_ns > deadline_ns),
        key=lambda each: (each.end_ns, each.gpus),
        default=None,
    )


def _uses_fragment(free, gpus):
    """Whether some node has free GPUs, but fewer than so many."""
    return any(0 < count < gpus for count in free)


def whole_cluster(job, now_ns, free):
    """All GPUs, or as many as the job can use, once all are free."""
    if free.total < sum(free.sizes):
        return None
    gpus = min(free.total, job.gpus_max)
    return _scheme(job, now_ns, gpus, one_node=gpus <= max(free.counts))


def whole_node(job, now_ns, free):
    """All GPUs of a node, or as many as the job can use, once a node is free.

    A job that cannot run on as few GPUs as any node has gets the fewest whole nodes that it can run on.
    """
    nodes = [size for size, count in zip(free.sizes, free.counts, strict=True) if size == count]
    if job.gpus_min <= max(free.sizes):
        nodes = [gpus for gpus in nodes if gpus >= job.gpus_min][:1]
    gpus = 0
    while nodes and gpus < job.gpus_min:
        gpus += nodes.pop(0)
    if gpus == 0:
        return None
    return _scheme(job, now_ns, min(gpus, job.gpus_max), one_node=job.gpus_min <= max(free.sizes))


def _scheme(job, now_ns, gpus, one_node):
    if gpus < job.gpus_min:
        return None
    return Scheme(gpus, not one_node, now_ns + job.restart_ns + job.run_ns(gpus, one_node))


def migrated(cluster, held):
    """The assignment of the running jobs after migration; `held` itself if none is due or it changes nothing.

    The jobs, in the order of their arrival, are placed on an empty cluster: those on one node and then the others, each
    group by descending N, as their own kind. N does not change. A job that is to have as many GPUs of each node as it
    has keeps those that it has, if no job that moves is to have them.
    """
    if 2 * _sparse_nodes(cluster, held) <= len(cluster.servers):
        return held
    nodes = {job: cluster.by_node(gpus) for job, gpus in held.items()}
    planned = plan_of(cluster, nodes)
    if planned is None or planned == nodes:
        return held
    return _placed(cluster, held, nodes, planned)


def _sparse_nodes(cluster, held):
    """k: the number of nodes that are used, but at most half."""
    free = PlainGpus(cluster, held).counts
    sizes = [len(server.gpus) for server in cluster.servers]
    return sum((0 < size - left <= size / 2 for size, left in zip(sizes, free, strict=True)))


def plan_of(cluster, nodes):
    """The GPUs of each job by node; None if a job finds no room."""
    empty = PlainGpus(cluster, {})
    planned = {}
    for job in sorted(nodes, key=lambda name: (len(nodes[name]) > 1, -sum(nodes[name].values()))):
        gpus = empty.take(sum(nodes[job].values()), cross_node=len(nodes[job]) > 1)
        if gpus is None:
            return None
        planned[job] = cluster.by_node(gpus)
    return planned


def _placed(cluster, held, nodes, planned):
    """GPUs for a plan: jobs that stay keep theirs."""
    staying = {job: gpus for job, gpus in held.items() if planned[job] == nodes[job]}
    free = PlainGpus(cluster, staying)
    placed = dict(staying)
    for job in held:
        if job not in staying:
            counts = [planned[job].get(node, 0) for node in range(len(cluster.servers))]
            placed[job] = free.take_of(counts)
    return placed
