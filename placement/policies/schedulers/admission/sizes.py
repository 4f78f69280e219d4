"""The numbers of GPUs that use a job's GPUs well: as many as possible without losing much to communication."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

from placement.policies.schedulers.drs.scheme import Scheme, deadline_of
from placement.policies.schedulers.elastic.speeds import Speeds, speeds_of
from placement.policies.schedulers.scheduler import JobView

LEAST_EFFICIENCY = Fraction(3, 4)
"""Of 0.72 to 0.85 the best on traces with seeds 100 to 299, at both bandwidths of the DRS evaluation."""


def efficient_scheme(
    job: JobView, now_ns: int, node: int, gpus: int, least: Fraction = LEAST_EFFICIENCY
) -> Scheme | None:
    """The scheme of the job if it started now: the efficient number of GPUs, or the next larger one that is in time.

    The efficient number is the largest part of a node (all of it, a half, a quarter ...) whose efficiency is at least
    `least`. Beyond a node come two, three ... nodes.

    Args:
        job: a job that waits.
        now_ns: the time.
        node: the GPUs of the largest node.
        gpus: of the cluster.
        least: the efficiency, 0 to 1.

    Returns:
        None if the job would end late on any of these numbers.

    Raises:
        UsageError: the job has no deadline.
    """
    begin_ns = now_ns + job.restart_ns
    for size, cross_node, run_ns in efficient_options(job, job.iterations_left, node, gpus, least):
        if begin_ns + run_ns <= deadline_of(job):
            return Scheme(size, cross_node, begin_ns + run_ns)
    return None


def efficient_options(
    job: JobView, iterations: float | Fraction, node: int, gpus: int, least: Fraction = LEAST_EFFICIENCY
) -> tuple[tuple[int, bool, int], ...]:
    """The efficient number of GPUs and larger ones: (GPUs, whether across nodes, run time of so many iterations)."""
    return _options(speeds_of(job, gpus, node), iterations, node, least)


def efficiency(speeds: Speeds, gpus: int) -> Fraction:
    """A job's speed per GPU, relative to that on the fewest that it can run on."""
    return speeds.fewest * speeds.time_ns(speeds.fewest) / (gpus * speeds.time_ns(gpus))


@lru_cache(maxsize=4096)
def _options(
    speeds: Speeds, iterations: float | Fraction, node: int, least: Fraction
) -> tuple[tuple[int, bool, int], ...]:
    sizes = _sizes(speeds, node, least)
    return tuple((size, size > node, math.ceil(iterations * speeds.time_ns(size))) for size in sizes)


def _sizes(speeds: Speeds, node: int, least: Fraction) -> tuple[int, ...]:
    """The efficient number, and larger ones: parts of a node and multiples of it, or the fewest GPUs of the job."""
    parts = {node >> shift for shift in range(node.bit_length())}
    whole = set(range(2 * node, speeds.most + 1, node))
    possible = sorted(
        size for size in parts | whole | {speeds.fewest} if speeds.fewest <= size <= speeds.most
    )
    efficient = [size for size in possible if size <= node and efficiency(speeds, size) >= least]
    smallest = efficient[-1] if efficient else speeds.fewest
    return tuple(size for size in possible if size >= smallest)
