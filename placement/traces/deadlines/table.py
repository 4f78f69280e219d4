"""Traces of whole jobs as comma-separated values, one job a line.

Columns, in any order:
    job_id: a name, different in each line.
    arrival_s: when the job arrives.
    workload: the name of one of the workloads.
    alpha or deadline_s: its priority, from which its deadline follows, or its deadline, on the same clock as arrival_s.
    gpus: optional, the number of GPUs that it asks for (1 without), for schedulers that do not choose one.

Numbers are decimal and exact: times to the ns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from mltcp.core.errors import UsageError
from mltcp.core.quantities import NS_PER_S
from placement.model.table_reader import Columns, Field, Record, Source, fault, shown
from placement.model.throughput import Workload
from placement.traces.deadlines.trace import HIGHEST_ALPHA, DeadlineJob, DeadlineTrace
from placement.traces.left_out import JobSieve

_NEEDED = ("job_id", "arrival_s", "workload")
_DUE = ("alpha", "deadline_s")
COLUMNS = (*_NEEDED, *_DUE, "gpus")
"""All columns; one of alpha and deadline_s is needed, not both."""

_LONGEST_HEADER = 1000


def parse(source: Source, workloads: Sequence[Workload]) -> DeadlineTrace:
    """Read a trace; its jobs are put in the order of their arrival.

    A job is left out, and counted in the trace's `left_out`, whose line has too few or too many fields, or a field that
    is empty, no number or out of range; whose workload is unknown; whose job_id is there before; or whose deadline is
    not after its arrival.

    Raises:
        UsageError: "file:line: field: reason; expected what": a column is missing, unknown or there twice; or no job
            is left.
    """
    records = source.records()
    header = next(records)
    columns = _columns(header)
    known = {workload.name: workload for workload in workloads}
    sieve = JobSieve()
    found: list[tuple[DeadlineJob, str]] = []
    for record in records:
        with sieve.faults():
            job = _job(columns.fields(record), known)
            if sieve.is_new(job.name):
                found.append((job, record.place))
    sieve.check_some_left(len(found))
    if not found:
        raise fault(header.place, "file", "no jobs follow the names of the columns", "1 or more")
    return DeadlineTrace.of(source.name, found, sieve.result())


def is_table(path: Path) -> bool:
    """Whether a file begins with the columns of such a table; False if it cannot be read."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            columns = {name.strip() for name in file.readline(_LONGEST_HEADER).split(",")}
    except (OSError, ValueError):
        return False
    return columns.issuperset(_NEEDED)


def _job(fields: Mapping[str, Field], known: Mapping[str, Workload]) -> DeadlineJob:
    name, arrival_ns = fields["job_id"].word(), fields["arrival_s"].units(NS_PER_S, "ns")
    workload_name = fields["workload"].word()
    if workload_name not in known:
        raise fields["workload"].error(f"{shown(workload_name)} is unknown", ", ".join(known))
    workload = known[workload_name]
    gpus = fields["gpus"].whole(1) if "gpus" in fields else 1
    if "alpha" in fields:
        expected = f"a number above 0 up to {HIGHEST_ALPHA}"
        alpha = fields["alpha"].number(expected)
        if not 0 < alpha <= HIGHEST_ALPHA:
            raise fields["alpha"].error(f"{shown(fields['alpha'].text.strip())} is out of range", expected)
        try:
            return DeadlineJob.with_priority(name, arrival_ns, workload, alpha, gpus)
        except UsageError as error:
            raise fields["alpha"].error(str(error), "a deadline after the arrival") from None
    deadline_ns = fields["deadline_s"].units(NS_PER_S, "ns")
    if deadline_ns <= arrival_ns:
        given = fields["deadline_s"].text.strip()
        raise fields["deadline_s"].error(
            f"{shown(given)} is in the past", f"more than its arrival_s, {fields['arrival_s'].text.strip()}"
        )
    return DeadlineJob(name, arrival_ns, workload, deadline_ns, None, gpus)


def _columns(header: Record) -> Columns:
    columns = Columns.of(header, COLUMNS)
    columns.need(_NEEDED, ", ".join((*_NEEDED, " or ".join(_DUE))))
    if len(set(columns.names).intersection(_DUE)) != 1:
        reason = "both are there" if set(_DUE) <= set(columns.names) else "both are missing"
        raise fault(header.place, " and ".join(_DUE), reason, "one of them")
    return columns
