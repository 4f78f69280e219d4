"""The cost of a start as ``mltcp-bench cost restart -o FILE`` measured it, or as a number of seconds."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from mltcp.core.errors import UsageError, shown
from mltcp.core.quantities import NS_PER_S, parse_number
from placement.simulator.rates.run import StartCost

_FIELD = "--restart-cost"


def parse_start_cost(text: str) -> StartCost:
    """The cost of every start, the first one included: seconds, or a file with a measurement.

    Raises:
        UsageError: it is neither.
    """
    try:
        seconds = parse_number(text, field=_FIELD, lowest=0)
    except UsageError:
        return read_start_cost(Path(text))
    return StartCost(round(seconds * NS_PER_S), 0, first=True)


def read_start_cost(path: Path) -> StartCost:
    """The line through the measured costs by numbers of ranks.

    Raises:
        UsageError: the file cannot be read, or is no result of ``cost restart``.
    """
    try:
        document = json.loads(path.read_text())
    except OSError as error:
        raise UsageError(
            f"{_FIELD}: expected seconds, or the file of mltcp-bench cost restart -o, "
            f"got {shown(str(path))}: {error.strerror}"
        ) from None
    except ValueError as error:
        raise UsageError(f"{_FIELD}: {path}: {error}") from None
    try:
        points = [_point(row) for row in document["results"] if "ranks" in row and "end_s" in row]
    except (KeyError, TypeError, ValueError, OverflowError):
        points = []
    if not points:
        raise UsageError(
            f"{_FIELD}: expected a result of mltcp-bench cost restart with stops, got {shown(str(path))}"
        )
    return _line(points)


def _point(row: Any) -> tuple[float, float]:
    """Ranks and seconds; ValueError if they cannot be those of a start."""
    ranks, seconds = float(row["ranks"]), float(row["start_s"]) + float(row["end_s"])
    if not (1 <= ranks < math.inf and 0 <= seconds < math.inf):
        raise ValueError(f"not a start: {row}")
    return ranks, seconds


def _line(points: Sequence[tuple[float, float]]) -> StartCost:
    """Least squares; a slope below 0 is one of 0."""
    mean_x, mean_y = fmean(x for x, _ in points), fmean(y for _, y in points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0
    slope = min(max(slope, 0.0), mean_y / mean_x)
    return StartCost(round((mean_y - slope * mean_x) * NS_PER_S), round(slope * NS_PER_S), first=True)
