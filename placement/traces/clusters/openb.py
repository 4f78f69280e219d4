"""Alibaba's GPU trace of 2023: `cluster-trace-gpu-v2023` of github.com/alibaba/clusterdata, called openb.

From "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent" (Weng et al., ATC
2023). A table `openb_pod_list_*.csv` has pods, each of which is a job here:

    name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time

Times are seconds since an unknown moment, from 0 on. A pod with `num_gpu` 1 may ask for `gpu_milli` thousandths of that
GPU only: as GPUs are not divided here it gets all of it. `openb_node_list_*.csv` lists the nodes, of 0 to 8 GPUs, and
says nothing of the network; it is not read.
"""

from __future__ import annotations

from collections.abc import Mapping

from placement.model.table_reader import Field, Record, Source
from placement.traces.recorded_trace import (
    RecordedJob,
    RecordedTrace,
    Run,
    entry_of,
    read_entries,
    seconds_ns,
    whole_gpus,
)

FILES = ("openb_pod_list_default.csv",)
COLUMNS = ("name", "num_gpu", "gpu_milli", "creation_time", "deletion_time", "scheduled_time")


def format_of(record: Record) -> str | None:
    """openb for a table that begins with this record; None for another."""
    return "openb" if {name.strip() for name in record.fields}.issuperset(COLUMNS) else None


def parse(source: Source) -> RecordedTrace:
    """Read a trace.

    Pods are left out, and counted in `Trace.left_out`, that had no GPUs, were never created, never scheduled or never
    deleted, were deleted before they were scheduled, or are listed before; and lines that cannot be read.

    Raises:
        UsageError: a column is missing, or no job is left.
    """
    return read_entries(source, COLUMNS, _entry)


def _entry(fields: Mapping[str, Field]) -> RecordedJob | str:
    name = fields["name"]
    run = Run(*(seconds_ns(fields[each]) for each in ("creation_time", "scheduled_time", "deletion_time")))
    gpus = whole_gpus(fields["num_gpu"]) if whole_gpus(fields["gpu_milli"]) else 0
    return entry_of(name.word(), name.place, gpus, run)
