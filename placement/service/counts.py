"""What the service counts for its metrics: decisions, their times and scores, refused calls, and jobs by stage."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from placement.cassini.placement_selection import LinkScore

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
        link_scores: by link, the last one, with the jobs that it is of.
        failed_decisions: decisions that an error has prevented.
        switches: promotions and roll-backs of the policy.
        delays: corrective delays sent to agents.
    """

    stages: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    decision_s: Histogram = field(default_factory=lambda: Histogram(DECISION_BOUNDS_S))
    scores: Histogram = field(default_factory=lambda: Histogram(SCORE_BOUNDS))
    link_scores: dict[str, LinkScore] = field(default_factory=dict)
    failed_decisions: int = 0
    switches: Counter[str] = field(default_factory=Counter)
    delays: int = 0

    def passed(self, before: str | None, after: str) -> None:
        """Count a job's change of stage; None before: it is new."""
        if before is not None:
            self.stages[before] -= 1
        self.stages[after] += 1

    def decided(self, took_ns: int, scores: Iterable[LinkScore] = ()) -> None:
        """Count a decision, and the scores of the links that it puts jobs on."""
        self.decision_s.add(took_ns / 1e9)
        for each in scores:
            self.scores.add(each.score)
            self.link_scores[each.link] = each

    def scores_of(self, links: Mapping[str, Collection[str]]) -> dict[str, float]:
        """The scores of links, given their jobs; others are forgotten, as are those of other jobs than these."""
        kept = {
            link: score
            for link, score in self.link_scores.items()
            if link in links and set(score.jobs) == set(links[link])
        }
        self.link_scores = kept
        return {link: each.score for link, each in kept.items()}
