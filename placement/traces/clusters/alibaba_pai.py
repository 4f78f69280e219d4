"""The GPU trace of Alibaba's PAI, July and August 2020: `cluster-trace-gpu-v2020` of github.com/alibaba/clusterdata.

From "MLaaS in the Wild: Workload Analysis and Scheduling in Large-Scale Heterogeneous GPU Clusters" (Weng et al.,
NSDI 2022). Two of its tables are read, which are comma-separated values without names of columns:

    pai_job_table.csv   job_name,inst_id,user,status,start_time,end_time
    pai_task_table.csv  job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type

Copies that people keep may have a first line with these names, in any order and with others between them, a number of
the line before the first field, as pandas writes it, and be packed by gzip.

Times are seconds since an unknown moment; an empty one, nan, or 0, is unknown. A task has `inst_num` instances, each
with `plan_gpu` percent of a GPU: as GPUs are not divided here, each instance gets that many rounded up to whole ones.
A job's GPUs are those of all its tasks; its arrival is the `start_time` of the job table, which is when it was
submitted; its duration is from the first start to the last end of its tasks that have GPUs. Whether it terminated well
or failed makes no difference: it had its GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mltcp.core.errors import UsageError, shown
from placement.model.table_reader import MOST, MOST_TEXT, Columns, Field, Record, Source, fault
from placement.traces.recorded_trace import (
    RecordedJob,
    RecordedTrace,
    Run,
    beside,
    entry_of,
    is_unknown,
    packed_or_not,
    recorded_trace,
    seconds_ns,
)
from placement.traces.trace import JobSieve

JOB_COLUMNS = ("job_name", "inst_id", "user", "status", "start_time", "end_time")
TASK_COLUMNS = (
    *("job_name", "task_name", "inst_num", "status", "start_time", "end_time"),
    *("plan_cpu", "plan_mem", "plan_gpu", "gpu_type"),
)
STATUSES = ("Running", "Terminated", "Failed", "Waiting")
JOB_TABLE = "pai_job_table.csv"
TASK_TABLE = "pai_task_table.csv"
FILES = (JOB_TABLE, TASK_TABLE)


@dataclass(frozen=True)
class _Tasks:
    """The tasks of a job: whole GPUs, and the first start and last end of those with GPUs (None: one is unknown).

    With a `fault`, one of them cannot be read.
    """

    gpus: int
    begin_ns: int | None
    end_ns: int | None
    fault: UsageError | None = None

    def with_more(self, other: _Tasks) -> _Tasks:
        if self.fault or other.fault:
            return self if self.fault else other
        if not (self.gpus and other.gpus):
            return self if self.gpus else other
        begins, ends = (self.begin_ns, other.begin_ns), (self.end_ns, other.end_ns)
        return _Tasks(
            self.gpus + other.gpus,
            None if None in begins else min(each for each in begins if each is not None),
            None if None in ends else max(each for each in ends if each is not None),
        )


def parse(jobs: Source, tasks: Source) -> RecordedTrace:
    """Read a trace.

    Jobs are left out, and counted in `Trace.left_out`, that were never submitted, never started, have no end, ended
    before they started, started more than a minute before they were submitted, have no tasks or no GPUs, or are listed
    before; those of which a line, or one of a task of theirs, has too few or too many fields or a field that is no
    number, negative or too fine; and the jobs of tasks that the job table does not list. A task that is listed again
    counts once.

    Raises:
        UsageError: no job is left.
    """
    sieve = JobSieve()
    tasks_of = _tasks(tasks, sieve)
    kept: list[RecordedJob] = []
    listed: set[str] = set()
    for record, columns in _records(jobs, JOB_COLUMNS):
        with sieve.faults():
            fields = columns.fields(record)
            name = fields["job_name"].word()
            listed.add(name)
            if sieve.is_new(name):
                entry = _entry(name, fields, tasks_of.get(name))
                if isinstance(entry, RecordedJob):
                    kept.append(entry)
                else:
                    sieve.leave_out(entry)
    sieve.leave_out("not in the job table", sum(name not in listed for name in tasks_of))
    return recorded_trace(jobs, kept, sieve)


def table_of(record: Record) -> str | None:
    """The table whose first record this is: JOB_TABLE, TASK_TABLE, or None."""
    for table, columns in {JOB_TABLE: JOB_COLUMNS, TASK_TABLE: TASK_COLUMNS}.items():
        if set(columns) <= {name.strip() for name in record.fields}:
            return table
        before = len(record.fields) - len(columns)  # the number of the line, if any
        if before in (0, 1) and record.fields[before + 3].strip() in STATUSES:
            return table
    return None


def load(path: Path, source: Source | None = None) -> RecordedTrace:
    """Read the two tables in a directory, or the table at `path` and the other one beside it.

    The other's name is the same with "task" for "job", or "job" for "task".

    Args:
        path: the directory, or one of the tables.
        source: what `path` holds, if it was read before.

    Raises:
        UsageError: as `parse`; and neither table is at `path`, or the other's name cannot be told.
    """
    if path.is_dir():
        tables = [Source.load(packed_or_not(path / table)) for table in FILES]
        return parse(*tables)
    source = source or Source.load(path)
    first = next(source.records())
    table = table_of(first)
    if table is None:
        reason = f"{len(first.fields)} fields"
        expected = f"{len(JOB_COLUMNS)} of {JOB_TABLE} or {len(TASK_COLUMNS)} of {TASK_TABLE}"
        raise fault(first.place, "line", reason, expected)
    if table == JOB_TABLE:
        return parse(source, Source.load(beside(path, "job", "task")))
    return parse(Source.load(beside(path, "task", "job")), source)


def _tasks(source: Source, sieve: JobSieve) -> dict[str, _Tasks]:
    tasks_of: dict[str, _Tasks] = {}
    listed: set[tuple[str, str]] = set()
    for record, columns in _records(source, TASK_COLUMNS):
        with sieve.faults():
            fields = columns.fields(record)
            name, task_name = fields["job_name"].word(), fields["task_name"].word()
            if (name, task_name) not in listed:
                listed.add((name, task_name))
                tasks_of[name] = tasks_of.get(name, _Tasks(0, None, None)).with_more(_task(fields))
    return tasks_of


def _task(fields: Mapping[str, Field]) -> _Tasks:
    try:
        return _Tasks(_gpus(fields), _time_ns(fields["start_time"]), _time_ns(fields["end_time"]))
    except UsageError as error:
        return _Tasks(0, None, None, error)  # which its job's line tells, if there is one


def _entry(name: str, fields: Mapping[str, Field], tasks: _Tasks | None) -> RecordedJob | str:
    """The job, or the reason why it is left out."""
    submitted_ns = _time_ns(fields["start_time"])
    if tasks is None:
        return "no tasks"
    if tasks.fault is not None:
        raise tasks.fault
    run = Run(submitted_ns, tasks.begin_ns, tasks.end_ns)
    return entry_of(name, fields["job_name"].place, tasks.gpus, run, fields["user"].text.strip())


def _records(source: Source, expected: tuple[str, ...]) -> Iterator[tuple[Record, Columns]]:
    """The records below any names of columns, each with the columns of the table."""
    records = source.records()
    first = next(records)
    names = tuple(name.strip() for name in first.fields)
    if set(expected) <= set(names):
        columns = Columns(first.place, names)
    else:
        numbered = len(names) == len(expected) + 1 and names[0].isdecimal()
        columns = Columns(first.place, ("", *expected) if numbered else expected)
        yield first, columns
    for record in records:
        yield record, columns


def _time_ns(field: Field) -> int | None:
    return seconds_ns(field) or None


def _gpus(fields: Mapping[str, Field]) -> int:
    if is_unknown(fields["plan_gpu"]) or is_unknown(fields["inst_num"]):
        return 0
    expected = f"percent from 0 to {MOST_TEXT}"
    percent = fields["plan_gpu"].number(expected)
    if not 0 <= percent <= MOST:
        raise fields["plan_gpu"].error(f"{shown(fields['plan_gpu'].text)} is out of range", expected)
    return fields["inst_num"].whole() * math.ceil(percent / 100)
