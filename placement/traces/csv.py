"""Traces as comma-separated values, one job a line, as those of the Ada-SRSF paper's evaluation are kept.

Columns, in any order:
    job_id: a number from 0, different in each line.
    arrival_s: when the job arrives, in seconds of the paper's scale.
    num_gpus: how many workers it has.
    iterations: how many it runs, at the paper's scale.
    model: the name of the network.
    sim_arrival_ms, sim_iterations: what is simulated instead of arrival_s and iterations: both, or neither. Then
        iterations / sim_iterations must be the same in each line, and arrival_s that many times sim_arrival_ms.
    model_size_mb, fw_ms, bw_ms, train_mem_mb, batch_size: the network, as in Table III: all five, or none. Without
        them the model must be one of those known. A MB has 10^6 bytes.

Numbers are decimal and exact: times to the ns, sizes to the byte.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from mltcp.core.errors import UsageError, shown
from mltcp.core.quantities import NS_PER_MS, NS_PER_S
from placement.model.job import Job, Model
from placement.model.table_reader import Columns, Field, Record, Source
from placement.traces.job_trace import PUBLISHED, JobTrace, check_countable
from placement.traces.trace import JobSieve, read_jobs

_NEEDED = ("job_id", "arrival_s", "num_gpus", "iterations", "model")
_SIMULATED = ("sim_arrival_ms", "sim_iterations")
_MODEL = ("model_size_mb", "fw_ms", "bw_ms", "train_mem_mb", "batch_size")
COLUMNS = (*_NEEDED, *_SIMULATED, *_MODEL)
"""The columns in the order in which they are written."""

_BYTES_PER_MB = 10**6


def parse(source: Source, models: Mapping[str, Model] = PUBLISHED) -> JobTrace:
    """Read a trace.

    A job is left out, and counted in `Trace.left_out`, whose line has too few or too many fields, or a field that is
    empty, no number, too small, too large or too fine; whose model is unknown; whose job_id is there before; or whose
    two scales differ as those of no line before.

    Args:
        source: the file.
        models: those known, where the file does not describe them.

    Raises:
        UsageError: a column is missing, unknown or there twice; or no job is left.
    """
    scale: Fraction | None = None

    def job_of(fields: Mapping[str, Field]) -> Job:
        nonlocal scale
        row = _Row(fields)
        job = row.job(models)
        row_scale = row.scale if row.is_scaled else Fraction(1)
        row.check_scale(scale or row_scale)
        scale = scale or row_scale
        check_countable(job, fields["job_id"].place)
        return job

    sieve = JobSieve()
    jobs = read_jobs(source, _columns, job_of, sieve, lambda job: job.job_id)
    return JobTrace.of(source.name, jobs, sieve.result(), seconds_per_simulated_s=scale or Fraction(1))


def written(trace: JobTrace) -> str:
    """The trace with all columns, in the order of job_id; lines end in CR LF.

    Raises:
        UsageError: a number of iterations is not whole at the paper's scale.
    """
    text = io.StringIO(newline="")
    table = csv.writer(text)
    table.writerow(COLUMNS)
    for job in sorted(trace.jobs, key=lambda job: job.job_id):
        table.writerow(_cells(job, trace))
    return text.getvalue()


def write(trace: JobTrace, path: Path) -> None:
    """Write what `written` gives to a file.

    Raises:
        UsageError: as `written`, and if the file cannot be written.
    """
    content = written(trace).encode()
    try:
        path.write_bytes(content)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None


@dataclass(frozen=True)
class _Row:
    fields: Mapping[str, Field]

    @property
    def is_scaled(self) -> bool:
        return "sim_iterations" in self.fields

    @property
    def scale(self) -> Fraction:
        """The ratio of the iterations of the paper's scale to those simulated."""
        return Fraction(self.fields["iterations"].whole(1), self.fields["sim_iterations"].whole(1))

    def job(self, models: Mapping[str, Model]) -> Job:
        fields = self.fields
        if self.is_scaled:
            arrival_ns = fields["sim_arrival_ms"].units(NS_PER_MS, "ns")
            iterations = fields["sim_iterations"].whole(1)
        else:
            arrival_ns = fields["arrival_s"].units(NS_PER_S, "ns")
            iterations = fields["iterations"].whole(1)
        job_id, gpus = fields["job_id"].whole(), fields["num_gpus"].whole(1)
        return Job(job_id, arrival_ns, gpus, iterations, self.model(models))

    def model(self, models: Mapping[str, Model]) -> Model:
        fields = self.fields
        name = fields["model"].word()
        if "fw_ms" not in fields:
            if name not in models:
                raise fields["model"].error(f"{shown(name)} is unknown", f"{', '.join(models)}")
            return models[name]
        return Model(
            name,
            fields["model_size_mb"].units(_BYTES_PER_MB, "byte", 1),
            fields["fw_ms"].units(NS_PER_MS, "ns", 1),
            fields["bw_ms"].units(NS_PER_MS, "ns", 1),
            fields["train_mem_mb"].whole(),
            fields["batch_size"].whole(1),
        )

    def check_scale(self, scale: Fraction) -> None:
        """Check that the two times and the two numbers of iterations of this line differ by the trace's scale."""
        if not self.is_scaled:
            return
        if self.scale != scale:
            reason = f"{self.scale} times sim_iterations, where another line has {scale} times"
            raise self.fields["iterations"].error(reason, "one scale in all lines")
        arrival = self.fields["arrival_s"]
        arrival_s = arrival.number("seconds")
        exact_s = scale * Fraction(self.fields["sim_arrival_ms"].units(NS_PER_MS, "ns"), NS_PER_S)
        # Rounded seconds are seconds still.
        if abs(arrival_s - exact_s) > arrival.quantum() / 2:
            reason = f"{shown(arrival.text)} is not {scale} times sim_arrival_ms"
            raise arrival.error(reason, f"{_decimal(exact_s, 3)}")


def _columns(header: Record) -> Columns:
    columns = Columns.of(header, COLUMNS)
    needed = list(_NEEDED)
    for group in (_SIMULATED, _MODEL):
        needed += group if set(columns.names).intersection(group) else ()
    columns.need(needed, ", ".join(needed))
    return columns


def _cells(job: Job, trace: JobTrace) -> list[str]:
    scale = trace.seconds_per_simulated_s
    iterations = job.iterations * scale
    if iterations.denominator != 1:
        reason = f"job {job.job_id}: {job.iterations} iterations times {scale} are not whole"
        raise UsageError(f"{trace.name}: {reason}; expected whole numbers")
    model = job.model
    return [
        str(job.job_id),
        _decimal(scale * Fraction(job.arrival_ns, NS_PER_S), 3),
        str(job.gpus),
        str(iterations),
        model.name,
        _decimal(Fraction(job.arrival_ns, NS_PER_MS), 0),
        str(job.iterations),
        _decimal(Fraction(model.size_bytes, _BYTES_PER_MB), 1),
        _decimal(Fraction(model.forward_ns, NS_PER_MS), 0),
        _decimal(Fraction(model.backward_ns, NS_PER_MS), 0),
        str(model.memory_mb),
        str(model.batch_size),
    ]


def _decimal(value: Fraction, least: int, most: int = 9) -> str:
    """The number as text with its own count of decimals, but at least `least` and (rounded) at most `most`."""
    whole, rest = divmod(round(value * 10**most), 10**most)
    digits = f"{rest:0{most}d}".rstrip("0").ljust(least, "0")
    return f"{whole}.{digits}" if digits else str(whole)
