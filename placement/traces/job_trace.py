"""Traces of jobs that run a number of iterations of a network, and the networks of Table III of the Ada-SRSF paper."""

from __future__ import annotations

import hashlib
import math
import random
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from types import MappingProxyType

import numpy as np

from mltcp.core.errors import UsageError, shown
from mltcp.core.quantities import NS_PER_MS
from placement.model.cluster import Cluster
from placement.model.job import Job, Model
from placement.model.table_reader import MOST, MOST_TEXT, fault
from placement.traces.recorded_trace import RecordedTrace
from placement.traces.trace import JobSieve, Trace


def _table(*models: Model) -> Mapping[str, Model]:
    return MappingProxyType({model.name: model for model in models})


PUBLISHED: Mapping[str, Model] = _table(
    Model("vgg16", 526_400_000, 36 * NS_PER_MS, 54 * NS_PER_MS, 4527, 16),
    Model("resnet50", 99_200_000, 25 * NS_PER_MS, 37 * NS_PER_MS, 3213, 16),
    Model("inception-v3", 103_000_000, 35 * NS_PER_MS, 52 * NS_PER_MS, 3291, 16),
    Model("lstm", 251_800_000, 32 * NS_PER_MS, 47 * NS_PER_MS, 2751, 64),
)
"""The networks with the published simulator's whole milliseconds, in the order in which its generator draws them."""

PAPER: Mapping[str, Model] = _table(
    Model("vgg16", 526_400_000, 35_800_000, 53_700_000, 4527, 16),
    Model("resnet50", 99_200_000, 25_000_000, 37_400_000, 3213, 16),
    Model("inception-v3", 103_000_000, 34_900_000, 52_400_000, 3291, 16),
    Model("lstm", 251_800_000, 31_500_000, 47_300_000, 2751, 64),
)
"""The networks with the times printed in the paper's Table III."""


@dataclass(frozen=True)
class JobTrace(Trace[Job]):
    """Jobs in the order of (arrival_ns, job_id), whatever the order in which they were listed.

    Attributes:
        seconds_per_simulated_s: of the paper's scale: 100 for traces that are simulated at a hundredth of the time,
            as the published simulator did (`scale10`), and 1 for all others. Results of the simulation, times this,
            are those to compare with the paper.

    Raises:
        UsageError: no jobs, a number twice, or jobs too long to be counted in 64 bits.
    """

    seconds_per_simulated_s: Fraction = field(default=Fraction(1), kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(
            self.rank(job) > self.rank(later) for job, later in zip(self.jobs, self.jobs[1:], strict=False)
        ):
            raise UsageError(f"{self.name}: jobs: expected in the order of their arrival and number")
        for index, job in enumerate(self.jobs):
            check_countable(job, self.place(index))

    @staticmethod
    def rank(job: Job) -> tuple[int, ...]:
        """Jobs of a trace are in this order."""
        return job.arrival_ns, job.job_id


def check_countable(job: Job, place: str) -> None:
    """Refuse a job that arrives too late, or is too long.

    Raises:
        UsageError: it is; the message begins with the place.
    """
    expected = f"up to {MOST_TEXT} ns"
    if job.arrival_ns > MOST:
        raise fault(place, "arrival", f"job {job.job_id} arrives after {shown(job.arrival_ns)} ns", expected)
    if job.service_ns > MOST:
        reason = f"job {job.job_id} computes for {shown(job.service_ns)} ns on all its GPUs together"
        raise fault(place, "iterations", reason, expected)


def check_fits(trace: JobTrace, cluster: Cluster) -> None:
    """Check that every job could run on the cluster if it were alone there.

    Raises:
        UsageError: which job could not, how many GPUs, or GPUs with how much memory, it wants, and how many there are.
    """
    memories = sorted(gpu.memory_mb for _, gpu in cluster.gpus)
    for index, job in enumerate(trace.jobs):
        if job.gpus > len(memories):
            reason = f"job {job.job_id} wants {job.gpus} GPUs"
            raise fault(trace.place(index), "num_gpus", reason, f"the cluster's {len(memories)} or less")
        large = len(memories) - bisect_left(memories, job.model.memory_mb)
        if job.gpus > large:
            wanted = f"job {job.job_id} ({job.model.name}) wants {job.model.memory_mb} MB on each of its GPUs"
            held = f"of {len(memories)} GPUs {large} have that much, the largest has {memories[-1]} MB"
            reason = f"{wanted} ({job.gpus}); {held}"
            raise fault(trace.place(index), "train_mem_mb", reason, "what they have")


# -- traces of real clusters, which record the duration of a job, but not its neural network ---------------------------


def trained(trace: RecordedTrace, models: Mapping[str, Model] = PUBLISHED) -> JobTrace:
    """The trace in which each job trains one of `models`.

    Jobs are numbered in their order. Each trains the network that its name chooses (`assigned`), for as many iterations
    as fit into its duration while it computes without a pause, but at least one.

    Raises:
        UsageError: only jobs that are too long to be counted, or no models.
    """
    known, sieve, jobs = tuple(models.values()), JobSieve(trace.left_out), []
    for number, entry in enumerate(trace.jobs):
        model = assigned(entry.name, known)
        iterations = max(1, entry.duration_ns // model.compute_ns)
        job = Job(number, entry.arrival_ns, entry.gpus, iterations, model)
        with sieve.faults():
            check_countable(job, entry.place)
            jobs.append((job, entry.place))
    sieve.check_some_left(len(jobs))
    return JobTrace.of(trace.name, jobs, sieve.result())


def assigned(job: str, models: Sequence[Model]) -> Model:
    """Assign a network to a job by its name: the same in every run, and each equally likely.

    It is that of number h mod len(models), where h is the first 8 bytes, the most significant first, of SHA-256 of
    the job's name in UTF-8.

    Raises:
        UsageError: no models.
    """
    if not models:
        raise UsageError("models: the table is empty; expected 1 or more models")
    digest = hashlib.sha256(job.encode("utf-8", "surrogatepass")).digest()
    return models[int.from_bytes(digest[:8], "big") % len(models)]


# -- fresh traces after the paper's (V-A), as the published generator draws them, of any length ------------------------

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
    _check_mix(jobs, seed, scale, gpus)
    drawn = _draw(_sizes(jobs), seed, scale, _span_ms(jobs, scale, gpus))
    name = f"trace_seed{seed:02d}_scale{scale}"
    if (jobs, gpus) != (JOBS, GPUS):
        name += f"_jobs{jobs}_gpus{gpus}"
    return JobTrace.of(name, ((job, name) for job in drawn), seconds_per_simulated_s=Fraction(1000, scale))


def _check_mix(jobs: int, seed: int, scale: int, gpus: int) -> None:
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
