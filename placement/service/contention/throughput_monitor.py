"""Ratios of shared to isolated throughput from the iteration times that the agents of running jobs report.

The iterations of a job are collected while the same jobs share nodes with it. When these change, and at the beginning
of a round, their median gives the job's throughput, and its ratio to that of the table. Beside exactly one other job
the ratio is that of the pair. A job that has not reported an iteration since it was started is no neighbour yet: it
loads its program, and sends nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median

from mltcp.core.one_line import one_line
from placement.model.throughput_table import FLOOR, Layout
from placement.service.contention.ratio_table import RatioTable

SKIPPED = 2
"""The first iterations of a run, which do not count."""

ENOUGH = 5
"""Iterations from which a ratio is taken."""

ALONE_WITHIN = 0.1
"""A job alone whose throughput differs by more from the table's is logged, once a layout."""

_log = logging.getLogger("mltcp.placement")


@dataclass(frozen=True)
class RunningJob:
    """A job that holds slots.

    Attributes:
        layout: in the table.
        nodes: on which it runs.
        iteration_samples: samples of an iteration, in the table's units.
        run: identifies the run of the job: another one after each start.
    """

    layout: Layout
    nodes: frozenset[int]
    iteration_samples: float
    run: int


@dataclass
class _Run:
    """One run of a job.

    Attributes:
        job: its placement.
        done: iterations of the job that earlier runs had done.
        first: the number of the first reported iteration; None before it.
        iterations: that this run has done.
        neighbours: the active jobs that share nodes with it.
        durations_ns: of its iterations beside these.
        ratio: the last measured one beside these; None: not measured yet.
    """

    job: RunningJob
    done: int
    first: int | None = None
    iterations: int = 0
    neighbours: frozenset[tuple[str, int]] = frozenset()
    durations_ns: list[int] = field(default_factory=list)
    ratio: float | None = None


class ThroughputMonitor:
    """Measures the ratios of running jobs, and takes those of pairs into a table.

    Args:
        table: in use.
    """

    def __init__(self, table: RatioTable) -> None:
        self._table = table
        self._runs: dict[str, _Run] = {}
        self._told: set[Layout] = set()

    def update(self, running: Mapping[str, tuple[RunningJob, int]]) -> None:
        """Measure what has been collected, and go on with these jobs.

        Args:
            running: the jobs that hold slots now, and the iterations that each had done when its run began.
        """
        self._settle()
        for name in [
            name for name, run in self._runs.items() if name not in running or run.job != running[name][0]
        ]:
            del self._runs[name]
        for name, (job, done) in running.items():
            if name not in self._runs:
                self._runs[name] = _Run(job, done)
        self._find_neighbours()

    def reported(self, name: str, number: int, duration_ns: int) -> None:
        """Note an iteration of a running job; its number counts from the beginning of the run."""
        run = self._runs.get(name)
        if run is None or duration_ns <= 0:
            return
        run.iterations = number + 1
        if run.first is None:
            run.first = number
            self._settle()
            self._find_neighbours()
        if number >= SKIPPED:
            run.durations_ns.append(duration_ns)

    def done(self, name: str) -> int | None:
        """The iterations of a job that reports in its present run, over all of its runs; None of others."""
        run = self._runs.get(name)
        return None if run is None or run.first is None else run.done + run.iterations

    def done_before(self, name: str) -> int | None:
        """The iterations that a job had done when its present run began; None if it does not run."""
        run = self._runs.get(name)
        return None if run is None else run.done

    def ratio(self, name: str) -> float | None:
        """The measured ratio of a job beside its present neighbours, `FLOOR` to 1; None if there is none yet."""
        run = self._runs.get(name)
        return None if run is None else run.ratio

    def _find_neighbours(self) -> None:
        active = {name: run for name, run in self._runs.items() if run.first is not None}
        for name, run in self._runs.items():
            found = frozenset(
                (other, each.job.run)
                for other, each in active.items()
                if other != name and not run.job.nodes.isdisjoint(each.job.nodes)
            )
            if found != run.neighbours:
                run.neighbours, run.ratio = found, None
                run.durations_ns.clear()

    def _settle(self) -> None:
        """Turn the iterations that were collected into ratios."""
        for name, run in self._runs.items():
            if len(run.durations_ns) < ENOUGH:
                continue
            samples_per_s = run.job.iteration_samples * 1e9 / median(run.durations_ns)
            ratio = samples_per_s / self._table.base.throughput(run.job.layout)
            run.durations_ns.clear()
            run.ratio = min(max(ratio, FLOOR), 1.0)
            self._attribute(name, run, ratio, [other for other, _ in run.neighbours])

    def _attribute(self, name: str, run: _Run, ratio: float, neighbours: Iterable[str]) -> None:
        others = [self._runs[other].job.layout for other in neighbours if other in self._runs]
        if not others:
            if abs(ratio - 1) > ALONE_WITHIN and run.job.layout not in self._told:
                self._told.add(run.job.layout)
                _log.warning(
                    "job %s: alone, it has %.2f of the throughput of %s in the table",
                    *(one_line(name), ratio, run.job.layout),
                )
        elif len(others) > 1:
            self._table.note_ambiguous()
        elif said := self._table.note((run.job.layout, others[0]), ratio):
            _log.warning("job %s: %s", one_line(name), one_line(said))
