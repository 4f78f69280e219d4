"""The lab's models, and their table: each layout alone, and each pair of layouts on shared nodes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from pathlib import Path
from statistics import median
from types import MappingProxyType

from bench.workloads.elastic import training_job
from bench.workloads.elastic.engine_job import EngineEvents, EngineTraining
from bench.workloads.elastic.training_job import JobOptions
from mltcp.core.errors import MltcpError
from placement.engines.engine import HostShare
from placement.engines.local import LocalEngine
from placement.model.throughput_table import Layout, SensitivityTable

BATCH = 4
"""Samples of a rank in a step."""

LAYOUTS = ((2, 2), (4, 4))
"""The numbers of GPUs and nodes that are measured: one rank on each node, so that all traffic shares NICs."""


@dataclass(frozen=True)
class LabModel:
    """A model.

    Attributes:
        parameters: of the perceptron, all of which are exchanged in a step.
        compute_s: of a step.
    """

    parameters: int
    compute_s: float


MODELS: Mapping[str, LabModel] = MappingProxyType(
    {"loud": LabModel(300_000, 0.1), "quiet": LabModel(20_000, 0.2)}
)
"""The models by name."""


def all_layouts() -> tuple[Layout, ...]:
    """The layouts of all models."""
    return tuple(Layout(model, *sizes) for model in MODELS for sizes in LAYOUTS)


def nominal_table() -> SensitivityTable:
    """The layouts with throughputs by computing alone, and no contention; to check a trace before it is run."""
    rates = {layout: BATCH * layout.gpus / MODELS[layout.model].compute_s for layout in all_layouts()}
    return SensitivityTable("lab", rates, {(one, other): 1.0 for one in rates for other in rates})


def options_of(model: str, samples: int, directory: Path, epochs: int = 1) -> JobOptions:
    """The training of a model: epochs of so many samples, which are counted.

    In every step the ranks add up their counts of all samples of an epoch: 4 bytes each, which are traffic, too.
    """
    found = MODELS[model]
    return JobOptions(
        directory,
        samples=samples,
        batch=BATCH,
        epochs=epochs,
        parameters=found.parameters,
        compute_s=found.compute_s,
        verify=True,
    )


def command_of(options: JobOptions) -> tuple[str, ...]:
    """The command of a rank."""
    return sys.executable, "-m", training_job.__name__, *options.arguments()


MEASURED_S = 5.0
"""For how long the steps of a point are watched."""

_SETTLE_S = 1.0
SAMPLES, _EPOCHS = 2_000, 500
"""As many samples as a job of a trace has, so that their counts are no more traffic than there, for hours."""

_POLL_S = 0.005
_LONGEST_S = 120.0
_GRACE_S = 60.0


@dataclass(frozen=True)
class LabMeasurement:
    """The measured table.

    Attributes:
        table: throughputs and ratios, at most 1.
        start_s: the median time from the start of a job to the beginning of its first step.
    """

    table: SensitivityTable
    start_s: float


def measure(
    engine: LocalEngine, hosts: Sequence[str], directory: Path, on_point: Callable[[str], None]
) -> LabMeasurement:
    """Measure all points, one after the other.

    Args:
        engine: on which nothing runs.
        hosts: their names, four or more.
        directory: of the jobs' checkpoints.
        on_point: called before each point.

    Raises:
        MltcpError: a job failed, or made no step.
    """
    watched = _Points(engine, hosts, directory)
    alone: dict[Layout, float] = {}
    ratios: dict[tuple[Layout, Layout], float] = {}
    for layout in all_layouts():
        on_point(str(layout))
        (alone[layout],) = watched.rates([layout])
    for one, other in combinations_with_replacement(all_layouts(), 2):
        on_point(f"{one} beside {other}")
        rates = watched.rates([one, other])
        found = [min(1.0, rate / alone[layout]) for rate, layout in zip(rates, (one, other), strict=True)]
        if one == other:
            ratios[one, one] = sum(found) / 2
        else:
            ratios[one, other], ratios[other, one] = found
    return LabMeasurement(SensitivityTable("lab", alone, ratios), median(watched.starts_s))


def points() -> int:
    """The number of points of a measurement."""
    layouts = len(all_layouts())
    return layouts + layouts * (layouts + 1) // 2


class _Points:
    """Runs jobs side by side on the first hosts, and watches their steps.

    Attributes:
        starts_s: of each job, the time to the beginning of its first step.
    """

    def __init__(self, engine: LocalEngine, hosts: Sequence[str], directory: Path) -> None:
        self.starts_s: list[float] = []
        self._events, self._directory = EngineEvents(engine), directory
        self._hosts = list(hosts)
        self._number = 0

    def rates(self, layouts: Sequence[Layout]) -> list[float]:
        """The throughput of each layout, in samples/s, while all of them run."""
        jobs, begun_s = [], []
        for side, layout in enumerate(layouts):
            self._number += 1
            options = options_of(layout.model, SAMPLES, self._directory / f"m{self._number}", _EPOCHS)
            jobs.append(EngineTraining(self._events, f"m{self._number}", options))
            begun_s.append(time.monotonic())
            jobs[-1].start([HostShare(host, (side,)) for host in self._hosts[: layout.nodes]])
        first_s = _first_steps(jobs)
        time.sleep(_SETTLE_S)
        rates = _watched(jobs)
        for job in jobs:
            job.ask_to_stop(_GRACE_S)
        for job in jobs:
            job.end()
        for layout, begin_s, end_s, rate in zip(layouts, begun_s, first_s, rates, strict=True):
            # The step itself is progress, which the simulator counts.
            self.starts_s.append(max(0.0, end_s - begin_s - BATCH * layout.gpus / rate))
        return rates


def _first_steps(jobs: Sequence[EngineTraining]) -> list[float]:
    """When each job has made its first step, CLOCK_MONOTONIC. Raises MltcpError if one takes too long."""
    until_s = time.monotonic() + _LONGEST_S
    found: dict[int, float] = {}
    while len(found) < len(jobs):
        if time.monotonic() > until_s:
            raise MltcpError(f"expected a step within {_LONGEST_S:g} s, got none")
        for number, job in enumerate(jobs):
            if number not in found and job.samples_done():
                found[number] = time.monotonic()
        time.sleep(_POLL_S)
    return [found[number] for number in range(len(jobs))]


def _watched(jobs: Sequence[EngineTraining]) -> list[float]:
    """The throughput of each job between its first and its last step within the time."""
    seen: list[list[tuple[float, int]]] = [[] for _ in jobs]
    end_s = time.monotonic() + MEASURED_S
    while (now_s := time.monotonic()) < end_s:
        for job, steps in zip(jobs, seen, strict=True):
            done = job.samples_done()
            if not steps or steps[-1][1] != done:
                steps.append((now_s, done))
        time.sleep(_POLL_S)
    # The first entry is no step: it lies somewhere between two.
    if any(len(steps) < 3 for steps in seen):
        raise MltcpError(f"expected several steps within {MEASURED_S:g} s, got fewer")
    return [(steps[-1][1] - steps[1][1]) / (steps[-1][0] - steps[1][0]) for steps in seen]
