"""Run policies on traces of whole jobs, on all cores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from placement.experiments.jobs.results import PolicyResult, TraceResult
from placement.experiments.workers import Workers
from placement.policies.schedulers.registry import named_scheduler
from placement.simulator.rates.run import RatesSettings, run_rates
from placement.traces.deadlines.drs import DrsMix
from placement.traces.deadlines.trace import DeadlineTrace

_CHUNK = 10


@dataclass(frozen=True)
class Drawn:
    """Traces that are drawn, one a seed.

    Attributes:
        mix: the parameters.
        seeds: of the traces.
    """

    mix: DrsMix
    seeds: tuple[int, ...]

    def chunks(self) -> Iterator[Drawn]:
        """The same traces in small parts."""
        for first in range(0, len(self.seeds), _CHUNK):
            yield Drawn(self.mix, self.seeds[first : first + _CHUNK])

    def traces(self) -> tuple[DeadlineTrace, ...]:
        """The traces."""
        return _drawn(self.mix, self.seeds)


@dataclass(frozen=True)
class Given:
    """Traces that were read.

    Attributes:
        given: the traces.
    """

    given: tuple[DeadlineTrace, ...]

    def chunks(self) -> Iterator[Given]:
        """The same traces, one by one."""
        for trace in self.given:
            yield Given((trace,))

    def traces(self) -> tuple[DeadlineTrace, ...]:
        """The traces."""
        return self.given


Traces = Drawn | Given


@dataclass(frozen=True)
class JobsTask:
    """One policy on some traces.

    Attributes:
        policy: its name.
        traces: in their order.
        settings: the cluster and the throughput model.
    """

    policy: str
    traces: Traces
    settings: RatesSettings


def perform(task: JobsTask) -> tuple[TraceResult, ...]:
    """Run a task."""
    scheduler = named_scheduler(task.policy)
    return tuple(TraceResult.of(run_rates(trace, task.settings, scheduler)) for trace in task.traces.traces())


def run_policies(
    policies: Sequence[str],
    traces: Traces,
    settings: RatesSettings,
    processes: int,
    done: Callable[[str], None] = lambda policy: None,
) -> tuple[PolicyResult, ...]:
    """Run every policy on every trace.

    Args:
        policies: their names.
        traces: what they run on.
        settings: the cluster and the throughput model.
        processes: how many run at a time; one runs in this process.
        done: called with the name of the policy after each part of its traces.
    """
    tasks = [JobsTask(policy, chunk, settings) for chunk in traces.chunks() for policy in policies]
    found: dict[JobsTask, tuple[TraceResult, ...]] = {}
    for task, results in _results(tasks, min(processes, len(tasks))):
        found[task] = results
        done(task.policy)
    return tuple(
        PolicyResult(policy, tuple(each for task in tasks if task.policy == policy for each in found[task]))
        for policy in policies
    )


def _results(tasks: Sequence[JobsTask], processes: int) -> Iterator[tuple[JobsTask, tuple[TraceResult, ...]]]:
    if processes == 1:
        yield from ((task, perform(task)) for task in tasks)
        return
    with Workers(perform, processes, fork=True) as workers:
        yield from workers.results(tasks)


@cache
def _drawn(mix: DrsMix, seeds: tuple[int, ...]) -> tuple[DeadlineTrace, ...]:
    return tuple(mix.trace(seed) for seed in seeds)
