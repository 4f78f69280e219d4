"""Alibaba's GPU cluster of 2023 with its network: github.com/alibaba/alibaba-lingjun-dataset-2023.

From "Crux: GPU-Efficient Communication Scheduling for Deep Learning Training" (Cao et al., SIGCOMM 2024). Tables with
names of columns, of which these are read:

    job.csv     job_name, user_id, model, gmt_job_submitted, gmt_job_running, gmt_job_finished, gmt_job_stopped
    worker.csv  job_name, worker_name, RES
    topo.csv    ip, DSW, PSW, ASW

Times are local and in whole minutes, as 2023/7/15 02:19; where there is no `gmt_job_finished`, `gmt_job_stopped` is the
end. `RES` is a JSON object with what a worker asks for; its GPUs are under `nvidia.com/gpu`. A job's GPUs are those of
all its workers, each name once: a worker that was started again is listed again. In topo.csv a host is below the
access switch ASW, that below the pod switch PSW, and that below the core DSW; ASW and PSW are numbered anew within what
is above them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mltcp.core.errors import UsageError, shown
from placement.model.table_reader import MOST, Columns, Field, Record, Source, fault, read_rows
from placement.traces.recorded_trace import (
    RecordedJob,
    RecordedTrace,
    Run,
    beside,
    entry_of,
    is_unknown,
    moment_ns,
    packed_or_not,
    recorded_trace,
)
from placement.traces.trace import JobSieve

FILES = ("job.csv", "worker.csv")
JOB_COLUMNS = ("job_name", "model", "gmt_job_submitted", "gmt_job_running", "gmt_job_finished")
WORKER_COLUMNS = ("job_name", "worker_name", "RES")
TOPOLOGY_COLUMNS = ("ip", "DSW", "PSW", "ASW")

_STOPPED, _USER, _GPU = "gmt_job_stopped", "user_id", "/gpu"


def format_of(record: Record) -> str | None:
    """lingjun for a table of jobs or workers that begins with this record; None for another."""
    return "lingjun" if _is(record, JOB_COLUMNS) or _is(record, WORKER_COLUMNS) else None


def _is(record: Record, columns: tuple[str, ...]) -> bool:
    return {name.strip() for name in record.fields}.issuperset(columns)


def parse(jobs: Source, workers: Source) -> RecordedTrace:
    """Read a trace.

    Jobs are left out, and counted in `Trace.left_out`, that have no workers, had no GPUs, were never submitted, never
    started, have no end, ended before they started, started more than a minute before they were submitted, or are
    listed before; those of which a line, or one of a worker of theirs, cannot be read; and the jobs of workers that the
    table of jobs does not list.

    Raises:
        UsageError: a column is missing, or no job is left.
    """
    sieve = JobSieve()
    gpus_of = _gpus_of(workers, sieve)
    records = jobs.records()
    columns = Columns.of(next(records), needed=JOB_COLUMNS)
    kept, listed = [], set[str]()
    for record in records:
        with sieve.faults():
            fields = columns.fields(record)
            name = fields["job_name"].word()
            listed.add(name)
            if not sieve.is_new(name):
                continue
            entry = _entry(name, fields, gpus_of.get(name))
            if isinstance(entry, str):
                sieve.leave_out(entry)
            else:
                kept.append(entry)
    sieve.leave_out("not in the job table", sum(name not in listed for name in gpus_of))
    return recorded_trace(jobs, kept, sieve)


def load(path: Path, source: Source | None = None) -> RecordedTrace:
    """Read the two tables in a folder, or the table at `path` and the other one beside it.

    The other's name is the same with "worker" for "job", or "job" for "worker".

    Args:
        path: the folder, or one of the tables.
        source: what `path` holds, if it was read before.

    Raises:
        UsageError: as `parse`; and a table is missing, or the other's name cannot be told.
    """
    if path.is_dir():
        jobs, workers = (Source.load(packed_or_not(path / table)) for table in FILES)
        return parse(jobs, workers)
    source = source or Source.load(path)
    if _is(next(source.records()), WORKER_COLUMNS):
        return parse(Source.load(beside(path, "worker", "job")), source)
    return parse(source, Source.load(beside(path, "job", "worker")))


def _entry(name: str, fields: Mapping[str, Field], gpus: int | UsageError | None) -> RecordedJob | str:
    if gpus is None:
        return "no workers"
    if isinstance(gpus, UsageError):
        raise gpus
    ends = [fields[each] for each in ("gmt_job_finished", _STOPPED) if each in fields]
    ended_ns = next((at_ns for at_ns in map(moment_ns, ends) if at_ns is not None), None)
    run = Run(moment_ns(fields["gmt_job_submitted"]), moment_ns(fields["gmt_job_running"]), ended_ns)
    user = fields[_USER].text.strip() if _USER in fields else ""
    model = "" if is_unknown(fields["model"]) else fields["model"].word()
    return entry_of(name, fields["job_name"].place, gpus, run, user, model)


def _gpus_of(source: Source, sieve: JobSieve) -> dict[str, int | UsageError]:
    """The GPUs of each job, or the error of a worker of it."""
    found: dict[str, int | UsageError] = {}
    listed: set[tuple[str, str]] = set()
    records = source.records()
    columns = Columns.of(next(records), needed=WORKER_COLUMNS)
    for record in records:
        with sieve.faults():
            fields = columns.fields(record)
            job, worker = fields["job_name"].word(), fields["worker_name"].word()
            if (job, worker) in listed:
                continue
            listed.add((job, worker))
            before, more = found.get(job, 0), _gpus(fields["RES"])
            if not isinstance(before, UsageError):
                found[job] = more if isinstance(more, UsageError) else before + more
    return found


def _gpus(field: Field) -> int | UsageError:
    """The GPUs of a worker, or the error that its job's line tells, if there is one."""
    if is_unknown(field):
        return 0
    try:
        asked: Any = json.loads(field.text)
        if not isinstance(asked, dict):
            raise ValueError
        counts = [int(str(count)) for name, count in asked.items() if name.endswith(_GPU)]
        if not all(0 <= count <= MOST for count in counts):
            raise ValueError
    except (ValueError, RecursionError):
        return field.error(
            f"{shown(field.text.strip())} is none", 'a JSON object such as {"nvidia.com/gpu": "8"}'
        )
    return sum(counts)


# -- topology ----------------------------------------------------------------------------------------------------------


def switches_above(path: Path) -> dict[str, tuple[str, str, str]]:
    """Of each host of topo.csv the switches above it, the access switch first, each named with those above it.

    A host that is listed again has to be at the same place.

    Raises:
        UsageError: it cannot be read, a column is missing, or a host is at two places.
    """
    found: dict[str, tuple[str, str, str]] = {}
    for fields in read_rows(path, TOPOLOGY_COLUMNS):
        host, (core, pod, access) = (
            fields["ip"].word(),
            (fields[each].word() for each in TOPOLOGY_COLUMNS[1:]),
        )
        above = (f"{core}/{pod}/{access}", f"{core}/{pod}", core)
        if found.setdefault(host, above) != above:
            reason = f"{shown(host)} is below {found[host][0]} and {above[0]}"
            raise fault(fields["ip"].place, "ip", reason, "each host at one place")
    if not found:
        raise UsageError(f"{path}: expected hosts, got none")
    return found
