"""Ratios of shared to isolated throughput from the iteration times that the agents of running jobs report.

The iterations of a job are collected while the same jobs share nodes with it. When these change, and at the beginning
of a round, their median gives the job's throughput, and its ratio to that of the table. Beside exactly one other job
the ratio is that of the pair. A job that has not reported an iteration since it was started is no neighbour yet: it
loads its program, and sends nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from pathlib import Path
from statistics import median

from mltcp.core.errors import UsageError, shown
from mltcp.core.one_line import one_line
from placement.model.throughput_table import (
    FLOOR,
    Combination,
    Layout,
    SensitivityTable,
    TableTimes,
    published_table,
    read_table,
)
from placement.policies.schedulers.contention.learned.checkpoint import digest_of_table
from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol.checks import invalid
from placement.service.ratio_table import RatioTable, save_ratio, saved_ratios
from placement.service.state.job_record import JobRecord
from placement.service.state.registry import Registry
from placement.service.state.store import Store

SKIPPED = 2
"""The first iterations of a run, which do not count."""

ENOUGH = 5
"""Iterations from which a ratio is taken."""

ALONE_WITHIN = 0.1
"""A job alone whose throughput differs by more from the table's is logged, once a layout."""

_log = logging.getLogger("mltcp.placement")


@dataclass(frozen=True)
class MeasuredJob:
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
class _MeasuredRun:
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

    job: MeasuredJob
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
        self._runs: dict[str, _MeasuredRun] = {}
        self._told: set[Layout] = set()

    def update(self, running: Mapping[str, tuple[MeasuredJob, int]]) -> None:
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
                self._runs[name] = _MeasuredRun(job, done)
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

    def _attribute(self, name: str, run: _MeasuredRun, ratio: float, neighbours: Iterable[str]) -> None:
        others = [self._runs[other].job.layout for other in neighbours if other in self._runs]
        if not others:
            if abs(ratio - 1) > ALONE_WITHIN and run.job.layout not in self._told:
                self._told.add(run.job.layout)
                _log.warning(
                    "job %s: alone, it has %.2f of the throughput of %s in the table",
                    *(one_line(name), ratio, run.job.layout),
                )
        elif len(others) > 1:
            self._table.counts.ambiguous += 1
        elif said := self._table.note((run.job.layout, others[0]), ratio):
            _log.warning("job %s: %s", one_line(name), one_line(said))


# ------------------------------------------------------------------------------- contention of the jobs of a service


PUBLISHED_NAME = "published"
"""In place of a folder: the table that is shipped."""


def table_named(name: str) -> SensitivityTable:
    """The shipped table, or that of a folder.

    Raises:
        UsageError: it cannot be read, or has a hole or a ratio outside 0 to 1.
    """
    try:
        return published_table() if name == PUBLISHED_NAME else read_table(Path(name))
    except UsageError as error:
        raise UsageError(f"--table: {error}") from None


class ContentionState:
    """The table in use, and the throughput of the running jobs whose models are in it.

    Args:
        base: the given table.
        store: keeps the measured ratios; it has not been started yet.
        start_ns: the time after a start for which a job makes no progress.
        combination: of the ratios beside several neighbours.
    """

    def __init__(
        self,
        base: SensitivityTable,
        store: Store,
        start_ns: int = 0,
        combination: Combination = "minimum",
    ) -> None:
        self._start_ns = start_ns
        digest = digest_of_table(base)
        self.table = RatioTable(
            base,
            saved_ratios(store, digest),
            lambda pair, cell: save_ratio(store, digest, pair, cell),
            combination,
        )
        self.monitor = ThroughputMonitor(self.table)

    def check_job(self, spec: pb.Job, field: str = "job") -> None:
        """Raise `RequestError` if the table has no row for a job, or its samples are out of range."""
        gpus = spec.gpus or spec.cpu_slots
        table = self.table.base
        if spec.model not in table.models:
            raise invalid(
                f"{field}.model", f"expected one of {', '.join(table.models)}, got {shown(spec.model)}"
            )
        if gpus not in table.gpus(spec.model):
            known = ", ".join(map(str, table.gpus(spec.model)))
            name = "gpus" if spec.gpus else "cpu_slots"
            raise invalid(f"{field}.{name}", f"expected {known}, which {spec.model} has rows for, got {gpus}")
        if not 0 <= spec.iteration_samples <= 1e12:
            raise invalid(f"{field}.iteration_samples", f"expected 0 to 1e12, got {spec.iteration_samples:g}")

    def update(self, registry: Registry) -> None:
        """Measure the ratios of the iterations so far, and go on with the jobs that hold slots now."""
        running = {}
        for job in registry.unended.values():
            if job.placed and job.spec.model:
                found = self._running(registry, job)
                if found is not None:
                    running[job.id] = found, job.done
        self.monitor.update(running)

    def reported(self, registry: Registry, job: JobRecord, number: int, duration_ns: int) -> None:
        """Note an iteration that the agent of a job has reported."""
        if job.spec.model and job.placed:
            if self.monitor.done_before(job.id) is None:
                self.update(registry)
            self.monitor.reported(job.id, number, duration_ns)

    def done(self, registry: Registry, job: JobRecord, now_ns: int) -> Fraction:
        """The iterations that a job has done, less than all: by its agent, or by the time for which it has run."""
        done: Fraction = Fraction(job.done)
        if job.placed:
            counted = self.monitor.done(job.id)
            running = self._running(registry, job)
            if counted is not None:
                done = Fraction(counted)
            elif running is not None and not job.agent and job.state != pb.STOPPING:
                rate = self.table.base.throughput(running.layout) * self.ratio(registry, job)
                elapsed_s = max(0, now_ns - job.placed_ns - self._start_ns) / 1e9
                before = self.monitor.done_before(job.id)
                done = Fraction(job.done if before is None else before)
                done += Fraction(elapsed_s * rate / running.iteration_samples)
        return min(done, Fraction(job.spec.iterations - 1))

    def ratio(self, registry: Registry, job: JobRecord) -> float:
        """The ratio of a running job: the measured one, or else that of the table beside its neighbours."""
        measured = self.monitor.ratio(job.id)
        if measured is not None:
            return measured
        mine = self._running(registry, job)
        if mine is None:
            return 1.0
        others = (
            self._running(registry, each)
            for each in registry.unended.values()
            if each.placed
            and each.spec.model
            and each.id != job.id
            and registry.pool(each) is registry.pool(job)
        )
        model = self.table.model
        return model.combined(
            model.table.ratio(mine.layout, other.layout)
            for other in others
            if other is not None and not mine.nodes.isdisjoint(other.nodes)
        )

    def times(self, job: JobRecord) -> TableTimes:
        """The iteration times of a job of the table."""
        return TableTimes(self.table.model, job.spec.model)

    def message(self) -> pb.RatioTableStatus:
        """The status message of the table."""
        table = self.table
        return pb.RatioTableStatus(name=table.base.name, cells=len(table.cells), **asdict(table.counts))

    def ratios(self) -> pb.RatiosReply:
        """The table in use."""
        table, cells = self.table.table(), self.table.cells
        return pb.RatiosReply(
            name=table.name,
            isolated=[
                pb.IsolatedRow(layout=_message(layout), samples_per_s=rate)
                for layout, rate in table.samples_per_s.items()
            ],
            ratios=[
                pb.RatioCell(
                    target=_message(pair[0]),
                    other=_message(pair[1]),
                    ratio=ratio,
                    given=self.table.base.ratios[pair],
                    observations=cells[pair].observations if pair in cells else 0,
                )
                for pair, ratio in table.ratios.items()
            ],
            samples=[
                pb.SamplesRow(model=model, gpus=gpus, total_samples=samples)
                for (model, gpus), samples in table.samples.items()
            ],
        )

    def _running(self, registry: Registry, job: JobRecord) -> MeasuredJob | None:
        """A job that holds slots, as the table has it; None if it has no such layout."""
        by_server: Mapping[int, object] = registry.pool(job).by_server(job.slots)
        layout = Layout(job.spec.model, job.count, len(by_server))
        if layout not in self.table.base.samples_per_s:
            return None
        return MeasuredJob(layout, frozenset(by_server), iteration_samples(job), job.restarts)


def iteration_samples(job: JobRecord) -> float:
    """The samples of an iteration of a job, in the units of the table; one a slot unless it says otherwise."""
    return job.spec.iteration_samples or float(job.count)


def _message(layout: Layout) -> pb.TableLayout:
    return pb.TableLayout(model=layout.model, gpus=layout.gpus, nodes=layout.nodes)
