"""Traces after the thesis' (4.5.1): jobs that arrive by a Poisson process, and a busy cluster that two more come to.

The load of a Poisson trace is the share of the cluster's GPUs that active jobs ask for, on average: jobs arrive at the
rate at which they would, each taking its time alone, keep as many GPUs busy. All 13 networks are equally likely, and
so are all batches of a network, 1 to 12 workers, and 200 to 1,000 iterations.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from mltcp.core.demand import Demand, Phase
from mltcp.core.errors import UsageError
from mltcp.core.quantities import NS_PER_MS
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
    network: ProfiledNetwork,
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
        Demand(network.phases(workers, batch, mix.compute)),
        min_workers=least,
        model=network.name,
        batch=batch,
        noise_scale=network.noise_scale,
    )


# -- the networks of Table 4.2 -----------------------------------------------------------------------------------------
# An iteration of a data-parallel network computes (`compute_ms`), and then all-reduces its gradients in a ring: every
# worker sends 2 (w-1)/w of the network's size (Table 4.2), at `gbps`. Sizes over rates give communication times of
# the order of Table 4.3 (VGG16: 148 to 163 ms, WideResNet101: 138 ms, ResNet50: 59 ms, RoBERTa: 164 to 180 ms), and
# with the computation the iteration times of Table 3.1 (WideResNet101 and VGG16: 274 ms, VGG19: 329 ms, ResNet50: 165
# ms, BERT: 157 ms, DLRM: 1,001 ms). The networks that the thesis trains in a model-parallel way have several Up
# phases an iteration (Figure 4.1: small ones for the activations of minibatches, a large one for the embedding, or a
# moderate one nearly all the time); what they send does not depend on the number of workers.
#
# Batches are drawn from `batches`; computation grows with them. Iteration times are whole multiples of `STEP_MS`:
# jobs of very different iteration times cannot be interleaved, and a profile knows no more digits.

STEP_MS = 10


@dataclass(frozen=True)
class ProfiledNetwork:
    """A network of Table 4.2.

    Attributes:
        name: as there.
        kind: "data" or "model" parallel.
        megabytes: that data-parallel workers reduce.
        gbps: at which it sends.
        batches: per GPU, those that jobs use.
        compute_ms: of an iteration with the first of the batches.
        ups: of a model-parallel network: (ms of silence, ms of sending, Gbit/s) of each Up phase with the first of the
            batches.
        noise_scale: its gradient noise scale, in batches of one worker (for Pollux).
    """

    name: str
    kind: str
    megabytes: int
    gbps: int
    batches: tuple[int, ...]
    compute_ms: int
    ups: tuple[tuple[int, int, int], ...] = ()
    noise_scale: float = 16.0

    def phases(self, workers: int, batch: int, compute: float = 1.0) -> tuple[Phase, ...]:
        """The phases of an iteration of a job that runs alone, on GPUs that take `compute` times as long.

        Raises:
            UsageError: no workers, or no batch.
        """
        if workers < 1 or batch < 1:
            raise UsageError(f"{self.name}: workers and batch: expected 1 or more, got {workers} and {batch}")
        compute_ms = self.compute_ms * batch / self.batches[0] * compute
        if self.kind == "model":
            return self._pipelined(workers, batch / self.batches[0] * compute)
        bits = 2 * (workers - 1) / workers * self.megabytes * 8_000_000
        sending_ns = round(bits / self.gbps)
        if not sending_ns:
            return (Phase(_stepped_ns(compute_ms * NS_PER_MS), 0),)
        total_ns = _stepped_ns(compute_ms * NS_PER_MS + sending_ns)
        return (Phase(total_ns - sending_ns, 0), Phase(sending_ns, self.gbps * 10**9))

    def _pipelined(self, workers: int, growth: float) -> tuple[Phase, ...]:
        phases = []
        for silent_ms, sending_ms, gbps in self.ups:
            phases.append(Phase(round(silent_ms * growth) * NS_PER_MS, 0))
            phases.append(Phase(sending_ms * NS_PER_MS, gbps * 10**9 if workers > 1 else 0))
        total_ns = sum(phase.duration_ns for phase in phases)
        rest_ns = _stepped_ns(total_ns) - total_ns
        return (Phase(phases[0].duration_ns + rest_ns, 0), *phases[1:])


def _stepped_ns(time_ns: float) -> int:
    """Up to the next whole step."""
    step = STEP_MS * NS_PER_MS
    return int(-(-time_ns // step)) * step


_TABLE = (
    ProfiledNetwork("VGG11", "data", 507, 38, (1024, 1400), 140),
    ProfiledNetwork("VGG16", "data", 528, 38, (1024, 1400), 120),
    ProfiledNetwork("VGG19", "data", 549, 38, (1024, 1400), 150),
    ProfiledNetwork("WideResNet101", "data", 243, 28, (600, 800), 120),
    ProfiledNetwork("ResNet50", "data", 98, 20, (1200, 1600), 95),
    ProfiledNetwork("BERT", "data", 450, 40, (8, 16), 60),
    ProfiledNetwork("RoBERTa", "data", 800, 40, (8, 12), 100),
    ProfiledNetwork("CamemBERT", "data", 266, 40, (8, 16), 60),
    ProfiledNetwork("XLM", "data", 1116, 40, (8, 16), 130),
    ProfiledNetwork("GPT1", "model", 650, 40, (32, 48), 0, ((110, 15, 20), (20, 15, 20), (60, 90, 40))),
    ProfiledNetwork(
        "GPT2", "model", 1623, 40, (24, 48), 0, ((80, 20, 15), (20, 20, 15), (20, 20, 15), (90, 130, 42))
    ),
    ProfiledNetwork("GPT3", "model", 1952, 25, (16, 32), 0, ((40, 150, 25), (20, 210, 25))),
    ProfiledNetwork("DLRM", "model", 890, 45, (1024,), 0, ((300, 180, 45), (320, 200, 45))),
)
NETWORKS: Mapping[str, ProfiledNetwork] = MappingProxyType({network.name: network for network in _TABLE})
"""The networks of Table 4.2; where it gives a range of sizes, the least."""


@dataclass(frozen=True)
class ModelMix:
    """What the jobs of a trace train, and how long.

    Attributes:
        models: names of Table 4.2, equally likely; ``data`` and ``model`` stand for all that are parallel so.
        iterations: the fewest and the most.
        compute: how many times as long computing takes as in `NETWORKS`.

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
    def networks(self) -> tuple[ProfiledNetwork, ...]:
        """The networks, in the order of Table 4.2."""
        known = {name.lower() for name in NETWORKS} | {"data", "model"}
        wanted = {model.lower() for model in self.models}
        for model in wanted - known:
            raise UsageError(f"models: expected data, model or {', '.join(NETWORKS)}, got {model}")
        return tuple(each for each in _TABLE if {each.name.lower(), each.kind} & wanted)
