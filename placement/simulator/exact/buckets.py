"""The times at which the gradients of buckets are ready: spread over the backward pass, or all at its end.

The k-th of n buckets is ready when the last of the workers to begin its backward task would have done k/n of it on the
slowest of the job's GPUs: exact where these are equal, and never too early.
"""

from __future__ import annotations

from placement.model.compiled import compiled
from placement.simulator.exact.event_heap import drop, put
from placement.simulator.exact.world import World


@compiled
def buckets_ready(world: World, number: int, now: int) -> int:
    """The number of a job's buckets that are ready in this iteration."""
    job = world.jobs[number]
    if job.computed >= 0:
        return job.buckets
    if job.backward_left > 0 or job.slowest_backward == 0:
        return 0
    done = (now - job.backward_began) * job.buckets // job.slowest_backward
    return min(done, job.buckets - 1)


@compiled
def await_bucket(world: World, number: int) -> None:
    """Schedule the time at which the next bucket is ready; the last one is ready when all workers have computed."""
    job = world.jobs[number]
    item = len(world.jobs) + number
    following = job.sent + 1
    if job.places == 0 or following >= job.buckets:
        drop(world.event_heap, item)
        return
    wait = (following * job.slowest_backward + job.buckets - 1) // job.buckets
    put(world.event_heap, item, job.backward_began + wait)
