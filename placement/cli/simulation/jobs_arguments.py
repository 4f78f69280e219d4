"""Arguments that the workloads of ``mltcp-placement jobs`` share."""

from __future__ import annotations

import os
import re
from fractions import Fraction

from mltcp.core.errors import UsageError, shown

_MOST_SEEDS = 100_000
_NUMBER = re.compile(r"\d{1,20}(\.\d{1,20})?([eE]\+?\d{1,2})?")
_SEEDS = re.compile(r"(\d{1,9})(?::(\d{1,9}))?")


def given_or(given: str | None, default: str) -> str:
    """The argument, even if it is empty; the default where it was not given."""
    return default if given is None else given


def parse_number(given: str, field: str, most: int) -> Fraction:
    """An exact number from 0 to `most`.

    Raises:
        UsageError: it is none.
    """
    if not _NUMBER.fullmatch(given.strip()) or (value := Fraction(given.strip())) > most:
        raise UsageError(f"{field}: expected a number from 0 to {most}, got {shown(given)}")
    return value


def parse_seeds(given: str) -> tuple[int, ...]:
    """The seeds of a number or of a range A:B, from A up to B.

    Raises:
        UsageError: it is neither.
    """
    match = _SEEDS.fullmatch(given)
    if match is None:
        raise UsageError(f"--seeds: expected a number or a range such as 0:100, got {shown(given)}")
    first = int(match[1])
    last = first + 1 if match[2] is None else int(match[2])
    if not 0 < last - first <= _MOST_SEEDS:
        raise UsageError(f"--seeds: expected 1 to {_MOST_SEEDS} seeds, got {shown(given)}")
    return tuple(range(first, last))


def parse_processes(given: int | None) -> int:
    """The number of processes; without one, that of the cores.

    Raises:
        UsageError: less than 1.
    """
    if given is None:
        return len(os.sched_getaffinity(0))
    if given < 1:
        raise UsageError(f"--processes: expected 1 or more, got {given}")
    return given
