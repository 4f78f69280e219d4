"""What a start costs, and how long steps take beside the model: by ``mltcp-bench cost restart`` or an earlier run."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from statistics import fmean
from typing import Any

from mltcp.core.errors import UsageError, shown
from mltcp.core.quantities import NS_PER_S, parse_number
from placement.simulator.rates.run import StartCost

_FIELD = "--restart-cost"


@dataclass(frozen=True)
class MeasuredCosts:
    """The costs of a prediction.

    Attributes:
        start: of every start with the end that follows, the first one included.
        pace: how many times as long as the throughput model says steps take.
    """

    start: StartCost
    pace: Fraction = Fraction(1)

    @classmethod
    def through(cls, points: Sequence[tuple[float, float]], pace: Fraction = Fraction(1)) -> MeasuredCosts:
        """The line of least squares through measured costs: ranks and seconds; a slope below 0 is one of 0."""
        mean_x, mean_y = fmean(x for x, _ in points), fmean(y for _, y in points)
        spread = sum((x - mean_x) ** 2 for x, _ in points)
        slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0
        slope = min(max(slope, 0.0), mean_y / mean_x)
        fixed_ns, per_gpu_ns = round((mean_y - slope * mean_x) * NS_PER_S), round(slope * NS_PER_S)
        return cls(StartCost(fixed_ns, per_gpu_ns, first=True), pace)

    def document(self) -> dict[str, float]:
        """As `parse_costs` reads it from a result of whole jobs."""
        return {
            "start_fixed_s": self.start.fixed_ns / NS_PER_S,
            "start_per_gpu_s": self.start.per_gpu_ns / NS_PER_S,
            "pace": float(self.pace),
        }


def parse_costs(text: str) -> MeasuredCosts:
    """Seconds of every start, or a file: of ``cost restart``, or the result of a comparison of whole jobs.

    Raises:
        UsageError: it is none of these.
    """
    try:
        seconds = parse_number(text, field=_FIELD, lowest=0)
    except UsageError:
        return _read(Path(text))
    return MeasuredCosts(StartCost(round(seconds * NS_PER_S), 0, first=True))


def _read(path: Path) -> MeasuredCosts:
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
        if "measured" in document:
            return _of_run(document["measured"])
        points = [_point(row) for row in document["results"] if "ranks" in row and "end_s" in row]
        return MeasuredCosts.through(points)
    except (KeyError, TypeError, ValueError, OverflowError):
        raise UsageError(
            f"{_FIELD}: expected a result of mltcp-bench cost restart with stops, got {shown(str(path))}"
        ) from None


def _of_run(found: Any) -> MeasuredCosts:
    fixed_s, per_gpu_s, pace = (float(found[name]) for name in ("start_fixed_s", "start_per_gpu_s", "pace"))
    if not (0 <= fixed_s < math.inf and 0 <= per_gpu_s < math.inf and 0 < pace < math.inf):
        raise ValueError(f"not the costs of a run: {found}")
    start = StartCost(round(fixed_s * NS_PER_S), round(per_gpu_s * NS_PER_S), first=True)
    return MeasuredCosts(start, Fraction(pace))


def _point(row: Any) -> tuple[float, float]:
    """Ranks and seconds; ValueError if they cannot be those of a start."""
    ranks, seconds = float(row["ranks"]), float(row["start_s"]) + float(row["end_s"])
    if not (1 <= ranks < math.inf and 0 <= seconds < math.inf):
        raise ValueError(f"not a start: {row}")
    return ranks, seconds
