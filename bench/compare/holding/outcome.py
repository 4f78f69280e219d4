"""The outcome of a run of jobs with different periods: held apart, slipped through each other, or collided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean

from bench.compare.holding.sweep import held_slowdown
from bench.compare.results.figures import Yardstick, second_half, slowdowns
from bench.compare.results.runs import ApproachRun, JobRun
from mltcp.core.errors import MltcpError

LOCKED_SHARE = 0.25
"""Jobs are locked if their periods differ by at most this share of the mismatch (or of `SMALLEST`)."""

SMALLEST = 0.01
TOLERANCE = 0.03
"""Locked jobs that are slower than the bound by more than this collide."""


class Outcome(StrEnum):
    """The second half of a run."""

    HELD = "held"
    """All jobs take the same period, and are at most 3 % slower than that makes them."""
    SLIPPED = "slipped"
    """Their periods differ: they pass through each other again and again."""
    COLLIDED = "collided"
    """They take the same period, but send at the same time."""


@dataclass(frozen=True)
class HoldingRun:
    """One run of a sweep.

    Attributes:
        approach: the policy.
        repeat: counted from 0.
        mismatch: of the periods.
        outcome: of the second half.
        slowdown: mean over all iterations, over isolated jobs.
        second_half: the same over the second half of each job's iterations.
        period_difference: the largest period of a job over the smallest, less 1, in the second half.
        marks: ECN marks an iteration.
        other_load: share of the processors that other programs used; None: not measured.
    """

    approach: str
    repeat: int
    mismatch: float
    outcome: Outcome
    slowdown: float
    second_half: float
    period_difference: float
    marks: float
    other_load: float | None = None


def holding_run(run: ApproachRun, yardstick: Yardstick, mismatch: float) -> HoldingRun:
    """Classify a run.

    Raises:
        MltcpError: a job has no isolated run, or too few iterations to have a period.
    """
    slow = slowdowns(run, yardstick)
    steady = fmean([value for job in slow for value in second_half(job)])
    difference = _period_difference(run.jobs)
    return HoldingRun(
        approach=run.approach,
        repeat=run.repeat,
        mismatch=mismatch,
        outcome=_outcome(difference, steady, mismatch, len(run.jobs)),
        slowdown=fmean([value for job in slow for value in job]),
        second_half=steady,
        period_difference=difference,
        marks=sum(job.marks for job in run.jobs) / sum(len(job.iteration_s) for job in run.jobs),
        other_load=run.other_load,
    )


def _outcome(difference: float, steady: float, mismatch: float, jobs: int) -> Outcome:
    if difference > LOCKED_SHARE * max(SMALLEST, (jobs - 1) * mismatch):
        return Outcome.SLIPPED
    return Outcome.HELD if steady <= held_slowdown(mismatch, jobs) + TOLERANCE else Outcome.COLLIDED


def _period_difference(jobs: Sequence[JobRun]) -> float:
    periods = [_period_s(job) for job in jobs]
    return max(periods) / min(periods) - 1


def _period_s(job: JobRun) -> float:
    """The mean time from one start to the next, in the second half."""
    began = second_half(job.began_s)
    if len(began) < 3:
        raise MltcpError(f"job {job.job}: expected 5 or more iterations, got {len(job.began_s)}")
    return (began[-1] - began[0]) / (len(began) - 1)
