"""The batches of the DRS paper's Themis, compiled; see `placement.policies.schedulers.fairness.themis_batch`."""

from __future__ import annotations

from placement.model.compiled import compiled_with_arrays
from placement.simulator.rates.compiled.world import World


@compiled_with_arrays
def share_out(world: World, gpus: int, per_node: int) -> int:
    """Divide all GPUs among the first jobs of the queue; returns how many jobs, whose numbers of GPUs are `shares`."""
    jobs = min(world.core[0].waiting, gpus)
    left = gpus - jobs
    for position in range(jobs):
        world.shares[position] = 1
        world.marks[position] = 1
    while left > 0:
        longest, found = -1, -1
        for position in range(jobs):
            if world.marks[position]:
                run = run_of(world, position, world.shares[position], per_node)
                if run > longest:
                    longest, found = run, position
        if found < 0:
            break
        larger = next_larger(world, found, left, per_node)
        if larger == 0:
            world.marks[found] = 0
        else:
            left -= larger - world.shares[found]
            world.shares[found] = larger
    return jobs


@compiled_with_arrays
def next_larger(world: World, position: int, left: int, per_node: int) -> int:
    """The next larger number of GPUs that shortens the job; 0 if there is none within reach."""
    present = world.shares[position]
    now = run_of(world, position, present, per_node)
    for gpus in range(present + 1, present + left + 1):
        if run_of(world, position, gpus, per_node) < now:
            return gpus
    return 0


@compiled_with_arrays
def run_of(world: World, position: int, gpus: int, per_node: int) -> int:
    """T_run of the job at a position of the queue, on one node if it fits there."""
    return world.run_ns[world.jobs[world.queue[position]].workload, 0 if gpus <= per_node else 1, gpus]
