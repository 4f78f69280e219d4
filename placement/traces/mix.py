"""Fresh traces after the paper's (V-A), as the published generator draws them, of any length."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from mltcp.core.errors import UsageError
from mltcp.core.quantities import NS_PER_MS
from placement.model.job import Job
from placement.traces.job_trace import PUBLISHED, JobTrace

JOBS = 160
GPUS = 64
SPAN_S = 1200
"""The paper's traces: the number of jobs, the GPUs of the cluster, and the seconds in which the jobs arrive."""

MIX = {1: 80, 2: 14, 4: 26, 8: 30, 16: 8, 32: 2}
"""The number of the paper's jobs by their number of GPUs."""

SCALES = (10, 1000)
"""The simulated ms that make a second of the paper's scale; jobs have this number to six times as many iterations."""

MOST_JOBS = 1_000_000
_SEEDS = 2**32


def fresh(seed: int, scale: int = 1000) -> JobTrace:
    """The paper's mix: 160 jobs for 64 GPUs; seeds 0 to 4 are the traces that come with the published results.

    Args:
        seed: from 0 to 2^32 - 1.
        scale: 10, as the paper's figures were made, or 1000, as its text says.

    Raises:
        UsageError: another scale or seed.
    """
    return scaled(JOBS, seed, scale)


def scaled(jobs: int, seed: int = 0, scale: int = 1000, gpus: int = GPUS) -> JobTrace:
    """The paper's mix for `gpus` GPUs, with as many jobs: the load stays 160 jobs per 64 GPUs and 1,200 s.

    The classes of jobs have the paper's proportions, to the nearest whole job. With 160 jobs and 64 GPUs it is what
    `fresh` gives.

    Args:
        jobs: from 1 to a million.
        seed: from 0 to 2^32 - 1.
        scale: 10 or 1000.
        gpus: of the cluster.

    Raises:
        UsageError: any of them is not so.
    """
    _check(jobs, seed, scale, gpus)
    drawn = _draw(_sizes(jobs), seed, scale, _span_ms(jobs, scale, gpus))
    name = f"trace_seed{seed:02d}_scale{scale}"
    if (jobs, gpus) != (JOBS, GPUS):
        name += f"_jobs{jobs}_gpus{gpus}"
    return JobTrace.of(name, ((job, name) for job in drawn), seconds_per_simulated_s=Fraction(1000, scale))


def _check(jobs: int, seed: int, scale: int, gpus: int) -> None:
    if scale not in SCALES:
        raise UsageError(f"scale: expected {' or '.join(map(str, SCALES))}, got {scale}")
    most = {"jobs": MOST_JOBS, "seed": _SEEDS - 1, "gpus": MOST_JOBS}
    least = {"jobs": 1, "seed": 0, "gpus": 1}
    for name, value in {"jobs": jobs, "seed": seed, "gpus": gpus}.items():
        if not least[name] <= value <= most[name]:
            raise UsageError(f"{name}: expected {least[name]} to {most[name]}, got {value}")


def _span_ms(jobs: int, scale: int, gpus: int) -> float:
    return float(Fraction(SPAN_S * scale * jobs * GPUS, JOBS * gpus))


def _sizes(jobs: int) -> Iterator[int]:
    """The GPUs of each job: the classes in order, with left-over jobs assigned to the largest remainders."""
    shares = {gpus: Fraction(jobs * count, JOBS) for gpus, count in MIX.items()}
    counts = {gpus: math.floor(share) for gpus, share in shares.items()}
    by_remainder = sorted(MIX, key=lambda gpus: counts[gpus] - shares[gpus])
    for gpus in by_remainder[: jobs - sum(counts.values())]:
        counts[gpus] += 1
    for gpus, count in counts.items():
        yield from [gpus] * count


def _draw(sizes: Iterator[int], seed: int, scale: int, span_ms: float) -> Iterator[Job]:
    """Draw each job's network, iterations and arrival, in this order, from generators that never change.

    The published generator ran under Python 2.7. `random.Random(seed).random()` and NumPy's `RandomState` give the
    same numbers in all versions since; `sample` and `randint` do not, and so are written out.
    """
    numbers = random.Random(seed)
    arrivals = np.random.RandomState(seed)
    models = tuple(PUBLISHED.values())
    for job_id, gpus in enumerate(sizes):
        model = models[int(numbers.random() * len(models))]
        iterations = scale + int(numbers.random() * (5 * scale + 1))
        arrival_ms = int(arrivals.uniform(0, span_ms))
        yield Job(job_id, arrival_ms * NS_PER_MS, gpus, iterations, model)
