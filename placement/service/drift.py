"""Turns iteration-start reports into corrective delays for jobs that have drifted off their time shift.

A delay is applied some iterations after the report that calls for it, and the drift of colliding jobs changes
meanwhile: the job that sends first gets more of the link and runs further ahead. Each job of a group is therefore sent
a time at which an iteration should begin, and computes its wait when it applies the delay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median_low
from typing import Any

from placement.cassini.circle import KEPT_TOLERANCE, TOLERANCE, periods_on_circle
from placement.cassini.drift import corrections, least_waits
from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol.checks import invalid

AHEAD_NS = 1_000_000_000
"""A report further ahead of the service's clock than this means that the agent's clock jumped."""

APPLY_WITHIN_NS = 60_000_000_000
"""A delay that is not confirmed within this time counts as lost."""

LEAD = 3
"""Assumed iterations from the last report to the application of a delay, until the job's agent has confirmed one."""

MARGIN = 0.25
"""All jobs are scheduled later by this fraction of the longest wait, so that the latest one can keep its time too."""

SPARE = 0.5
"""After a delay in vain all jobs are scheduled later by so much of the period: iterations that collide come later than
foreseen, by up to that, and one that is late does not wait."""

MOST_PATIENCE = 3
"""Most comparisons skipped between two delays, however many delays have had no effect."""

ALLOWANCE = 0.005
"""Period padding as a fraction, so that a late job can catch up."""

RETIMED = 0.01
"""Re-send the period to an aligned job whose period is too long by more than this fraction."""

PACED_BY = 4
"""A job's pace is the median of this many iteration times, so that single stalls do not count."""


@dataclass(frozen=True)
class IterationTiming:
    """A reported iteration: its number, its start on the service's clock, and its duration."""

    number: int
    began_ns: int
    duration_ns: int


def overlap(began_ns: int, sends_ns: int, other: IterationTiming, other_sends_ns: int) -> float:
    """The fraction of the time for which a job sends in an iteration in which another one sends too.

    Args:
        began_ns: when it began to send.
        sends_ns: for how long.
        other: an iteration of the other job, which is taken to repeat.
        other_sends_ns: for how long the other one sends in it.
    """
    period_ns = max(1, other.duration_ns)

    def sent_ns(until_ns: int) -> int:
        whole, part_ns = divmod(until_ns - other.began_ns, period_ns)
        return whole * min(other_sends_ns, period_ns) + min(other_sends_ns, part_ns)

    return (sent_ns(began_ns + sends_ns) - sent_ns(began_ns)) / max(1, sends_ns)


@dataclass(frozen=True)
class JobTimeline:
    """The reported iterations of a job, and the delays sent to it.

    Attributes:
        report: the last report.
        heard_ns: when the last report arrived.
        sequence: sequence number of the last delay; consecutive.
        sent_ns: when the delay that is not yet applied was sent; 0: none.
        from_iteration: reports of earlier iterations are ignored, as they began before a delay was applied.
        fresh: whether the last report is newer than the last comparison of the job's group.
        durations_ns: durations of the last counted iterations, less the time they were held back; not of a job's first
            one, in which memory is allocated and connections are opened.
        lead: iterations from the last report before a delay was sent to the iteration that applied it.
        sent_after: number of the last report before the last delay was sent.
        timed_ns: the period sent with the last delay.
        unsettled: number of consecutive delays after which the group was still misaligned.
        patience: comparisons of the group to skip before the next delay.
    """

    report: IterationTiming | None = None
    heard_ns: int = 0
    sequence: int = 0
    sent_ns: int = 0
    from_iteration: int = 0
    fresh: bool = False
    durations_ns: tuple[int, ...] = ()
    lead: int = LEAD
    sent_after: int = 0
    timed_ns: int = 0
    unsettled: int = 0
    patience: int = 0

    def pace_ns(self, period_ns: int, threshold: float) -> int:
        """The present iteration time; the given period if they differ by less than the threshold, which is noise."""
        taken_ns = self._taken_ns(period_ns)
        return taken_ns if abs(taken_ns - period_ns) > threshold * period_ns else period_ns

    def longer_by(self, period_ns: int) -> float:
        """By which fraction of its period an iteration exceeds it; 0 if it does not."""
        return max(0.0, self._taken_ns(period_ns) / period_ns - 1)

    def _taken_ns(self, otherwise_ns: int) -> int:
        return median_low(self.durations_ns) if self.durations_ns else otherwise_ns


@dataclass
class JobTimelines:
    """The timelines of all jobs that report.

    Attributes:
        threshold: drift, as a fraction of the period, above which jobs are delayed.
        epoch: of the service, so that sequence numbers are none that an earlier one has given.
    """

    threshold: float
    epoch: int = 0
    _timelines: dict[str, JobTimeline] = field(default_factory=dict)

    def __iter__(self) -> Iterator[str]:
        return iter(self._timelines)

    def of(self, job_id: str) -> JobTimeline:
        """The timeline of a job; an empty one if it has not reported."""
        return self._timelines.get(job_id, JobTimeline(sequence=self.epoch << 32))

    def forget(self, job_id: str) -> None:
        """Reset a timeline except its sequence number, because the job's agent or clock is a new one."""
        if job_id in self._timelines:
            self._timelines[job_id] = JobTimeline(sequence=self._timelines[job_id].sequence)

    def drop(self, job_id: str) -> None:
        """Remove the timeline of a job that has ended."""
        self._timelines.pop(job_id, None)

    def note(self, job_id: str, report: IterationTiming, now_ns: int, prefix: str) -> bool:
        """Record a report, and return whether it counts; it does not while a delay is pending.

        Raises:
            RequestError: the report is invalid, or its clock jumped.
        """
        timeline = self.of(job_id)
        _check(report, timeline.report, now_ns, prefix)
        pending = timeline.sent_ns > 0 and now_ns - timeline.sent_ns < APPLY_WITHIN_NS
        counts = not pending and report.number >= timeline.from_iteration
        self._timelines[job_id] = replace(
            timeline,
            report=report,
            heard_ns=now_ns,
            fresh=counts,
            sent_ns=timeline.sent_ns if pending else 0,
            durations_ns=(*timeline.durations_ns, report.duration_ns)[-PACED_BY:] if report.number else (),
        )
        return counts

    def applied(self, job_id: str, sequence: int, iteration: int) -> None:
        """Record that a delay has been applied from this iteration on; ignored unless that delay is pending."""
        timeline = self.of(job_id)
        if timeline.sent_ns and sequence == timeline.sequence:
            lead = max(1, iteration - timeline.sent_after)
            durations_ns = (
                timeline.durations_ns[-1:] if timeline.report and timeline.report.number >= iteration else ()
            )
            self._timelines[job_id] = replace(
                timeline,
                sent_ns=0,
                from_iteration=iteration,
                fresh=False,
                lead=lead,
                durations_ns=durations_ns,
            )

    def delays(
        self, jobs: Sequence[str], shifts_ns: Mapping[str, int], periods_ns: Mapping[str, int], now_ns: int
    ) -> dict[str, pb.Delay]:
        """The delays to send to a group of jobs, by job; none before all of them have reported again."""
        timelines = {job: self.of(job) for job in jobs}
        if len(timelines) < 2 or not all(timeline.fresh for timeline in timelines.values()):
            return {}
        self._look(timelines, fresh=False)
        timed_ns = _timed(timelines, _on_circle(jobs, periods_ns))
        paces_ns = {
            job: timeline.pace_ns(timed_ns[job], self.threshold) for job, timeline in timelines.items()
        }
        if not corrections(_seen(timelines, paces_ns), shifts_ns, timed_ns, self.threshold):
            self._look(timelines, unsettled=0, patience=0)
            if not _timed_too_long(timelines, timed_ns):
                return {}
            as_told_ns = {job: max(timed_ns[job], timeline.timed_ns) for job, timeline in timelines.items()}
            return self._tell(_foreseen(timelines, as_told_ns), shifts_ns, timed_ns, now_ns)
        patience = max(timeline.patience for timeline in timelines.values())
        if patience > 0:
            self._look(timelines, patience=patience - 1)
            return {}
        unsettled = max(timeline.unsettled for timeline in timelines.values())
        self._look(timelines, unsettled=unsettled + 1, patience=min(2**unsettled - 1, MOST_PATIENCE))
        spare_ns = round(SPARE * max(timed_ns.values())) if unsettled else 0
        return self._tell(_foreseen(timelines, paces_ns), shifts_ns, timed_ns, now_ns, spare_ns)

    def _tell(
        self,
        foreseen: Mapping[str, int],
        shifts_ns: Mapping[str, int],
        timed_ns: Mapping[str, int],
        now_ns: int,
        spare_ns: int = 0,
    ) -> dict[str, pb.Delay]:
        """A delay for each job, given when each could begin: the time to begin at, and the period."""
        waits = least_waits(foreseen, shifts_ns, timed_ns)
        margin_ns = max(0, round(MARGIN * max(waits.values())) - spare_ns)
        return {
            job: self._delay(job, began_ns + margin_ns, waits[job] + spare_ns, timed_ns[job], now_ns)
            for job, began_ns in foreseen.items()
        }

    def _look(self, jobs: Iterable[str], **changes: Any) -> None:
        for job in jobs:
            self._timelines[job] = replace(self._timelines[job], **changes)

    def ahead_ns(
        self, job_id: str, shifts_ns: Mapping[str, int], periods_ns: Mapping[str, int]
    ) -> int | None:
        """How far a job is ahead of the others by their last reports; None if unknown."""
        timelines = {job: self.of(job) for job in shifts_ns if self.of(job).report is not None}
        if job_id not in timelines or len(timelines) < 2:
            return None
        on_circle = _on_circle(list(timelines), periods_ns)
        return corrections(_seen(timelines, on_circle), shifts_ns, on_circle, 0.0).get(job_id, 0)

    def _delay(self, job_id: str, could_ns: int, wait_ns: int, period_ns: int, now_ns: int) -> pb.Delay:
        """The delay that makes a job begin `wait_ns` after `could_ns`; records it in the job's timeline."""
        before = self.of(job_id)
        after = before.report.number if before.report else 0
        timeline = replace(
            before, sequence=before.sequence + 1, sent_ns=now_ns, sent_after=after, timed_ns=period_ns
        )
        self._timelines[job_id] = timeline
        return pb.Delay(
            sequence=timeline.sequence,
            delay_ns=wait_ns,
            reason=f"{wait_ns / 1e6:.3f} ms ahead of its time shift",
            at_ns=could_ns + wait_ns,
            period_ns=period_ns,
        )


def _on_circle(jobs: Sequence[str], periods_ns: Mapping[str, int]) -> dict[str, int]:
    """The period of each job on the unified circle of all of them."""
    found = periods_on_circle([periods_ns[job] for job in jobs], KEPT_TOLERANCE)
    return dict(zip(jobs, found, strict=True))


def _timed(timelines: Mapping[str, JobTimeline], periods_ns: Mapping[str, int]) -> dict[str, int]:
    """The period to send to each job: that of the circle, padded, and stretched as the slowest job exceeds its own.

    An excess beyond the circle's tolerance comes from collisions and does not tell how long iterations take without.
    """
    longer = max(timeline.longer_by(periods_ns[job]) for job, timeline in timelines.items())
    allowed = ALLOWANCE + (longer if longer <= TOLERANCE else ALLOWANCE)
    return {job: round((1 + allowed) * period_ns) for job, period_ns in periods_ns.items()}


def _timed_too_long(timelines: Mapping[str, JobTimeline], timed_ns: Mapping[str, int]) -> bool:
    """Whether a job's last period is too long, judged once all jobs have run aligned for `PACED_BY` iterations.

    Periods are usually sent during a collision, when the undisturbed iteration time is not known.
    """
    known = all(len(timeline.durations_ns) == PACED_BY for timeline in timelines.values())
    return known and any(
        timeline.timed_ns > (1 + RETIMED) * timed_ns[job] for job, timeline in timelines.items()
    )


def _seen(timelines: Mapping[str, JobTimeline], paces_ns: Mapping[str, int]) -> dict[str, int]:
    """The iteration starts of all jobs, moved by whole iterations to about the time of the latest report."""
    return _nearest(timelines, paces_ns, max(_began_ns(timeline) for timeline in timelines.values()))


def _foreseen(timelines: Mapping[str, JobTimeline], paces_ns: Mapping[str, int]) -> dict[str, int]:
    """The expected iteration starts at about the time when all jobs will have applied a delay sent now."""
    kept_ns = max(_began_ns(timeline) + timeline.lead * paces_ns[job] for job, timeline in timelines.items())
    return _nearest(timelines, paces_ns, kept_ns)


def _nearest(timelines: Mapping[str, JobTimeline], paces_ns: Mapping[str, int], at_ns: int) -> dict[str, int]:
    """The iteration start of each job that is nearest to a time."""
    began_ns = {job: _began_ns(timeline) for job, timeline in timelines.items()}
    return {job: at + round((at_ns - at) / paces_ns[job]) * paces_ns[job] for job, at in began_ns.items()}


def _began_ns(timeline: JobTimeline) -> int:
    """The start of the last reported iteration; there must be a report."""
    assert timeline.report is not None
    return timeline.report.began_ns


def _check(report: IterationTiming, before: IterationTiming | None, now_ns: int, prefix: str) -> None:
    if report.number < 0:
        raise invalid(f"{prefix}number", f"expected 0 or more, got {report.number}")
    if report.duration_ns < 0:
        raise invalid(f"{prefix}duration_ns", f"expected 0 or more, got {report.duration_ns}")
    ahead_ns = report.began_ns - now_ns
    if report.began_ns <= 0 or ahead_ns > AHEAD_NS:
        raise invalid(
            f"{prefix}began_ns",
            f"expected at most {AHEAD_NS / 1e9:.0f} s ahead of the service's clock, got {report.began_ns},"
            f" which is {ahead_ns / 1e9:.3f} s ahead",
        )
    if before is None:
        return
    if report.number <= before.number:
        raise invalid(
            f"{prefix}number", f"expected more than {before.number}, the last one, got {report.number}"
        )
    if report.began_ns <= before.began_ns:
        behind_s = (before.began_ns - report.began_ns) / 1e9
        raise invalid(
            f"{prefix}began_ns",
            f"expected a time after the last report, got {report.began_ns}, which is {behind_s:.3f} s before it:"
            " the clock went back",
        )
