"""Traces after the thesis' (4.5.1): jobs that arrive by a Poisson process, and a busy cluster that two more come to.

The load of a Poisson trace is the share of the cluster's GPUs that active jobs ask for, on average: jobs arrive at the
rate at which they would, each taking its time alone, keep as many GPUs busy. All 13 networks are equally likely, and
so are all batches of a network, 1 to 12 workers, and 200 to 1,000 iterations.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType

from mltcp.core.demand import Demand, Phase
from mltcp.core.errors import UsageError
from mltcp.core.quantities import NS_PER_MS
from placement.simulator.network.alone_demand import alone_demand
from placement.simulator.network.parallelism import traffic_of
from placement.traces.model_shapes import A100_TFLOPS, DATA_PARALLEL, DATA_PARALLEL_TFLOPS
from placement.traces.sets import JobSet, TracedJob

CAPACITY_GBPS = 50.0
GPUS = 24
MOST_WORKERS = 12
ITERATIONS = (200, 1000)

_MOST_JOBS = 100_000


def poisson(
    seed: int, *, jobs: int = 60, load: float = 0.9, gpus: int = GPUS, mix: ModelMix | None = None
) -> JobSet:
    """Generate a Poisson trace.

    Args:
        seed: from 0 on.
        jobs: how many.
        load: 0.8 to 1 in the thesis.
        gpus: of the cluster; jobs ask for up to half of them, and up to 12.
        mix: what the jobs train, and how long; None: `ModelMix()`.

    Raises:
        UsageError: an argument is out of range.
    """
    if seed < 0 or not 1 <= jobs <= _MOST_JOBS or not 0 < load <= 10 or gpus < 2:
        raise UsageError(
            f"expected seed >= 0, 1 to {_MOST_JOBS} jobs, 0 < load <= 10 and gpus >= 2, "
            f"got seed {seed}, {jobs} jobs, load {load}, {gpus} GPUs"
        )
    draw, mix = random.Random(seed), mix or ModelMix()
    most = min(MOST_WORKERS, max(gpus // 2, 1))
    drawn = [_drawn(f"job{number}", draw, most, mix) for number in range(jobs)]
    busy_ns = sum(job.workers * job.iterations * job.demand.iteration_ns for job in drawn) / jobs
    between_ns = busy_ns / (load * gpus)
    arrival_ns, placed = 0, []
    for job in drawn:
        placed.append(replace(job, arrival_ns=arrival_ns))
        arrival_ns += round(draw.expovariate(1 / between_ns) / NS_PER_MS) * NS_PER_MS
    source = f"4.5.1: Poisson arrivals, load {load:g}, seed {seed}"
    return JobSet(f"poisson-{seed}", source, CAPACITY_GBPS, tuple(placed))


def dynamic(seed: int, *, gpus: int = GPUS, mix: ModelMix | None = None) -> JobSet:
    """Generate a dynamic trace (4.5.3): jobs fill two thirds of the cluster, then DLRM and ResNet50 arrive.

    The first jobs ask for 3 to 5 workers, so that they do not fit evenly into racks of 2 or 4 servers. They take the
    most iterations of the mix (1,000 as a rule), and the others arrive after 60 ms for each of these. Where the mix has
    no data-parallel model, GPT3 arrives in place of ResNet50.

    Raises:
        UsageError: a negative seed, or less than 12 GPUs.
    """
    if seed < 0 or gpus < 12:
        raise UsageError(f"expected seed >= 0 and gpus >= 12, got seed {seed}, {gpus} GPUs")
    draw, mix = random.Random(seed), mix or ModelMix()
    second = "ResNet50" if any(network.kind == "data" for network in mix.networks) else "GPT3"
    filling = [each for each in mix.networks if each.name not in ("DLRM", second)] or list(mix.networks)
    long = mix.iterations[1]
    present: list[TracedJob] = []
    busy, limit = 0, gpus * 2 // 3
    while busy < limit:
        workers = min(draw.randint(3, 5), max(limit - busy, 2))
        network = draw.choice(filling)
        name, batch = f"job{len(present)}", network.batches[-1]
        present.append(_job(name, network, batch, workers, long, 0, mix, fixed=True))
        busy += workers
    later_ns = 60 * NS_PER_MS * long
    arriving = [
        _job(
            each.lower(),
            NETWORKS[each],
            NETWORKS[each].batches[-1],
            gpus // 6,
            most,
            later_ns,
            mix,
            fixed=True,
        )
        for each, most in (("DLRM", max(1, long * 2 // 5)), (second, long))
    ]
    source = f"4.5.3: DLRM and {second} arrive at a busy cluster, seed {seed}"
    return JobSet(f"dynamic-{seed}", source, CAPACITY_GBPS, (*present, *arriving))


def _drawn(name: str, draw: random.Random, most: int, mix: ModelMix) -> TracedJob:
    network = draw.choice(mix.networks)
    batch = draw.choice(network.batches)
    workers, iterations = draw.randint(1, most), draw.randint(*mix.iterations)
    return _job(name, network, batch, workers, iterations, 0, mix)


def _job(
    name: str,
    network: ThesisNetwork,
    batch: int,
    workers: int,
    iterations: int,
    arrival_ns: int,
    mix: ModelMix,
    fixed: bool = False,
) -> TracedJob:
    """Allow a data-parallel job to run with as few as half of its workers."""
    least = workers if fixed or network.kind == "model" else -(-workers // 2)
    return TracedJob(
        f"{name}-{network.name}",
        workers,
        iterations,
        arrival_ns,
        network.demand(workers, batch, mix.compute),
        min_workers=least,
        model=network.name,
        batch=batch,
        noise_scale=network.noise_scale,
    )


# -- the networks of Table 4.2 -----------------------------------------------------------------------------------------
# Their demand follows from published sizes by the rule of `placement.traces.model_shapes`, on a link of CAPACITY_GBPS
# (`alone_demand`); nothing is fitted to what the thesis measured. What it leaves open is chosen once, for all rows:
#
# * images have the largest side, among powers of two, of which the largest batch of Table 4.2 fits a GPU of 40 GB:
#   1,800 of VGG19 take 8.7 GB of activations in 32 bits at `IMAGE`, and 35 GB, before gradients, at twice that;
# * GPT-2 and GPT-3 have the layers of 4.1.1, GPT-2 the width of 4.5.2 (GPT2-A), and GPT-3 that at which 16 bytes
#   a parameter are the 35 GB of two servers; they are divided as in Figure 4.1 where the workers divide so, and
#   otherwise data-parallel;
# * DLRM is MLPerf's.

IMAGE = 64
_SHAPES = {
    "gpt1": "gpt1:",
    "gpt2": "gpt2:layers=24,hidden=1536,",
    "gpt2-b": "gpt2:layers=24,hidden=1184,",
    "gpt3": "gpt3:layers=96,hidden=1344,slices=12,",
}
_MINIBATCHES = {"gpt2": 3, "gpt3": 4}
"""Of a pipeline: those of Figure 4.1(b), and two a stage."""


@dataclass(frozen=True)
class ThesisNetwork:
    """A network of Table 4.2.

    Attributes:
        name: as there.
        kind: "data" or "model" parallel.
        batches: per GPU, those that jobs of a trace use.
        noise_scale: its gradient noise scale, in batches of one worker (for Pollux).
    """

    name: str
    kind: str
    batches: tuple[int, ...]
    noise_scale: float = 16.0

    def description(self, workers: int, batch: int, compute: float = 1.0, tune: str = "full") -> str:
        """How so many workers train it, for `simulator.network.parallelism`.

        Args:
            workers: of the job.
            batch: of a worker.
            compute: how many times as long computing takes.
            tune: full, or lora of a transformer.

        Raises:
            UsageError: no workers, or no batch.
        """
        if workers < 1 or batch < 1:
            raise UsageError(f"{self.name}: workers and batch: expected 1 or more, got {workers} and {batch}")
        name, tuned = self.name.lower(), "" if tune == "full" else f",tune={tune}"
        if name in _SHAPES:
            return f"{_divided(name, workers, batch)},tflops={A100_TFLOPS / compute:g}{tuned}"
        image = f",image={IMAGE}" if name in DATA_PARALLEL and DATA_PARALLEL[name].dense else ""
        return f"{name}:dp={workers},batch={batch}{image},tflops={DATA_PARALLEL_TFLOPS / compute:g}{tuned}"

    def demand(self, workers: int, batch: int, compute: float = 1.0, tune: str = "full") -> Demand:
        """The demand of an iteration of a job that runs alone, on GPUs that take `compute` times as long."""
        return _demand_of(self.description(workers, batch, compute, tune))


def _divided(name: str, workers: int, batch: int) -> str:
    if name.startswith("gpt2") and workers % 2 == 0:
        count = _MINIBATCHES["gpt2"]
        return f"{_SHAPES[name]}pp=2,dp={workers // 2},microbatches={count},batch={max(1, batch // count)}"
    if name == "gpt3" and workers % 4 == 0:
        count = _MINIBATCHES[name]
        division = f"tp=2,pp=2,dp={workers // 4},microbatches={count}"
        return f"{_SHAPES[name]}{division},batch={max(1, batch // count)}"
    if name == "gpt3" and workers % 2 == 0:
        return f"{_SHAPES[name]}tp=2,dp={workers // 2},batch={batch}"
    return f"{_SHAPES[name]}dp={workers},batch={batch}"


@cache
def _demand_of(description: str) -> Demand:
    traffic = traffic_of(description)
    found = alone_demand(traffic, range(traffic.workers), CAPACITY_GBPS * 1e9)
    # Times are whole nanoseconds, so that a rate may come out some bit/s above that of the link.
    most_bps = round(CAPACITY_GBPS * 1e9)
    return Demand(tuple(Phase(each.duration_ns, min(each.bandwidth_bps, most_bps)) for each in found.phases))


_TABLE = (
    ThesisNetwork("VGG11", "data", (1024, 1400)),
    ThesisNetwork("VGG16", "data", (1024, 1400)),
    ThesisNetwork("VGG19", "data", (1024, 1400)),
    ThesisNetwork("WideResNet101", "data", (600, 800)),
    ThesisNetwork("ResNet50", "data", (1200, 1600)),
    ThesisNetwork("BERT", "data", (8, 16)),
    ThesisNetwork("RoBERTa", "data", (8, 12)),
    ThesisNetwork("CamemBERT", "data", (8, 16)),
    ThesisNetwork("XLM", "data", (8, 16)),
    ThesisNetwork("GPT1", "model", (32, 48)),
    ThesisNetwork("GPT2", "model", (24, 48)),
    ThesisNetwork("GPT3", "model", (16, 32)),
    ThesisNetwork("DLRM", "model", (1024,)),
)
NETWORKS: Mapping[str, ThesisNetwork] = MappingProxyType({network.name: network for network in _TABLE})
"""The networks of Table 4.2."""

BY_NAME = (*_TABLE, ThesisNetwork("GPT2-B", "model", (70,)))
"""With GPT2-B of 4.5.2, which a mix has only by its name: GPT2 is GPT2-A, in a batch of 24."""


def by_rule(fitted: JobSet) -> JobSet:
    """A set of jobs of these networks with the demands that follow from their sizes, workers and batches.

    Raises:
        UsageError: a job of another network.
    """
    for job in fitted.jobs:
        if job.model not in NETWORKS:
            raise UsageError(f"{job.name}: model: expected {', '.join(NETWORKS)}, got {job.model}")
    jobs = (replace(job, demand=NETWORKS[job.model].demand(job.workers, job.batch)) for job in fitted.jobs)
    return replace(fitted, jobs=tuple(jobs))


@dataclass(frozen=True)
class ModelMix:
    """What the jobs of a trace train, and how long.

    Attributes:
        models: names of Table 4.2, equally likely; ``data`` and ``model`` stand for all that are parallel so.
        iterations: the fewest and the most.
        compute: how many times as long computing takes as by the rule.

    Raises:
        UsageError: no such model, no range from 1 on, or `compute` is not above 0.
    """

    models: tuple[str, ...] = ("data", "model")
    iterations: tuple[int, int] = ITERATIONS
    compute: float = 1.0

    def __post_init__(self) -> None:
        if not 1 <= self.iterations[0] <= self.iterations[1]:
            raise UsageError(f"iterations: expected a range from 1 on, got {self.iterations}")
        if not 0 < self.compute <= 1000:
            raise UsageError(f"compute: expected above 0 and at most 1000, got {self.compute}")
        if not self.networks:
            raise UsageError("models: expected one or more, got none")

    @property
    def networks(self) -> tuple[ThesisNetwork, ...]:
        """The networks, in the order of Table 4.2."""
        known = {each.name.lower() for each in BY_NAME} | {"data", "model"}
        wanted = {model.lower() for model in self.models}
        for model in wanted - known:
            names = ", ".join(each.name for each in BY_NAME)
            raise UsageError(f"models: expected data, model or {names}, got {model}")
        return tuple(
            each
            for each in BY_NAME
            if each.name.lower() in wanted or (each in _TABLE and each.kind in wanted)
        )
