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
from placement.model.throughput_table import SensitivityTable
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
        models, demands, arrivals_ns = self.draw(seed)
        jobs = []
        for number, (model, gpus, arrival_ns) in enumerate(
            zip(models.tolist(), demands.tolist(), arrivals_ns.tolist(), strict=True)
        ):
            samples = table.job_samples(MODELS[model], gpus)
            jobs.append(ContentionJob(str(number), arrival_ns, MODELS[model], gpus, samples))
        when = "at-once" if self.load is None else f"load-{self.load:g}"
        return ContentionTrace(f"{self.mix}-{when}-{seed}", tuple(jobs), seed)

    def draw(self, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The numbers of the models in `MODELS`, the GPUs and the arrivals (ns) of the jobs of a seed, 0 or more.

        Raises:
            UsageError: a negative seed.
        """
        if seed < 0:
            raise UsageError(f"seed: expected 0 or more, got {seed}")
        u, v = (np.random.default_rng([seed, stream]).random(self.jobs) for stream in (0, 1))
        weights = np.array(MIXES[self.mix], float)
        models = np.searchsorted(np.cumsum(weights / weights.sum()), u, side="right")
        demands = np.array(DEMANDS)[(len(DEMANDS) * v).astype(int)]
        return np.minimum(models, len(MODELS) - 1), demands, self._arrivals_ns(seed)

    def _arrivals_ns(self, seed: int) -> np.ndarray:
        if self.load is None:
            return np.zeros(self.jobs, np.int64)
        arrivals = np.random.default_rng([seed, 2]).exponential(size=self.jobs).cumsum()
        return np.rint(arrivals * _MEAN_SERVICE_S / self.load * _MICROSECONDS).astype(np.int64) * _NS
