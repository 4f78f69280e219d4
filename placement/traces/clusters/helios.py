"""The traces of Helios and Acme, whose tables of jobs are alike.

Helios is SenseTime's (April to September 2020; "Characterization and Prediction of Deep Learning Workloads in
Large-Scale GPU Datacenters", Hu et al., SC 2021; github.com/S-Lab-System-Group/HeliosData): `cluster_log.csv` with

    job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue

Acme is Shanghai AI Laboratory's (March to August 2023; "Characterization of Large Language Model Development in the
Datacenter", Hu et al., NSDI 2024; github.com/InternLM/AcmeTrace): `trace_seren.csv` and `trace_kalos.csv` with

    job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time

and in Kalos also `fail_time` and `stop_time`, which stand for a missing end. Acme's times have a zone (+08:00 in Seren,
+00:00 in Kalos); Helios' are local, as written. A job's duration is from its start to its end: the column `duration` is
that in Helios and Seren, but in Kalos the time in the queue is part of it. Whether a job completed, failed or was
cancelled makes no difference: it had its GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping

from placement.model.table_reader import Field, Record, Source
from placement.traces.recorded_trace import (
    RecordedJob,
    RecordedTrace,
    Run,
    entry_of,
    moment_ns,
    read_entries,
    whole_gpus,
)

FILES = ("cluster_log.csv",)
"""Of a folder of Helios. Acme's has two clusters: there the file is named."""

COLUMNS = ("job_id", "user", "gpu_num", "submit_time", "start_time", "end_time")
"""Those that are read; `end_time` may be missing in a line where one of `LATER_ENDS` is not."""

LATER_ENDS = ("stop_time", "fail_time")


def format_of(record: Record) -> str | None:
    """The format of a table that begins with this record: helios, acme or None."""
    names = {name.strip() for name in record.fields}
    if not names.issuperset(COLUMNS):
        return None
    return "helios" if "vc" in names else "acme"


def parse(source: Source) -> RecordedTrace:
    """Read a trace.

    Jobs are left out, and counted in `Trace.left_out`, that had no GPUs, were never submitted, never started, have no
    end, ended before they started, started more than a minute before they were submitted, or are listed before; and
    lines with too few or too many fields, or with one that cannot be read.

    Raises:
        UsageError: a column is missing, or no job is left.
    """
    return read_entries(source, COLUMNS, _entry)


def _entry(fields: Mapping[str, Field]) -> RecordedJob | str:
    if not (gpus := whole_gpus(fields["gpu_num"])):
        return "no GPUs"  # more than half of all jobs
    name, ends = fields["job_id"], [fields["end_time"]]
    ends += [fields[each] for each in LATER_ENDS if each in fields]
    ended_ns = next((at_ns for at_ns in map(moment_ns, ends) if at_ns is not None), None)
    run = Run(moment_ns(fields["submit_time"]), moment_ns(fields["start_time"]), ended_ns)
    return entry_of(name.word(), name.place, gpus, run, fields["user"].text.strip())
