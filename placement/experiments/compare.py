"""Many policies on many traces: over all cores, and resumable."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mltcp.core.atomic_files import write_atomically
from mltcp.core.errors import MltcpError, UsageError
from placement.experiments.comparison import PLAN, SCHEMA, PolicyComparison, read_plan
from placement.experiments.policy_name import PolicyName
from placement.experiments.run import SimulationRun, SimulationTask, perform, task, trace_digest
from placement.experiments.run_log import NAME, open_log, read_log
from placement.experiments.setting import Setting
from placement.experiments.workers import Workers
from placement.traces.job_trace import JobTrace


@dataclass(frozen=True)
class SeededTrace:
    """A trace and the seed of the policies' random choices on it."""

    trace: JobTrace
    seed: int


@dataclass(frozen=True)
class ComparisonPlan:
    """The plan of a comparison: every policy on every trace.

    Raises:
        UsageError: nothing to compare, a trace twice, a baseline that is not among the policies, or a policy that
            does not exist or cannot run in this setting.
    """

    policies: tuple[PolicyName, ...]
    entries: tuple[SeededTrace, ...]
    setting: Setting
    baseline: PolicyName

    def __post_init__(self) -> None:
        if not self.entries:
            raise UsageError("traces: expected one or more, got no traces")
        if self.baseline not in self.policies:
            raise UsageError(
                f"baseline: expected one of the policies, {', '.join(map(str, self.policies))}, got {self.baseline}"
            )
        for policy in self.policies:
            self.setting.check(policy)
        _check_different(self.entries, self.digests)

    @cached_property
    def digests(self) -> tuple[str, ...]:
        """The digest of each trace."""
        return tuple(trace_digest(entry.trace) for entry in self.entries)

    @cached_property
    def tasks(self) -> tuple[tuple[SimulationTask, ...], ...]:
        """Per trace, one for each policy."""
        return tuple(
            tuple(task(entry.trace, digest, policy, self.setting, entry.seed) for policy in self.policies)
            for entry, digest in zip(self.entries, self.digests, strict=True)
        )

    def document(self) -> dict[str, Any]:
        """The plan as a JSON document, with the keys of its runs in the log."""
        return {
            "schema": SCHEMA,
            "setting": self.setting.document(),
            "baseline": str(self.baseline),
            "traces": [
                {
                    "name": entry.trace.name,
                    "digest": digest,
                    "seed": entry.seed,
                    "jobs": len(entry.trace.jobs),
                    "time_scale": float(entry.trace.seconds_per_simulated_s),
                }
                for entry, digest in zip(self.entries, self.digests, strict=True)
            ],
            "keys": {
                str(policy): [row[column].key for row in self.tasks]
                for column, policy in enumerate(self.policies)
            },
        }


def compare(
    plan: ComparisonPlan,
    folder: Path,
    processes: int,
    done: Callable[[SimulationRun, int], None] | None = None,
) -> PolicyComparison:
    """Do what of the plan is not done yet in this folder, each run kept as soon as it is finished.

    Args:
        plan: what is compared.
        folder: where runs are kept, made if need be.
        processes: how many simulate at a time.
        done: called after each run, with the number of runs of the plan that are still to be done.

    Raises:
        UsageError: the folder holds a comparison in another setting, or another process is at work there.
        MltcpError: the folder cannot be written to, or a process was killed.
    """
    _check_folder(plan, folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MltcpError(f"{folder}: {error.strerror or error}") from None
    with open_log(folder) as log:
        write_atomically(folder / PLAN, json.dumps(plan.document(), indent=1).encode() + b"\n")
        left = [each for row in plan.tasks for each in row if each.key not in log.runs]
        if left:
            with Workers(perform, min(processes, len(left))) as workers:
                for number, (_, run) in enumerate(workers.results(left), start=1):
                    log.add(run)
                    if done is not None:
                        done(run, len(left) - number)
        return PolicyComparison(str(plan.baseline), _in_order(plan, log.runs))


def finished(plan: ComparisonPlan, folder: Path) -> int:
    """The number of runs of the plan that the folder holds."""
    try:
        runs = read_log(folder)
    except UsageError:
        return 0
    return sum(each.key in runs for row in plan.tasks for each in row)


def _in_order(plan: ComparisonPlan, runs: Mapping[str, SimulationRun]) -> dict[str, list[SimulationRun]]:
    return {
        str(policy): [runs[row[column].key] for row in plan.tasks]
        for column, policy in enumerate(plan.policies)
    }


def _check_different(entries: Sequence[SeededTrace], digests: Sequence[str]) -> None:
    names: dict[tuple[str, int], str] = {}
    for entry, digest in zip(entries, digests, strict=True):
        name = entry.trace.name
        if (digest, entry.seed) in names:
            raise UsageError(
                f"{name}: expected each trace once, got the same jobs as {names[digest, entry.seed]}"
            )
        names[digest, entry.seed] = name


def _check_folder(plan: ComparisonPlan, folder: Path) -> None:
    """Refuse a folder with runs in another setting: they would lie there for nothing, or be taken for these."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder}: expected a folder, got another file")
    if not (folder / PLAN).exists():
        if (folder / NAME).exists():
            raise UsageError(f"{folder}: runs of a comparison, but no {PLAN}: take another folder")
        return
    if read_plan(folder)["setting"] != plan.setting.document():
        raise UsageError(
            f"{folder}: a comparison on another cluster or with other constants: take another folder"
        )
