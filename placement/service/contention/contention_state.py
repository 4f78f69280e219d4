"""The contention that the service knows of: its table, and what its running jobs show."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

from mltcp.core.errors import UsageError, shown
from placement.model.throughput_table import (
    Combination,
    Layout,
    SensitivityTable,
    TableTimes,
    published_table,
    read_table,
)
from placement.policies.schedulers.contention.checkpoint import digest_of_table
from placement.service.contention.ratio_table import RatioTable
from placement.service.contention.throughput_monitor import RunningJob, ThroughputMonitor
from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol.request_error import invalid
from placement.service.state.job_record import JobRecord
from placement.service.state.persistence import save_ratio, saved_ratios
from placement.service.state.registry import Registry
from placement.service.state.store import Store

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
        for job in registry.jobs.values():
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
            for each in registry.jobs.values()
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
        counts = self.table.counts
        return pb.RatioTableStatus(
            name=self.table.base.name,
            observed=counts.observed,
            clamped=counts.clamped,
            refused=counts.refused,
            ambiguous=counts.ambiguous,
            cells=len(self.table.cells),
            last_refused=counts.last_refused,
        )

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

    def _running(self, registry: Registry, job: JobRecord) -> RunningJob | None:
        """A job that holds slots, as the table has it; None if it has no such layout."""
        by_server: Mapping[int, object] = registry.pool(job).by_server(job.slots)
        layout = Layout(job.spec.model, job.count, len(by_server))
        if layout not in self.table.base.samples_per_s:
            return None
        return RunningJob(layout, frozenset(by_server), iteration_samples(job), job.restarts)


def iteration_samples(job: JobRecord) -> float:
    """The samples of an iteration of a job, in the units of the table; one a slot unless it says otherwise."""
    return job.spec.iteration_samples or float(job.count)


def _message(layout: Layout) -> pb.TableLayout:
    return pb.TableLayout(model=layout.model, gpus=layout.gpus, nodes=layout.nodes)
