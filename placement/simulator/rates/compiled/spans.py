"""The spans for which jobs hold GPUs, in a compiled run."""

from __future__ import annotations

from placement.model.compiled import compiled
from placement.simulator.rates.compiled.allocation import copy
from placement.simulator.rates.compiled.world import RUNS, World


@compiled
def open_span(world: World, number: int, now: int, hold: int) -> None:
    """Begin a span on the GPUs in `held`."""
    job = world.jobs[number]
    gpus, nodes = 0, 0
    for node in range(len(world.size)):
        count = world.held[number, node]
        gpus += count
        nodes += 1 if count > 0 else 0
    job.state, job.gpus, job.cross = RUNS, gpus, 1 if nodes > 1 else 0
    job.began, job.useful_from = now, now + hold


@compiled
def close_span(world: World, number: int, now: int) -> None:
    """Record the span that ends; nothing is recorded where there is no room, but the span is counted."""
    job, core = world.jobs[number], world.core[0]
    if core.spans < len(world.spans):
        span = world.spans[core.spans]
        span.job, span.gpus = number, job.gpus
        span.start, span.end, span.hold = job.began, now, job.useful_from - job.began
        copy(world.held[number], world.placed[core.spans])
    core.spans += 1
