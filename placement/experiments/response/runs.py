"""Run policies on traces of training jobs; JSQ-Chunk without a size of its chunks searches for the best one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from mltcp.core.policy_names import Part, Vocabulary
from placement.experiments.response.results import PolicyResult, TraceResult, best
from placement.experiments.workers import Workers
from placement.model.throughput import Workload
from placement.policies.schedulers.response.catalogue import (
    RESPONSE_SCHEDULERS,
    ResponseScheduler,
    Settings,
)
from placement.policies.schedulers.response.jsq_chunk import JsqChunk, check_chunk
from placement.simulator.rates.response.settings import ResponseSettings
from placement.traces.async_sgd import AsyncTrace, draw_trace

JSQ = "jsq-chunk"
NAMES = Vocabulary("policy", (*RESPONSE_SCHEDULERS, f"{JSQ}[-K]"))
"""The policies; ``jsq-chunk`` without K finds the best K."""

LARGEST_CHUNK = 50
"""The search tries chunks from one node to so many."""


@dataclass(frozen=True)
class DrawnTraces:
    """Traces that are drawn, one a seed; the same wherever they are used.

    Attributes:
        models: of which the jobs are.
        jobs: of each trace.
        seeds: of the traces.
    """

    models: tuple[Workload, ...]
    jobs: int
    seeds: tuple[int, ...]

    def traces(self) -> tuple[AsyncTrace, ...]:
        """The traces.

        Raises:
            UsageError: the number of jobs or a seed is out of range.
        """
        return tuple(_drawn(self.models, self.jobs, seed) for seed in self.seeds)


@dataclass(frozen=True)
class Comparison:
    """Traces, the cluster, and the parameters of the policies.

    Attributes:
        traces: one or more.
        settings: the cluster and its load.
        parameters: of the policies; the load is that of `settings`.
    """

    traces: tuple[AsyncTrace, ...]
    settings: ResponseSettings
    parameters: Settings = field(default=Settings())

    def at_load(self, load: float) -> Comparison:
        """The same at another load."""
        return replace(self, settings=replace(self.settings, load=load))

    def check(self, policy: str) -> None:
        """Refuse a policy that cannot be run.

        Raises:
            UsageError: an unknown name, parameters out of range, or a chunk larger than the cluster.
        """
        part = NAMES.parse(policy)
        if part.base != JSQ:
            self._scheduler(part)
        elif part.number is not None:
            check_chunk(part.number, self.settings.nodes)

    def tasks(self, policy: str) -> tuple[ResponseTask, ...]:
        """The runs of a policy: one, or one for each K that is tried.

        Raises:
            UsageError: as `check`.
        """
        self.check(policy)
        part = NAMES.parse(policy)
        if part.base != JSQ:
            return (ResponseTask(self, policy),)
        if part.number is not None:
            return (ResponseTask(self, policy, part.number),)
        largest = min(LARGEST_CHUNK, self.settings.nodes)
        return tuple(ResponseTask(self, policy, chunk) for chunk in range(1, largest + 1))

    def scheduler(self, policy: str) -> ResponseScheduler:
        """The scheduler of this name, which is not JSQ-Chunk's."""
        return self._scheduler(NAMES.parse(policy))

    def _scheduler(self, part: Part) -> ResponseScheduler:
        return RESPONSE_SCHEDULERS[part.base](replace(self.parameters, load=self.settings.load))


@dataclass(frozen=True)
class ResponseTask:
    """A policy on all traces of a comparison.

    Attributes:
        comparison: the traces and the cluster.
        policy: its name.
        chunk: K of JSQ-Chunk.
    """

    comparison: Comparison
    policy: str
    chunk: int | None = None


def run_tasks(
    tasks: Sequence[ResponseTask], processes: int, done: Callable[[str], None] = lambda policy: None
) -> dict[ResponseTask, PolicyResult]:
    """Run tasks.

    Args:
        tasks: what to run.
        processes: how many run at a time; one runs in this process.
        done: called with the name of the policy after each task.

    Raises:
        MltcpError: jobs wait that a policy never serves.
    """
    found = {}
    for task, result in _results(tasks, min(processes, len(tasks))):
        found[task] = result
        done(task.policy)
    return found


def result_of(comparison: Comparison, policy: str, runs: Mapping[ResponseTask, PolicyResult]) -> PolicyResult:
    """The result of a policy: of its only task, or of the best K."""
    return best([runs[task] for task in comparison.tasks(policy)])


def perform(task: ResponseTask) -> PolicyResult:
    """Run a task."""
    from placement.simulator.rates.response.run import run_response  # compiled: slow to import

    comparison = task.comparison
    scheduler = comparison.scheduler(task.policy) if task.chunk is None else JsqChunk(task.chunk)
    nodes = comparison.settings.nodes
    results = [
        TraceResult.of(trace.name, trace.seed, nodes, run_response(trace, comparison.settings, scheduler))
        for trace in comparison.traces
    ]
    return PolicyResult(task.policy, tuple(results), task.chunk)


def _results(tasks: Sequence[ResponseTask], processes: int) -> Iterator[tuple[ResponseTask, PolicyResult]]:
    if processes <= 1:
        yield from ((task, perform(task)) for task in tasks)
        return
    with Workers(perform, processes, fork=True) as workers:
        yield from workers.results(tasks)


@lru_cache(maxsize=64)
def _drawn(models: tuple[Workload, ...], jobs: int, seed: int) -> AsyncTrace:
    return draw_trace(models, jobs, seed)
