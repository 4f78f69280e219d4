"""Drawn traces: 256 jobs of the shipped table's models and demands, at once or with Poisson arrivals.

The load is the arrival rate times the mean service of a job, 16,800 GPU s (an hour on 14/3 GPUs), over 32 GPUs. Models,
demands and arrivals come from three streams of random numbers, so that traces that differ in one share the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from mltcp.core.errors import UsageError, shown
from placement.model.throughput.table import SensitivityTable
from placement.traces.contention.trace import ContentionJob, ContentionTrace

MODELS = ("MobileNetV3", "GraphSage", "FSDP", "Transformer-XL", "DLRM", "MoE")
"""In the order in which weights are cumulated."""

MIXES: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {
        "normal": (1, 1, 1, 1, 1, 1),
        "heavy": (1, 1, 4, 1, 1, 4),
        "medium": (1, 1, 1, 4, 4, 1),
        "low": (4, 4, 1, 1, 1, 1),
    }
)
"""The weights of the models in the paper's four mixes."""

DEMANDS = (2, 4, 8)
JOBS = 256

_MEAN_SERVICE_S = 16_800 / 32
_MICROSECONDS, _NS = 10**6, 1000


@dataclass(frozen=True)
class ContentionMix:
    """The parameters of drawn traces.

    Attributes:
        load: None if all jobs arrive at time 0.
        mix: one of `MIXES`.
        jobs: of a trace.

    Raises:
        UsageError: a value is out of range.
    """

    load: float | None = None
    mix: str = "normal"
    jobs: int = JOBS

    def __post_init__(self) -> None:
        if self.load is not None and not 0.001 <= self.load <= 1000:
            raise UsageError(f"load: expected 0.001 to 1000, got {self.load}")
        if self.mix not in MIXES:
            raise UsageError(f"mix: expected {', '.join(MIXES)}, got {shown(self.mix)}")
        if not 1 <= self.jobs <= 100_000:
            raise UsageError(f"jobs: expected 1 to 100000, got {self.jobs}")

    def trace(self, seed: int, table: SensitivityTable) -> ContentionTrace:
        """Draw the trace of a seed, 0 or more; job i is named after its position.

        Raises:
            UsageError: a negative seed, or the table has no row for a job.
        """
        if seed < 0:
            raise UsageError(f"seed: expected 0 or more, got {seed}")
        u, v = (np.random.default_rng([seed, stream]).random(self.jobs) for stream in (0, 1))
        weights = np.array(MIXES[self.mix], float)
        models = np.searchsorted(np.cumsum(weights / weights.sum()), u, side="right")
        demands = (len(DEMANDS) * v).astype(int)
        jobs = []
        for number, (model, demand, arrival_ns) in enumerate(
            zip(models.tolist(), demands.tolist(), self._arrivals_ns(seed), strict=True)
        ):
            name, gpus = MODELS[min(model, len(MODELS) - 1)], DEMANDS[demand]
            jobs.append(ContentionJob(str(number), arrival_ns, name, gpus, table.job_samples(name, gpus)))
        when = "at-once" if self.load is None else f"load-{self.load:g}"
        return ContentionTrace(f"{self.mix}-{when}-{seed}", tuple(jobs), seed)

    def _arrivals_ns(self, seed: int) -> list[int]:
        if self.load is None:
            return [0] * self.jobs
        arrivals = np.random.default_rng([seed, 2]).exponential(size=self.jobs).cumsum()
        return [
            round(each * _MICROSECONDS) * _NS for each in (arrivals * _MEAN_SERVICE_S / self.load).tolist()
        ]
