"""Read a trace of any of the formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from mltcp.core.errors import UsageError, shown
from placement.model.job import Model
from placement.model.table_reader import Source
from placement.traces import csv
from placement.traces.clusters import alibaba_pai, helios, lingjun, openb, philly
from placement.traces.job_trace import PUBLISHED, JobTrace, trained
from placement.traces.recorded_trace import WHOLE, RecordedTrace, TraceCut, packed_or_not

CSV, PHILLY, PAI = "csv", "philly", "alibaba-pai"

_Loader = Callable[[Path, Source | None], RecordedTrace]


def _one_file(parse: Callable[[Source], RecordedTrace], name: str) -> _Loader:
    """Reads a file, or that of this name in a folder, if what it holds was not read before."""

    def load(path: Path, source: Source | None) -> RecordedTrace:
        return parse(source or Source.load(packed_or_not(path / name) if path.is_dir() else path))

    return load


_CLUSTERS: Mapping[str, _Loader] = MappingProxyType(
    {
        PHILLY: _one_file(philly.parse, philly.FILES[0]),
        PAI: alibaba_pai.load,
        "helios": _one_file(helios.parse, helios.FILES[0]),
        "acme": _one_file(helios.parse, helios.FILES[0]),
        "lingjun": lingjun.load,
        "openb": _one_file(openb.parse, openb.FILES[0]),
    }
)

_FOLDERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        PHILLY: philly.FILES,
        PAI: alibaba_pai.FILES,
        "helios": helios.FILES,
        "lingjun": lingjun.FILES,
        "openb": openb.FILES,
    }
)
"""The files that a folder of each format has."""

FORMATS = (CSV, *_CLUSTERS)
"""The formats; each is described in the module of its name, that of acme in `clusters.helios`."""


@dataclass(frozen=True)
class TraceFile:
    """A file or folder with a trace.

    Attributes:
        path: of it.
        format: one of FORMATS.
        source: what it holds; None for a folder.
    """

    path: Path
    format: str
    source: Source | None

    @classmethod
    def open(cls, path: Path | str, format: str | None = None) -> TraceFile:
        """Find out the format.

        Args:
            path: a file, packed by gzip or not, or a folder; of a format with two tables, one of them is enough. It may
                have the format before it: ``helios:cluster_log.csv``.
            format: None to tell it from the path, or else from the content: JSON is philly, tables are told by the
                names of their columns, and one without those of a cluster is csv.

        Raises:
            UsageError: an unknown format, a file that cannot be read, or a folder without a trace.
        """
        before, colon, rest = str(path).partition(":")
        if format is None and colon and before in FORMATS:
            format, path = before, rest
        if format is not None and format not in FORMATS:
            raise UsageError(f"format: {shown(format)} is unknown; expected {', '.join(FORMATS)}")
        path = Path(path)
        if path.is_dir() and format != CSV:
            return cls(path, format or _of_folder(path), None)
        source = Source.load(path)
        return cls(path, format or guess(source), source)

    def recorded(self) -> RecordedTrace:
        """The jobs of a cluster's trace.

        Raises:
            UsageError: whatever is wrong with the file: "file:line: field: reason; expected what"; or it is csv.
        """
        if self.format == CSV:
            raise UsageError(f"{self.path}: expected a trace of {', '.join(_CLUSTERS)}, got csv")
        return _CLUSTERS[self.format](self.path, self.source)


def read(
    path: Path | str,
    format: str | None = None,
    models: Mapping[str, Model] = PUBLISHED,
    cut: TraceCut = WHOLE,
) -> JobTrace:
    """Read a trace.

    Args:
        path: the file; see `TraceFile.open`.
        format: one of FORMATS, or None to tell it.
        models: the networks known; in the formats that name none, each job trains one of these.
        cut: the part that is read; csv is read whole.

    Raises:
        UsageError: an unknown format, or whatever is wrong with the file: "file:line: field: reason; expected what".
    """
    file = TraceFile.open(path, format)
    if file.format != CSV:
        return trained(cut.of(file.recorded()), models)
    if cut != WHOLE:
        raise UsageError(
            f"{file.path}: from, hours, keep and scale: expected with a trace of a cluster, got csv"
        )
    assert file.source is not None, "only a folder has none"
    return csv.parse(file.source, models)


def guess(source: Source) -> str:
    """The format of this content, one of FORMATS.

    Raises:
        UsageError: the first line is none of comma-separated values.
    """
    if source.text.lstrip()[0] in "[{":
        return PHILLY
    first = next(source.records())
    for format_of in (helios.format_of, lingjun.format_of, openb.format_of):
        if (found := format_of(first)) is not None:
            return found
    return PAI if alibaba_pai.table_of(first) is not None else CSV


def _of_folder(path: Path) -> str:
    for format, files in _FOLDERS.items():
        if all(packed_or_not(path / file).exists() for file in files):
            return format
    known = "; ".join(f"{' and '.join(files)} ({format})" for format, files in _FOLDERS.items())
    raise UsageError(f"{path}: expected a folder with {known}")
