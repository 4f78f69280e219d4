"""The models of the lab: small trainings whose computing is a timer, and whose gradients fill a NIC or do not."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from bench.workloads.elastic import training_job
from bench.workloads.elastic.training_job import JobOptions
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
