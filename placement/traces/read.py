"""Read a trace of any of the formats."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mltcp.core.errors import UsageError
from placement.model.job import Model
from placement.model.table_reader import Source
from placement.traces import alibaba_pai, csv, philly
from placement.traces.job_trace import PUBLISHED, JobTrace

FORMATS = ("csv", "philly", "alibaba-pai")
"""The formats; each is described in the module of its name."""


def read(path: Path, format: str | None = None, models: Mapping[str, Model] = PUBLISHED) -> JobTrace:
    """Read a trace.

    Args:
        path: the file; for alibaba-pai, one of its two tables, or the directory that has both.
        format: one of FORMATS, or None to tell it from the content: JSON is philly, a table of the PAI trace is
            alibaba-pai, and all else is csv.
        models: the networks known; in the formats that name none, each job trains one of these.

    Raises:
        UsageError: an unknown format, or whatever is wrong with the file: "file:line: field: reason; expected what".
    """
    if format is not None and format not in FORMATS:
        raise UsageError(f"format: {format!r} is unknown; expected {', '.join(FORMATS)}")
    if format in (None, "alibaba-pai") and path.is_dir():
        return alibaba_pai.load(path, models=models)
    source = Source.load(path)
    match format or guess(source):
        case "philly":
            return philly.parse(source, models)
        case "alibaba-pai":
            return alibaba_pai.load(path, source, models)
        case _:
            return csv.parse(source, models)


def guess(source: Source) -> str:
    """The format of this content, one of FORMATS.

    Raises:
        UsageError: the first line is none of comma-separated values.
    """
    if source.text.lstrip()[0] in "[{":
        return "philly"
    is_pai = alibaba_pai.table_of(next(source.records())) is not None
    return "alibaba-pai" if is_pai else "csv"
