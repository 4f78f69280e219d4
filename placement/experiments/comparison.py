"""The result of a comparison: every policy's runs on the same traces, and each policy against the baseline."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mltcp.core.bounded_files import MOST_DOCUMENT_BYTES, read_bounded
from mltcp.core.errors import MltcpError, UsageError
from placement.experiments.run import PARTS, SimulationRun, document_of
from placement.experiments.run_log import read_log
from placement.experiments.statistics import Paired, paired

SCHEMA = 1
PLAN = "compare.json"
_PLANNED = {"setting", "baseline", "traces", "keys"}
METRICS = ("average_jct_s", "median_jct_s", "p95_jct_s", "average_gpu_utilization", "makespan_s")


@dataclass(frozen=True)
class PolicyComparison:
    """Policies on traces, each with each.

    Attributes:
        baseline: the policy that the others are compared with.
        runs: per policy, in their order, a run per trace, in the same order for all.
    """

    baseline: str
    runs: Mapping[str, Sequence[SimulationRun]]

    def mean(self, policy: str, metric: str) -> float:
        """The mean over traces of one of `METRICS`."""
        return statistics.fmean(self._values(policy, metric))

    def mean_parts(self, policy: str) -> dict[str, float]:
        """The parts of the mean JCT, averaged over traces."""
        return {name: statistics.fmean(run.parts_s[name] for run in self.runs[policy]) for name in PARTS}

    def paired(self, policy: str, metric: str = "average_jct_s") -> Paired:
        """The policy against the baseline, trace by trace."""
        return paired(self._values(policy, metric), self._values(self.baseline, metric))

    def only(self, policies: Sequence[str]) -> PolicyComparison:
        """These policies in this order; UsageError names one that is not there."""
        for policy in policies:
            if policy not in self.runs:
                raise UsageError(f"no policy {policy!r} was compared: {', '.join(self.runs)} were")
        baseline = self.baseline if self.baseline in policies else policies[0]
        return PolicyComparison(baseline, {policy: self.runs[policy] for policy in policies})

    def document(self) -> dict[str, Any]:
        """The document of `mltcp-placement compare --json`, without the fields that the command adds."""
        return {
            "schema": SCHEMA,
            "baseline": self.baseline,
            "policies": [self._policy_document(policy) for policy in self.runs],
        }

    def _values(self, policy: str, metric: str) -> list[float]:
        return [getattr(run, metric) for run in self.runs[policy]]

    def _policy_document(self, policy: str) -> dict[str, Any]:
        return {
            "policy": policy,
            **{metric: self.mean(policy, metric) for metric in METRICS},
            "parts_s": self.mean_parts(policy),
            "against_baseline": {metric: self.paired(policy, metric).document() for metric in METRICS},
            "runs": [document_of(run) for run in self.runs[policy]],
        }


def load(folder: Path) -> PolicyComparison:
    """Load the folder of a `compare -o`, without traces that are not finished under all policies.

    Raises:
        UsageError: there is no comparison.
        MltcpError: no trace is finished under all of its policies.
    """
    plan = read_plan(folder)
    log = read_log(folder)
    keys = plan["keys"]
    whole = [row for row in zip(*keys.values(), strict=True) if all(key in log for key in row)]
    if not whole:
        raise MltcpError(
            f"{folder}: no trace is finished under all policies: run the same compare to its end"
        )
    runs = {policy: [log[row[column]] for row in whole] for column, policy in enumerate(keys)}
    return PolicyComparison(plan["baseline"], runs)


def read_plan(folder: Path) -> dict[str, Any]:
    """Read the plan of the comparison in this folder, a JSON document.

    Raises:
        UsageError: there is no plan of a comparison.
    """
    path = folder / PLAN
    try:
        document = json.loads(read_bounded(path, MOST_DOCUMENT_BYTES))
    except OSError as error:
        raise UsageError(
            f"{path}: {error.strerror or error}; expected a folder that `compare -o` made"
        ) from None
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA or not set(document) >= _PLANNED:
        raise UsageError(f"{path}: this is no plan of a comparison")
    return document
