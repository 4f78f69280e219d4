"""The exact simulator: event-driven, in whole nanoseconds, the same for the same jobs and seed.

Compute takes whole nanoseconds. A transfer ends at the first nanosecond at which it has nothing left, and progresses in
integer parts of a nanosecond, at the rates of Eq. 5 rounded down, so that the order of two events never depends on how
floating-point numbers were rounded. Rounding makes transfers that share a link late, by some nanoseconds in a second.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from mltcp.core.errors import UsageError
from mltcp.core.quantities import NS_PER_S
from placement.model.cluster import Cluster
from placement.model.compiled import compiled
from placement.model.job import PUBLISHED, Contention, Job
from placement.model.state import JOB, Records
from placement.policies.catalogue import RANDOM, CommunicationPolicy, PlacementPolicy
from placement.policies.placing import seed_placements
from placement.simulator.exact.compute import dispatch, end_iteration, end_task
from placement.simulator.exact.decisions import arrive, decide, place_queue
from placement.simulator.exact.event_heap import NEVER, next_end, pop, soonest, take_ended
from placement.simulator.exact.transfers import end_bucket, offer_bucket
from placement.simulator.exact.world import ExactWorld, build
from placement.simulator.outcome import JobOutcome, Outcome, UseOverTime

_MOST_INTERVALS = 1_000_000
_SEEDS = 1 << 32


def simulate(
    jobs: Sequence[Job],
    cluster: Cluster,
    placement: PlacementPolicy,
    communication: CommunicationPolicy,
    contention: Contention = PUBLISHED,
    *,
    seed: int = 0,
    intervals: int = 0,
) -> Outcome:
    """Simulate the jobs on the cluster until the last has ended.

    Args:
        jobs: in any order.
        cluster: the cluster they run on.
        placement: the placement policy.
        communication: the communication policy.
        contention: the cost of sharing a link.
        seed: of the policies' random choices.
        intervals: the number of intervals of the use over time; with any, the simulation runs twice.

    Raises:
        UsageError: no jobs, a duplicate number, a job that cannot run on this cluster, or times out of range.
    """
    if not 0 <= intervals <= _MOST_INTERVALS:
        raise UsageError(f"intervals: expected 0 to {_MOST_INTERVALS}, got {intervals}")
    if not 0 <= seed < _SEEDS:
        raise UsageError(f"seed: expected 0 to {_SEEDS - 1}, got {seed}")
    began_s = time.perf_counter()
    world, end = _run(jobs, cluster, placement, communication, contention, seed, (0, 0))
    wall_s = time.perf_counter() - began_s
    use = None
    if intervals:
        # The length of the intervals is known only now; the second run is the same as the first.
        interval = max(1, -(-end // intervals))
        world, end = _run(jobs, cluster, placement, communication, contention, seed, (intervals, interval))
        use = UseOverTime(
            interval / NS_PER_S, (world.gpu_use / interval).tolist(), (world.link_use / interval).tolist()
        )
    return Outcome(
        jobs=tuple(sorted(_outcomes(world), key=lambda each: each.job_id)),
        makespan_s=end / NS_PER_S,
        gpu_utilization=tuple((world.gpus["busy"] / max(1, end)).tolist()),
        events=int(world.core["events"][0]),
        wall_s=wall_s,
        use=use,
    )


def _run(
    jobs: Sequence[Job],
    cluster: Cluster,
    placement: PlacementPolicy,
    communication: CommunicationPolicy,
    contention: Contention,
    seed: int,
    use: tuple[int, int],
) -> tuple[ExactWorld, int]:
    world = build(jobs, cluster, placement, communication, contention, use)
    if placement.rule == RANDOM:
        seed_placements(seed)
    return world, run(world)


def _outcomes(world: ExactWorld) -> list[JobOutcome]:
    return [_outcome(world, job) for job in world.jobs]


def _outcome(world: ExactWorld, record: Records) -> JobOutcome:
    job = dict(zip(JOB.names or (), record.item(), strict=True))
    iterations, first = job["iterations"], job["first_worker"]
    return JobOutcome(
        job_id=job["job_id"],
        arrival_s=job["arrival"] / NS_PER_S,
        start_s=job["started"] / NS_PER_S,
        end_s=job["ended"] / NS_PER_S,
        queue_s=(job["started"] - job["arrival"]) / NS_PER_S,
        compute_s=job["slowest"] * iterations / NS_PER_S,
        gpu_wait_s=job["gpu_wait"] / NS_PER_S,
        link_wait_s=job["link_wait"] / NS_PER_S,
        communication_s=job["communication"] / NS_PER_S,
        contention_s=max(0, job["sending"] - alone_ns(world, record) * iterations) / NS_PER_S,
        gpus=tuple(world.workers["gpu"][first : first + job["gpus"]].tolist()),
    )


def alone_ns(world: ExactWorld, job: Records) -> int:
    """The time of a placed job's transfers in one iteration, alone on its links."""
    places = world.places[job["first_place"] : job["first_place"] + job["places"]]
    if len(places) == 0:
        return 0
    rate = min(int(world.rates[world.links[place["link"]]["kind"], 1]) for place in places)
    core, buckets = world.core[0], int(job["buckets"])
    parts = int(job["transfer"] - core["latency"]) * int(core["parts"])
    each, rest = divmod(parts, buckets)
    return buckets * int(core["latency"]) + (buckets - 1) * -(-each // rate) + -(-(each + rest) // rate)


# -- the event loop of Algorithm 3 -------------------------------------------------------------------------------------


@compiled
def run(world: ExactWorld) -> int:
    """Simulate until all jobs have ended; returns the time in ns."""
    core = world.core[0]
    now = 0
    while core.ended < len(world.jobs):
        now = min(next_end(world.ends), soonest(world.event_heap), _next_arrival(world))
        _end_what_is_due(world, now)
        while _next_arrival(world) == now:
            arrive(world, core.arrived)
            core.arrived += 1
            core.events += 1
        if core.must_place:
            place_queue(world, now)
        decide(world, now)
        dispatch(world, now)
    return now


@compiled
def _next_arrival(world: ExactWorld) -> int:
    arrived = world.core[0].arrived
    return world.jobs[arrived].arrival if arrived < len(world.jobs) else NEVER


@compiled
def _end_what_is_due(world: ExactWorld, now: int) -> None:
    core, ends = world.core[0], world.ends
    while next_end(ends) == now:
        gpu = take_ended(ends)
        while gpu >= 0:
            core.events += 1
            following = ends.following[gpu]
            _end_task(world, gpu, now)
            gpu = following
    while soonest(world.event_heap) == now:
        item = pop(world.event_heap)
        core.events += 1
        if item < len(world.jobs):
            _end_bucket(world, item, now)
        else:
            offer_bucket(world, item - len(world.jobs), now)


@compiled
def _end_task(world: ExactWorld, gpu: int, now: int) -> None:
    job = end_task(world, gpu, now)
    if job < 0:
        return
    if world.jobs[job].places:
        offer_bucket(world, job, now)
    else:
        end_iteration(world, job, now)


@compiled
def _end_bucket(world: ExactWorld, number: int, now: int) -> None:
    if not end_bucket(world, number, now):
        return
    job = world.jobs[number]
    for worker in range(job.first_worker, job.first_worker + job.gpus):
        world.gpus[world.workers[worker].gpu].workload -= job.transfer
    end_iteration(world, number, now)
