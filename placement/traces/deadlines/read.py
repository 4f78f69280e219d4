"""Read a trace of whole jobs: a table with deadlines, or a recorded trace whose deadlines are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mltcp.core.errors import UsageError
from mltcp.core.quantities import BYTES_PER_PARAMETER
from placement.model.job import Job
from placement.model.table_reader import Source
from placement.model.throughput import Workload
from placement.traces import alibaba_pai, philly
from placement.traces.deadlines import table
from placement.traces.deadlines.drs import DrsMix
from placement.traces.deadlines.trace import DeadlineJob, DeadlineTrace
from placement.traces.read import guess
from placement.traces.trace import Trace


def read(path: Path, workloads: Sequence[Workload], mix: DrsMix, seed: int = 0) -> DeadlineTrace:
    """Read a trace of one of three formats, told from the content.

    A table with deadlines is described in `table`. The traces of Philly (JSON) and PAI (a table or the folder of both)
    have no deadlines: priorities are drawn as for the drawn traces of `mix`, and a job's work is that of its GPUs for
    its duration, without communication.

    Raises:
        UsageError: whatever is wrong with the file: "file:line: field: reason; expected what".
    """
    if path.is_dir():
        return with_drawn_deadlines(alibaba_pai.load(path), mix, seed)
    source = Source.load(path)
    match guess(source):
        case "philly":
            return with_drawn_deadlines(philly.parse(source), mix, seed)
        case "alibaba-pai":
            return with_drawn_deadlines(alibaba_pai.load(path, source), mix, seed)
        case _:
            return table.parse(source, workloads)


def with_drawn_deadlines(trace: Trace, mix: DrsMix, seed: int) -> DeadlineTrace:
    """The jobs of a recorded trace with deadlines by the paper's rule (Equations 6 and 7).

    Raises:
        UsageError: a job is too long.
    """
    draws = np.random.default_rng([seed, 2]).random(len(trace.jobs))
    found = []
    for index, (job, v) in enumerate(zip(trace.jobs, draws, strict=True)):
        try:
            found.append(
                (
                    DeadlineJob.with_priority(
                        str(job.job_id), job.arrival_ns, _workload(job), mix.priority(float(v)), job.gpus
                    ),
                    trace.place(index),
                )
            )
        except UsageError as error:
            raise UsageError(f"{trace.place(index)}: {error}") from None
    return DeadlineTrace.of(trace.name, found, trace.left_out)


def _workload(job: Job) -> Workload:
    """The workload of a recorded job: as many samples as its GPUs compute in its iterations."""
    model = job.model
    return Workload(
        model.name,
        max(1, model.size_bytes // BYTES_PER_PARAMETER),
        model.batch_size,
        model.compute_ns,
        model.batch_size * job.gpus,
        job.iterations,
    )
