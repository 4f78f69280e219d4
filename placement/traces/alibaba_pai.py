"""The GPU trace of Alibaba's PAI, July and August 2020: `cluster-trace-gpu-v2020` of github.com/alibaba/clusterdata.

From "MLaaS in the Wild: Workload Analysis and Scheduling in Large-Scale Heterogeneous GPU Clusters" (Weng et al.,
NSDI 2022). Two of its tables are read, which are comma-separated values without names of columns (a first line with
exactly these names is passed over):

    pai_job_table.csv   job_name,inst_id,user,status,start_time,end_time
    pai_task_table.csv  job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type

Times are seconds since an unknown moment; an empty one, or 0, is unknown. A task has `inst_num` instances, each with
`plan_gpu` percent of a GPU: as GPUs are not divided here, each instance gets that many rounded up to whole ones. A
job's GPUs are those of all its tasks; its arrival is the `start_time` of the job table, which is when it was
submitted; its duration is from the first start to the last end of its tasks that have GPUs. Whether it terminated
well or failed makes no difference: it had its GPUs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mltcp.core.errors import UsageError
from placement.model.job import Model
from placement.traces import entries
from placement.traces.entries import RecordedJob
from placement.traces.fields import MOST, MOST_TEXT, Field, Once, fault, shown
from placement.traces.models import PUBLISHED
from placement.traces.source import Record, Source
from placement.traces.trace import Trace

JOB_COLUMNS = ("job_name", "inst_id", "user", "status", "start_time", "end_time")
TASK_COLUMNS = (
    *("job_name", "task_name", "inst_num", "status", "start_time", "end_time"),
    *("plan_cpu", "plan_mem", "plan_gpu", "gpu_type"),
)
STATUSES = ("Running", "Terminated", "Failed", "Waiting")
JOB_TABLE = "pai_job_table.csv"
TASK_TABLE = "pai_task_table.csv"

_NS_PER_S = 10**9


@dataclass(frozen=True)
class _Tasks:
    """The tasks of a job: whole GPUs, and the first start and last end of those with GPUs (None: one is unknown)."""

    gpus: int
    begin_ns: int | None
    end_ns: int | None

    def with_more(self, other: _Tasks) -> _Tasks:
        if not (self.gpus and other.gpus):
            return self if self.gpus else other
        begins, ends = (self.begin_ns, other.begin_ns), (self.end_ns, other.end_ns)
        return _Tasks(
            self.gpus + other.gpus,
            None if None in begins else min(each for each in begins if each is not None),
            None if None in ends else max(each for each in ends if each is not None),
        )


def parse(jobs: Source, tasks: Source, models: Mapping[str, Model] = PUBLISHED) -> Trace:
    """Read a trace; what each job trains is chosen by its name, and how long by its duration (see `entries`).

    Jobs are left out, and counted in `Trace.skipped`, that were never submitted, never started, have no end, ended
    before they started, have no tasks or no GPUs; and the jobs of tasks that the job table does not list.

    Raises:
        UsageError: a line has too few or too many fields; a field is no number, negative or too fine; a job, or a
            task of a job, is there twice; no job is left.
    """
    tasks_of = _tasks(tasks)
    skipped: Counter[str] = Counter()
    kept: list[RecordedJob] = []
    once = Once()
    for fields in _rows(jobs, JOB_COLUMNS):
        name, place = _name(fields), fields["job_name"].place
        once.add(name, place, "job_name")
        entry = _entry(name, place, _time_ns(fields["start_time"]), tasks_of.get(name))
        if isinstance(entry, RecordedJob):
            kept.append(entry)
        else:
            skipped[entry] += 1
    skipped["not in the job table"] += sum(name not in once for name in tasks_of)
    return entries.trace(jobs, kept, models, {key: count for key, count in skipped.items() if count})


def table_of(record: Record) -> str | None:
    """The table whose first record this is: JOB_TABLE, TASK_TABLE, or None."""
    for table, columns in {JOB_TABLE: JOB_COLUMNS, TASK_TABLE: TASK_COLUMNS}.items():
        is_header = record.fields == columns
        if is_header or (len(record.fields) == len(columns) and record.fields[3] in STATUSES):
            return table
    return None


def load(path: Path, source: Source | None = None, models: Mapping[str, Model] = PUBLISHED) -> Trace:
    """Read the two tables in a directory, or the table at `path` and the other one beside it.

    The other's name is the same with "task" for "job", or "job" for "task".

    Args:
        path: the directory, or one of the tables.
        source: what `path` holds, if it was read before.
        models: those of which the jobs train one.

    Raises:
        UsageError: as `parse`; and neither table is at `path`, or the other's name cannot be told.
    """
    if path.is_dir():
        return parse(Source.load(path / JOB_TABLE), Source.load(path / TASK_TABLE), models)
    source = source or Source.load(path)
    first = next(source.records())
    table = table_of(first)
    if table is None:
        reason = f"{len(first.fields)} fields"
        expected = f"{len(JOB_COLUMNS)} of {JOB_TABLE} or {len(TASK_COLUMNS)} of {TASK_TABLE}"
        raise fault(first.place, "line", reason, expected)
    other = Source.load(_beside(path, table))
    return parse(source, other, models) if table == JOB_TABLE else parse(other, source, models)


def _beside(path: Path, table: str) -> Path:
    this, that = ("job", "task") if table == JOB_TABLE else ("task", "job")
    if this not in path.name:
        reason = f"its table of {that}s cannot be told"
        raise UsageError(f"{path}: file: {reason}; expected a name with {this!r} in it")
    return path.with_name(path.name.replace(this, that))


def _tasks(source: Source) -> dict[str, _Tasks]:
    tasks_of: dict[str, _Tasks] = {}
    once = Once()
    for fields in _rows(source, TASK_COLUMNS):
        name = _name(fields)
        once.add((name, fields["task_name"].word()), fields["task_name"].place, "task_name")
        task = _Tasks(_gpus(fields), _time_ns(fields["start_time"]), _time_ns(fields["end_time"]))
        tasks_of[name] = tasks_of.get(name, _Tasks(0, None, None)).with_more(task)
    return tasks_of


def _entry(name: str, place: str, arrival_ns: int | None, tasks: _Tasks | None) -> RecordedJob | str:
    """The job, or the reason why it is left out."""
    if tasks is None:
        return "no tasks"
    if not tasks.gpus:
        return "no GPUs"
    if arrival_ns is None:
        return "never submitted"
    if tasks.begin_ns is None:
        return "never started"
    if tasks.end_ns is None:
        return "no end"
    if tasks.end_ns < tasks.begin_ns:
        return "ended before it started"
    return RecordedJob(name, arrival_ns, tasks.gpus, tasks.end_ns - tasks.begin_ns, place)


def _rows(source: Source, columns: tuple[str, ...]) -> Iterator[Mapping[str, Field]]:
    for number, record in enumerate(source.records()):
        if number == 0 and record.fields == columns:
            continue
        if len(record.fields) != len(columns):
            raise fault(record.place, "line", f"{len(record.fields)} fields", f"{len(columns)}")
        named = zip(columns, record.fields, strict=True)
        yield {name: Field(record.place, name, text) for name, text in named}


def _name(fields: Mapping[str, Field]) -> str:
    return fields["job_name"].word()


def _time_ns(field: Field) -> int | None:
    if not field.text.strip():
        return None
    return field.units(_NS_PER_S, "ns") or None


def _gpus(fields: Mapping[str, Field]) -> int:
    if not fields["plan_gpu"].text.strip() or not fields["inst_num"].text.strip():
        return 0
    expected = f"percent from 0 to {MOST_TEXT}"
    percent = fields["plan_gpu"].number(expected)
    if not 0 <= percent <= MOST:
        raise fields["plan_gpu"].error(f"{shown(fields['plan_gpu'].text)} is out of range", expected)
    return fields["inst_num"].whole() * math.ceil(percent / 100)
