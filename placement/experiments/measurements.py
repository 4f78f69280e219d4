"""Measurements of concurrent all-reduces: what eq. 5 of the Ada-SRSF paper is fitted to, and the CSV that holds them.

The format is that of the paper's authors: a header, then one line a measurement with the number of all-reduces that
ran at the same time, the size of each in bytes, and their mean time in microseconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mltcp.core.bounded_files import MOST_TABLE_BYTES, read_bounded
from mltcp.core.errors import UsageError

HEADER = "job_num,msg_size,avg_latency"
_FIELDS = HEADER.split(",")
MAX_JOBS, MAX_SIZE_BYTES = 10**6, 10**15
MIN_LATENCY_US, MAX_LATENCY_US = 1e-6, 1e15
_WHOLE = re.compile(r"[0-9]{1,16}")
_DECIMAL = re.compile(r"[0-9]{1,16}(\.[0-9]{0,30})?([eE][+-]?[0-9]{1,2})?")


@dataclass(frozen=True)
class Measurement:
    """The mean time of an all-reduce of `size_bytes` while `jobs` of them, itself included, share a link.

    Attributes:
        jobs: k of eq. 5.
        size_bytes: M of eq. 5.
        latency_us: T of eq. 5, in microseconds.
    """

    jobs: int
    size_bytes: int
    latency_us: float


def read_measurements(path: Path | str) -> list[Measurement]:
    """The measurements in a CSV file, in its order.

    Raises:
        UsageError: the file cannot be read, holds none, or a line is malformed: 'file:line: field: reason'.
    """
    lines = _lines(Path(path))
    if not lines or lines[0] != HEADER:
        found = lines[0][:80] if lines else ""
        raise UsageError(f"{path}:1: header: expected {HEADER!r}, got {found!r}")
    if len(lines) == 1:
        raise UsageError(f"{path}:2: job_num: the file ends here: at least one measurement is needed")
    return [_measurement(f"{path}:{number}", line) for number, line in enumerate(lines[1:], start=2)]


def as_csv(measurements: Iterable[Measurement]) -> str:
    """The text of a file that `read_measurements` reads."""
    lines = (f"{each.jobs},{each.size_bytes},{each.latency_us:.6f}" for each in measurements)
    return "\n".join([HEADER, *lines, ""])


def _lines(path: Path) -> list[str]:
    try:
        return read_bounded(path, MOST_TABLE_BYTES).decode("utf-8-sig").splitlines()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: expected a CSV file in UTF-8, got other bytes") from None


def _measurement(where: str, line: str) -> Measurement:
    fields = [field.strip() for field in line.split(",")]
    if len(fields) != len(_FIELDS):
        absent = _FIELDS[len(fields)] if line.strip() and len(fields) < len(_FIELDS) else _FIELDS[0]
        reason = f"expected {len(_FIELDS)} fields, got {len(fields) if line.strip() else 0}"
        raise UsageError(f"{where}: {absent}: {reason}")
    jobs, size, latency = fields
    return Measurement(
        _whole(f"{where}: job_num", jobs, MAX_JOBS),
        _whole(f"{where}: msg_size", size, MAX_SIZE_BYTES),
        _decimal(f"{where}: avg_latency", latency),
    )


def _whole(where: str, text: str, most: int) -> int:
    if not _WHOLE.fullmatch(text) or not 1 <= int(text) <= most:
        raise UsageError(f"{where}: expected a whole number from 1 to {most}, got {text[:40]!r}")
    return int(text)


def _decimal(where: str, text: str) -> float:
    if not _DECIMAL.fullmatch(text) or not MIN_LATENCY_US <= float(text) <= MAX_LATENCY_US:
        expected = f"a number of microseconds from {MIN_LATENCY_US:g} to {MAX_LATENCY_US:g}"
        raise UsageError(f"{where}: expected {expected}, got {text[:40]!r}")
    return float(text)
