"""Run policies on contention traces, on all cores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from placement.experiments.contention.results import RoundsPolicyResult, RoundsResult
from placement.experiments.workers import Workers
from placement.policies.schedulers.contention.rule import find_rule
from placement.policies.schedulers.registry import LEARNED, named_scheduler
from placement.simulator.rates.rounds.published_loop import run_published_seeds
from placement.simulator.rates.rounds.run import RoundsSettings
from placement.traces.contention import ContentionTrace

PUBLISHED_SEEDS = range(5)
"""Of random actions in the public loop, a run each."""

_A_TASK = 5


@dataclass(frozen=True)
class RoundsTask:
    """A policy on some traces.

    Attributes:
        policy: its name.
        traces: one or more.
        settings: the cluster and the throughput model.
        published: whether the public loop runs, faults included.
    """

    policy: str
    traces: tuple[ContentionTrace, ...]
    settings: RoundsSettings
    published: bool = False


def run_policies(
    policies: Sequence[str],
    traces: Sequence[ContentionTrace],
    settings: RoundsSettings,
    published: bool,
    processes: int,
    done: Callable[[str], None] = lambda policy: None,
) -> list[RoundsPolicyResult]:
    """Run each policy on each trace.

    Args:
        policies: their names.
        traces: one or more.
        settings: the cluster and the throughput model.
        published: whether the public loop runs, faults included.
        processes: how many run at a time; one runs in this process.
        done: called with the name of a policy whenever some of its traces are finished.

    Raises:
        UsageError: the table has no row for a job or a layout, or a policy is unknown.
        MltcpError: a policy never places a job.
    """
    tasks = tasks_of(policies, traces, settings, published)
    found: dict[int, tuple[RoundsResult, ...]] = {}
    first = 1 if processes > 1 else len(tasks)  # what is compiled in the first task, the workers inherit
    for number, task in enumerate(tasks[:first]):
        found[number] = perform(task)
        done(task.policy)
    if tasks[first:]:
        with Workers(_perform_numbered, min(processes, len(tasks) - first), fork=True) as workers:
            for (number, task), results in workers.results(list(enumerate(tasks))[first:]):
                found[number] = results
                done(task.policy)
    return [
        RoundsPolicyResult(
            policy,
            tuple(
                result
                for number, task in enumerate(tasks)
                if task.policy == policy
                for result in found[number]
            ),
        )
        for policy in policies
    ]


def tasks_of(
    policies: Sequence[str], traces: Sequence[ContentionTrace], settings: RoundsSettings, published: bool
) -> list[RoundsTask]:
    """The tasks of a comparison: each policy on a few traces at a time."""
    parts = [tuple(traces[first : first + _A_TASK]) for first in range(0, len(traces), _A_TASK)]
    return [RoundsTask(policy, part, settings, published) for policy in policies for part in parts]


def perform(task: RoundsTask) -> tuple[RoundsResult, ...]:
    """Run a task."""
    return tuple(run_trace(trace, task) for trace in task.traces)


def run_trace(trace: ContentionTrace, task: RoundsTask) -> RoundsResult:
    """Run a trace: compiled if the policy is a rule in rounds, in the scheduler loop if it is another scheduler."""
    if task.published:
        runs = run_published_seeds(trace, task.settings.model.table, task.policy, PUBLISHED_SEEDS)
        return RoundsResult.of_published(trace, runs)
    # Compiled: slow to import.
    from placement.simulator.rates.rounds.run import run_rule, run_scheduler

    rule = None if task.policy.startswith(LEARNED) else find_rule(task.policy)
    if rule is not None:
        return RoundsResult.of(run_rule(trace, task.settings, task.policy, rule))
    return RoundsResult.of(run_scheduler(trace, task.settings, named_scheduler(task.policy)))


def _perform_numbered(numbered: tuple[int, RoundsTask]) -> tuple[RoundsResult, ...]:
    return perform(numbered[1])
