"""The comparison of schedulers on jobs that slow each other down: ``mltcp-placement jobs --workload contention``."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from placement.experiments.comparison import ComparisonWorkload, mean_column
from placement.policies.schedulers.contention.rule import find_rule
from placement.policies.schedulers.registry import LEARNED, SHIPPED, named_scheduler
from placement.simulator.rates.rounds.published_loop import PublishedOutcome, run_published_seeds
from placement.simulator.rates.rounds.run import RoundsOutcome, RoundsSettings
from placement.traces.contention import ContentionTrace

PUBLISHED_SEEDS = range(5)
"""Of random actions in the public loop, a run each."""

_MEANS = (
    "mean_jct_s",
    "mean_run_s",
    "p90_jct_s",
    "utilization",
    "makespan_s",
    "restarts",
    "mean_sensitivity",
)


@dataclass(frozen=True)
class ContentionRounds(ComparisonWorkload):
    """Jobs in rounds of the same length, at the ratios of a table.

    The values of a run: ``mean_jct_s`` and ``p90_jct_s`` from arrival to end; ``mean_run_s``, the time for which a job
    held GPUs; ``utilization``, GPUs given out, mean over rounds until the last end; ``makespan_s``, when the last job
    ended; ``restarts``, starts after a job's first, a job; ``mean_sensitivity``, the mean contention sensitivity 1 / r
    of a job over the rounds that it ran, mean over jobs. Kept for pictures: ``jct_s``, ``run_s`` and ``sensitivities``
    of each job, and for each number of GPUs from 0 on the rounds in which so many were given out.

    Attributes:
        settings: the cluster and the throughput model.
        published: whether the public loop runs, faults included.
    """

    settings: RoundsSettings
    published: bool = False

    shown = ("jobs", *_MEANS)
    kept = ("jct_s", "run_s", "sensitivities", "rounds_by_gpus")
    means = _MEANS
    compared = "mean_jct_s"
    columns = (
        mean_column("JCT\nmean (s)", "mean_jct_s", ",.0f"),
        mean_column("\np90 (s)", "p90_jct_s", ",.0f"),
        mean_column("run time\nmean (s)", "mean_run_s", ",.0f"),
        mean_column("\nutilization", "utilization", ".3f"),
        mean_column("makespan\n(s)", "makespan_s", ",.0f"),
        mean_column("restarts\na job", "restarts", ".2f"),
        mean_column("contention\nsensitivity", "mean_sensitivity", ".3f"),
    )

    def run(self, trace: ContentionTrace, policy: str) -> dict[str, Any]:
        """Compiled if the policy is a rule in rounds, in the scheduler loop if it is another scheduler."""
        if self.published:
            table = self.settings.model.table
            return _values_of_published(trace, run_published_seeds(trace, table, policy, PUBLISHED_SEEDS))
        # Compiled: slow to import.
        from placement.simulator.rates.rounds.run import run_rule, run_scheduler

        rule = None if policy.startswith(LEARNED) else find_rule(policy)
        if rule is not None:
            return _values(run_rule(trace, self.settings, policy, rule))
        return _values(run_scheduler(trace, self.settings, named_scheduler(policy)))

    def identity(self, trace: ContentionTrace, policy: str) -> object:
        """With the content of the file of a policy that was trained."""
        if policy not in SHIPPED and not policy.startswith(LEARNED):
            return self, trace, policy
        from placement.policies.schedulers.contention.learned import checkpoint  # compiled

        path = Path(policy.partition(":")[2] or checkpoint.SHIPPED)
        content = path.read_bytes() if path.is_file() else b""  # running it tells what is wrong with the file
        return self, trace, policy, hashlib.sha256(content).hexdigest()


def _values(outcome: RoundsOutcome) -> dict[str, Any]:
    return {
        "jobs": len(outcome.trace.jobs),
        **{name: getattr(outcome, name) for name in _MEANS},
        **{name: getattr(outcome, name).tolist() for name in ContentionRounds.kept},
    }


def _values_of_published(trace: ContentionTrace, outcomes: Sequence[PublishedOutcome]) -> dict[str, Any]:
    """Means of runs of the public loop, one a seed of random actions."""
    lists = ("finish_s", "run_s", "sensitivities")
    jct_s, run_s, sensitivities = (
        [value for outcome in outcomes for value in getattr(outcome, name)] for name in lists
    )
    return {
        "jobs": len(trace.jobs),
        **{name: fmean(getattr(outcome, name) for outcome in outcomes) for name in _MEANS},
        "jct_s": jct_s,
        "run_s": run_s,
        "sensitivities": sensitivities,
        "rounds_by_gpus": np.sum([outcome.rounds_by_gpus for outcome in outcomes], axis=0).tolist(),
    }
