"""The contests of a sweep: the same job several times, with periods that differ by a given mismatch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from bench.compare.contest import Contest
from bench.workloads.profile import Profile, default_fraction, fit
from mltcp.core.errors import UsageError

MISMATCH = "mismatch"
"""The key under which a contest's setting has its mismatch."""

MOST_JOBS = 4
LARGEST_MISMATCH = 0.5


@dataclass(frozen=True)
class Sweep:
    """A job, how many of it share the link, and the mismatches of their periods.

    Attributes:
        profile: of the job; it is scaled to the link, and all of its buckets follow the computation.
        jobs: how many of it.
        mismatches: job number k (from 0) computes for k times this share of the period longer.
        fraction: share of the link that each job needs alone; default: 0.86 over the number of jobs.

    Raises:
        UsageError: a value is out of range.
    """

    profile: Profile
    jobs: int
    mismatches: tuple[float, ...]
    fraction: float | None = None

    def __post_init__(self) -> None:
        if not 2 <= self.jobs <= MOST_JOBS:
            raise UsageError(f"--jobs: expected 2 to {MOST_JOBS}, got {self.jobs}")
        if not self.mismatches:
            raise UsageError("--mismatch: expected one or more percentages, such as 0,1,3, got none")
        for mismatch in self.mismatches:
            if not 0 <= mismatch <= LARGEST_MISMATCH:
                raise UsageError(
                    f"--mismatch: expected 0 to {100 * LARGEST_MISMATCH:g} (percent), got {100 * mismatch:g}"
                )

    def contests(self, template: Contest) -> list[Contest]:
        """A contest for each mismatch, with the approaches, the link and the lengths of the template."""
        return [self._contest(mismatch, template) for mismatch in self.mismatches]

    def _contest(self, mismatch: float, template: Contest) -> Contest:
        works = self.works(mismatch, template.link.rate_bps, template.ranks)
        return replace(
            template,
            jobs=tuple((f"{self.profile.name}-{number + 1}", work) for number, work in enumerate(works)),
            name=f"periods {100 * mismatch:g} % apart",
            setting={**template.setting, MISMATCH: mismatch},
        )

    def works(self, mismatch: float, rate_bps: float, ranks: int) -> list[Profile]:
        """The jobs' iterations on a link of this rate."""
        profile = self.profile.without_overlap()
        fraction = default_fraction(self.jobs) if self.fraction is None else self.fraction
        scale = fit([profile], rate_bps, ranks, fraction)
        shortest = profile.scaled(scale.time, scale.bytes)
        period_s = shortest.isolated_iteration_s(rate_bps, ranks)
        return [
            replace(
                shortest,
                name=f"{profile.name} + {100 * number * mismatch:g} %",
                forward_s=shortest.forward_s + number * mismatch * period_s,
            )
            for number in range(self.jobs)
        ]


def held_slowdown(mismatch: float, jobs: int) -> float:
    """The mean slowdown of jobs that all take the longest period: what no law can be below while it holds them."""
    periods = [1 + number * mismatch for number in range(jobs)]
    return sum(max(periods) / period for period in periods) / jobs


def parse_mismatches(text: str) -> tuple[float, ...]:
    """The mismatches of a list of percentages, such as 0,1,3. Raises UsageError if one is no number."""
    try:
        return tuple(float(part) / 100 for part in text.split(",") if part)
    except ValueError:
        raise UsageError(f"--mismatch: expected percentages such as 0,1,3, got {text!r}") from None


def mismatch_of(setting: Mapping[str, object], where: str) -> float:
    """The mismatch of a measured setting. Raises UsageError if it is not of a sweep."""
    value = setting.get(MISMATCH)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"{where}: expected a result of mltcp-bench holding, got another one")
    return float(value)
