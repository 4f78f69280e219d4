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
from placement.model.contention import PUBLISHED, Contention
from placement.model.job import Job
from placement.model.state import JOB, Records
from placement.policies.catalogue import RANDOM, CommunicationPolicy, PlacementPolicy
from placement.policies.placing import seed_placements
from placement.simulator.exact.loop import run
from placement.simulator.exact.world import World, build
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
) -> tuple[World, int]:
    world = build(jobs, cluster, placement, communication, contention, use)
    if placement.rule == RANDOM:
        seed_placements(seed)
    return world, run(world)


def _outcomes(world: World) -> list[JobOutcome]:
    return [_outcome(world, job) for job in world.jobs]


def _outcome(world: World, record: Records) -> JobOutcome:
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


def alone_ns(world: World, job: Records) -> int:
    """The time of a placed job's transfers in one iteration, alone on its links."""
    places = world.places[job["first_place"] : job["first_place"] + job["places"]]
    if len(places) == 0:
        return 0
    rate = min(int(world.rates[world.links[place["link"]]["kind"], 1]) for place in places)
    core, buckets = world.core[0], int(job["buckets"])
    parts = int(job["transfer"] - core["latency"]) * int(core["parts"])
    each, rest = divmod(parts, buckets)
    return buckets * int(core["latency"]) + (buckets - 1) * -(-each // rate) + -(-(each + rest) // rate)
