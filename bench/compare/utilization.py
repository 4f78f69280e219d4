"""Utilization of the bottleneck in a run, from the bytes of each job in consecutive bins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.compare.results.runs import LinkExcerpt
from bench.lab.bottleneck import DirectionUse, LinkUse
from bench.workloads.job import JobResult

EXCERPT_S = 4.0
"""The pictures show four iterations, of at most 0.6 s each without contention."""

_SENDS, _SILENT = 0.05, 0.01
_SHORTEST_BINS = 5


def utilization(use: LinkUse, results: Sequence[JobResult]) -> float:
    """The share of the link's rate, left to right, that was used while all of these jobs ran."""
    direction = use.directions[0]
    start_s = min(result.iterations[0].start_s for result in results)
    end_s = min(result.iterations[-1].end_s for result in results)
    first, last = (int((at_s * 1e9 - use.epoch_ns) // use.bin_ns) for at_s in (start_s, end_s))
    carried = sum(sum(bins[first:last]) for bins in direction.bytes_by_job.values())
    return carried * 8e9 / (direction.rate_bps * max(1, last - first) * use.bin_ns)


def sole_utilization(directions: Sequence[DirectionUse], bin_ns: int) -> float | None:
    """The share of the link's rate that is used while exactly one job sends; None if no job sends alone for long.

    The first and the last bin of such a time are left out: the job fills them only in part.
    """
    shares: list[float] = []
    for direction in directions:
        full = direction.rate_bps * bin_ns / 8e9
        run: list[float] = []
        for bins in zip(*direction.bytes_by_job.values(), strict=True):
            carried = sorted(count / full for count in bins)
            if carried[-1] > _SENDS and sum(carried[:-1]) < _SILENT:
                run.append(carried[-1])
                continue
            shares += _inner(run)
            run = []
        shares += _inner(run)
    return sum(shares) / len(shares) if shares else None


def excerpts(use: LinkUse, names: Mapping[int, str], epoch_s: float, end_s: float) -> tuple[LinkExcerpt, ...]:
    """The first and the last seconds of the link's use, left to right.

    Args:
        use: the measurement.
        names: the jobs, by their numbers in the lab.
        epoch_s: the start of the run, CLOCK_MONOTONIC.
        end_s: the end of the first job to end, from then on.
    """
    direction = use.directions[0]
    bin_s = use.bin_ns / 1e9
    zero = round((epoch_s - use.epoch_ns / 1e9) / bin_s)
    last, count = round(end_s / bin_s), round(EXCERPT_S / bin_s)
    found = []
    for first in dict.fromkeys((0, max(0, last - count))):
        bins = slice(zero + first, zero + min(first + count, last))
        job_bytes = {name: list(direction.bytes_by_job[index][bins]) for index, name in names.items()}
        link = f"{direction.source}->{direction.target}"
        found.append(LinkExcerpt(link, direction.rate_bps, first * bin_s, bin_s, job_bytes))
    return tuple(found)


def _inner(run: Sequence[float]) -> Sequence[float]:
    return run[1:-1] if len(run) >= _SHORTEST_BINS else ()
