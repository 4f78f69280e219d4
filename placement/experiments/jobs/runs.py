"""Run policies on traces of whole jobs, on all cores; finished parts are kept, and not run again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Self

from placement.experiments.jobs.results import PolicyResult, TraceResult
from placement.experiments.run_journal import RunJournal
from placement.experiments.workers import Workers
from placement.policies.schedulers.registry import named_scheduler
from placement.simulator.rates.outcome import RatesOutcome
from placement.simulator.rates.run import run_rates
from placement.simulator.rates.timed_job import RatesSettings
from placement.traces.deadlines import DeadlineTrace, DrsMix

_CHUNK = 10
_SOURCES = ("simulator", "policies", "model", "traces")


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

    def first(self) -> DeadlineTrace:
        """The first of them."""
        return self.mix.trace(self.seeds[0])


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

    def first(self) -> DeadlineTrace:
        """The first of them."""
        return self.given[0]


Traces = Drawn | Given

Results = tuple[TraceResult, ...]


@dataclass(frozen=True)
class Cell:
    """Traces, and the cluster on which they run.

    Attributes:
        traces: one or more.
        settings: the cluster and the throughput model.
    """

    traces: Traces
    settings: RatesSettings


@dataclass(frozen=True)
class JobsTask:
    """One policy on some traces of a cell.

    Attributes:
        policy: its name.
        cell: the traces and the cluster.
    """

    policy: str
    cell: Cell

    @cached_property
    def key(self) -> str:
        """The same for the same traces, policy and cluster, simulated by the same code."""
        return hashlib.sha256(f"{self!r} {_program()}".encode()).hexdigest()[:20]


@dataclass(frozen=True)
class JobsRun:
    """The results of a task.

    Attributes:
        key: of the task.
        policy: its name.
        results: of its traces.
    """

    key: str
    policy: str
    results: tuple[TraceResult, ...]

    def line(self) -> str:
        """The run as a line of JSON, without a newline."""
        return json.dumps(asdict(self), separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_line(cls, line: bytes) -> Self:
        """Read what `line` wrote; ValueError if it is anything else."""
        document = json.loads(line)
        if not isinstance(document, dict) or set(document) != {"key", "policy", "results"}:
            raise ValueError("not a run")
        results = tuple(TraceResult.from_document(each) for each in document["results"])
        return cls(str(document["key"]), str(document["policy"]), results)


def tasks_of(cells: Iterable[Cell], policies: Sequence[str]) -> tuple[JobsTask, ...]:
    """The tasks of these cells, each once; those of the same traces follow each other."""
    return tuple(
        dict.fromkeys(
            JobsTask(policy, Cell(chunk, cell.settings))
            for cell in cells
            for chunk in cell.traces.chunks()
            for policy in policies
        )
    )


def run_tasks(
    tasks: Sequence[JobsTask],
    processes: int,
    journal: RunJournal[JobsRun] | None = None,
    done: Callable[[str], None] = lambda policy: None,
) -> dict[JobsTask, Results]:
    """Run tasks.

    Args:
        tasks: what to run.
        processes: how many run at a time; one runs in this process.
        journal: keeps each run as soon as it is finished; those that it has are not run again.
        done: called with the name of the policy after each task.
    """
    known = {} if journal is None else journal.runs
    found = {task: known[task.key].results for task in tasks if known and task.key in known}
    for task in found:
        done(task.policy)
    left = [task for task in tasks if task not in found]
    for task, results in _results(left, min(processes, len(left))):
        found[task] = results
        if journal is not None:
            journal.add(JobsRun(task.key, task.policy, results))
        done(task.policy)
    return found


def result_of(cell: Cell, policy: str, runs: Mapping[JobsTask, Results]) -> PolicyResult:
    """The result of a policy on all traces of a cell."""
    parts = [runs[JobsTask(policy, Cell(chunk, cell.settings))] for chunk in cell.traces.chunks()]
    return PolicyResult(policy, tuple(result for part in parts for result in part))


def perform(task: JobsTask) -> Results:
    """Run a task."""
    return tuple(
        TraceResult.of(run_trace(trace, task.cell.settings, task.policy))
        for trace in task.cell.traces.traces()
    )


def run_trace(trace: DeadlineTrace, settings: RatesSettings, policy: str) -> RatesOutcome:
    """Run a trace, compiled if that is possible: both give the same."""
    from placement.simulator.rates.compiled.run import compiles, run_compiled

    if compiles(policy, trace, settings):
        return run_compiled(trace, settings, policy)
    return run_rates(trace, settings, named_scheduler(policy))


def _results(tasks: Sequence[JobsTask], processes: int) -> Iterator[tuple[JobsTask, Results]]:
    if processes <= 1:
        yield from ((task, perform(task)) for task in tasks)
        return
    with Workers(perform, processes, fork=True) as workers:
        yield from workers.results(tasks)


@cache
def _drawn(mix: DrsMix, seeds: tuple[int, ...]) -> tuple[DeadlineTrace, ...]:
    return tuple(mix.trace(seed) for seed in seeds)


@cache
def _program() -> str:
    """A digest of the code that determines the outcome: another version's runs are other runs."""
    root = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for path in sorted(path for name in _SOURCES for path in (root / name).rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return digest.hexdigest()
