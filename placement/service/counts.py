"""What the service counts for its metrics: decisions, their times and scores, refused calls, and jobs by stage."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

DECISION_BOUNDS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
SCORE_BOUNDS = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999, 1.0)


class Histogram:
    """Values counted by the first bound that they do not exceed, as Prometheus has them.

    Args:
        bounds: ascending.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def buckets(self) -> list[tuple[str, int]]:
        """Of each bound as text, ``+Inf`` in the end, the number of values up to it."""
        found, total = [], 0
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            found.append((bound, total))
        return found


@dataclass
class ServiceCounts:
    """Counts since the service was started, of a fixed number of kinds.

    Attributes:
        stages: jobs by the name of their stage; of those that are over, only those that ended since.
        refused: calls that were refused, by reason.
        decision_s: seconds that a decision took.
        scores: compatibility scores of the links that a decision puts jobs on.
        link_scores: by link, the last one.
        failed_decisions: decisions that an error has prevented.
        delays: corrective delays sent to agents.
    """

    stages: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    decision_s: Histogram = field(default_factory=lambda: Histogram(DECISION_BOUNDS_S))
    scores: Histogram = field(default_factory=lambda: Histogram(SCORE_BOUNDS))
    link_scores: dict[str, float] = field(default_factory=dict)
    failed_decisions: int = 0
    delays: int = 0

    def passed(self, before: str | None, after: str) -> None:
        """Count a job's change of stage; None before: it is new."""
        if before is not None:
            self.stages[before] -= 1
        self.stages[after] += 1

    def decided(self, took_ns: int, scores: Mapping[str, float] | None = None) -> None:
        """Count a decision, and the scores of the links that it puts jobs on."""
        self.decision_s.add(took_ns / 1e9)
        for link, score in (scores or {}).items():
            self.scores.add(score)
            self.link_scores[link] = score

    def keep_links(self, links: Iterable[str]) -> None:
        """Forget the scores of all other links, which are not shared any more."""
        self.link_scores = {link: self.link_scores[link] for link in links if link in self.link_scores}
