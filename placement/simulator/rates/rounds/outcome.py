"""The outcome of a trace in rounds: completion times with queueing, run times, utilization and restarts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mltcp.core.quantities import NS_PER_S
from placement.traces.contention.trace import ContentionTrace


@dataclass(frozen=True, eq=False)
class RoundsOutcome:
    """The outcome of a trace under a policy; arrays are in the order of the trace.

    Attributes:
        trace: what was run.
        policy: the name of the policy.
        gpus: of the cluster.
        finish_s: when each job ended.
        run_s: for how long each job held GPUs.
        starts: of each job.
        rounds_run: of each job.
        sensitivity: of each job, the sum over these rounds of its contention sensitivity, 1 / r.
        rounds_by_gpus: for each number of GPUs from 0 on, the rounds in which so many were given out.
    """

    trace: ContentionTrace
    policy: str
    gpus: int
    finish_s: np.ndarray
    run_s: np.ndarray
    starts: np.ndarray
    rounds_run: np.ndarray
    sensitivity: np.ndarray
    rounds_by_gpus: np.ndarray

    @property
    def rounds(self) -> int:
        """All rounds, empty ones included."""
        return int(self.rounds_by_gpus.sum())

    @property
    def jct_s(self) -> np.ndarray:
        """Job completion times: from arrival to end, queueing included."""
        return self.finish_s - np.array([job.arrival_ns for job in self.trace.jobs]) / NS_PER_S

    @property
    def mean_jct_s(self) -> float:
        """The mean completion time."""
        return float(self.jct_s.mean())

    @property
    def p90_jct_s(self) -> float:
        """The 90th percentile of completion times."""
        return float(np.percentile(self.jct_s, 90))

    @property
    def mean_run_s(self) -> float:
        """The mean time for which a job held GPUs; what the paper's public code calls JCT."""
        return float(self.run_s.mean())

    @property
    def makespan_s(self) -> float:
        """When the last job ended."""
        return float(self.finish_s.max())

    @property
    def utilization(self) -> float:
        """The share of the GPUs that were given out, mean over rounds from 0 to the last end."""
        given = float(self.rounds_by_gpus @ np.arange(self.gpus + 1))
        return given / (self.gpus * self.rounds)

    @property
    def restarts(self) -> float:
        """Starts after a job's first, a job."""
        return float((self.starts - 1).mean())

    @property
    def sensitivities(self) -> np.ndarray:
        """The mean contention sensitivity of each job over the rounds that it ran (Figure 6)."""
        return self.sensitivity / self.rounds_run

    @property
    def mean_sensitivity(self) -> float:
        """The mean of these over jobs."""
        return float(self.sensitivities.mean())
