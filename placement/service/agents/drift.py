"""From reports of when iterations began to delays: jobs that no longer lie as their time shifts have them.

A delay is kept some iterations after the report that calls for it, and jobs that collide do not stand still meanwhile:
who sends first gets more of the link, and so runs ahead. So each job of a group is told a time, and works out how long
it has to wait when it is about to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median_low
from typing import Any

from placement.cassini.circle import KEPT_TOLERANCE, TOLERANCE, periods_on_circle
from placement.cassini.drift import corrections, least_waits
from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol.request_error import invalid

AHEAD_NS = 1_000_000_000
"""So far ahead of the service's clock a report may be: more is a clock that jumped."""

APPLY_WITHIN_NS = 60_000_000_000
"""A delay that is not confirmed by then is taken as lost."""

LEAD = 3
"""So many iterations after the last report a delay is kept, as long as nothing is known of the job's agent."""

MARGIN = 0.25
"""Of the longest wait: so much later all jobs are to begin, so that the latest of them can keep its time, too."""

MOST_PATIENCE = 3
"""No more looks pass between two delays than so many, however often they have been in vain."""

ALLOWANCE = 0.005
"""Of a period: so much longer than they would take iterations are timed, so that who is late comes back."""

RETIMED = 0.01
"""Who lies right, and was told a period longer than it needs by more than this, is told another."""

PACED_BY = 4
"""The median of the last so many durations is how fast a job runs: a stall or two say nothing of the next ones."""


@dataclass(frozen=True)
class IterationTiming:
    """When an iteration began, on the service's clock."""

    number: int
    began_ns: int
    duration_ns: int


@dataclass(frozen=True)
class JobTimeline:
    """What is known of how a job runs.

    Attributes:
        report: the last.
        heard_ns: when it came.
        sequence: of the last delay; they rise by one.
        sent_ns: when a delay was sent that is not applied yet; 0 if there is none.
        from_iteration: reports of earlier iterations do not count: they began before a delay was applied.
        fresh: whether the report is newer than the last look at the job's group.
        durations_ns: of the last iterations that count, but for what they were held back.
        lead: the iterations from the last report before a delay was sent to the one that kept it.
        sent_after: the number of that report.
        timed_ns: the period that came with the last delay.
        unsettled: how many delays in a row have not put the job's group right.
        patience: so many more looks at the group are to pass before the next delay.
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
        """How long an iteration takes now, of a job whose period this is; off by less than the threshold is noise."""
        taken_ns = self._taken_ns(period_ns)
        return taken_ns if abs(taken_ns - period_ns) > threshold * period_ns else period_ns

    def longer_by(self, period_ns: int) -> float:
        """By which share of its period an iteration takes longer than it."""
        return max(0.0, self._taken_ns(period_ns) / period_ns - 1)

    def _taken_ns(self, otherwise_ns: int) -> int:
        return median_low(self.durations_ns) if self.durations_ns else otherwise_ns


@dataclass
class JobTimelines:
    """The timelines of all jobs that report."""

    threshold: float
    _timelines: dict[str, JobTimeline] = field(default_factory=dict)

    def of(self, job_id: str) -> JobTimeline:
        """The timeline of a job; an empty one if it never reported."""
        return self._timelines.get(job_id, JobTimeline())

    def forget(self, job_id: str) -> None:
        """Start again, but for the sequence: the job's agent is another, or its clock."""
        if job_id in self._timelines:
            self._timelines[job_id] = JobTimeline(sequence=self._timelines[job_id].sequence)

    def drop(self, job_id: str) -> None:
        """The job is over."""
        self._timelines.pop(job_id, None)

    def note(self, job_id: str, report: IterationTiming, now_ns: int, prefix: str) -> bool:
        """Note a report; whether it counts, or the job still has a delay before it.

        Raises:
            RequestError: its numbers cannot be, or its clock jumped.
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
            durations_ns=(*timeline.durations_ns, report.duration_ns)[-PACED_BY:],
        )
        return counts

    def applied(self, job_id: str, sequence: int, iteration: int) -> None:
        """A delay has been applied, from this iteration on. One that is not awaited changes nothing."""
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
        """What to send to which of some connected jobs, once all of them have reported anew."""
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
        return self._tell(_foreseen(timelines, paces_ns), shifts_ns, timed_ns, now_ns)

    def _tell(
        self,
        foreseen: Mapping[str, int],
        shifts_ns: Mapping[str, int],
        timed_ns: Mapping[str, int],
        now_ns: int,
    ) -> dict[str, pb.Delay]:
        """Tell each job when to begin, and how far apart; they can begin as foreseen."""
        waits = least_waits(foreseen, shifts_ns, timed_ns)
        margin_ns = round(MARGIN * max(waits.values()))
        return {
            job: self._delay(job, began_ns + margin_ns, waits[job], timed_ns[job], now_ns)
            for job, began_ns in foreseen.items()
        }

    def _look(self, jobs: Iterable[str], **changes: Any) -> None:
        for job in jobs:
            self._timelines[job] = replace(self._timelines[job], **changes)

    def ahead_ns(
        self, job_id: str, shifts_ns: Mapping[str, int], periods_ns: Mapping[str, int]
    ) -> int | None:
        """How far a job is ahead of the others, as they last reported; None if it is not known."""
        timelines = {job: self.of(job) for job in shifts_ns if self.of(job).report is not None}
        if job_id not in timelines or len(timelines) < 2:
            return None
        on_circle = _on_circle(list(timelines), periods_ns)
        return corrections(_seen(timelines, on_circle), shifts_ns, on_circle, 0.0).get(job_id, 0)

    def _delay(self, job_id: str, could_ns: int, wait_ns: int, period_ns: int, now_ns: int) -> pb.Delay:
        """Have a job begin so long after it could, which is the margin later than foreseen."""
        before = self.of(job_id)
        after = before.report.number if before.report else 0
        timeline = replace(
            before, sequence=before.sequence + 1, sent_ns=now_ns, sent_after=after, timed_ns=period_ns
        )
        self._timelines[job_id] = timeline
        return pb.Delay(
            sequence=timeline.sequence,
            delay_ns=wait_ns,
            reason=f"{wait_ns / 1e6:.3f} ms ahead of where its time shift has it",
            at_ns=could_ns + wait_ns,
            period_ns=period_ns,
        )


def _on_circle(jobs: Sequence[str], periods_ns: Mapping[str, int]) -> dict[str, int]:
    """The periods that jobs have on the circle of all of them."""
    found = periods_on_circle([periods_ns[job] for job in jobs], KEPT_TOLERANCE)
    return dict(zip(jobs, found, strict=True))


def _timed(timelines: Mapping[str, JobTimeline], periods_ns: Mapping[str, int]) -> dict[str, int]:
    """How far apart iterations are to begin: all longer than on the circle by what the slowest job takes longer.

    More than circles tolerate says that jobs collide, but not what they take otherwise.
    """
    longer = max(timeline.longer_by(periods_ns[job]) for job, timeline in timelines.items())
    allowed = ALLOWANCE + (longer if longer <= TOLERANCE else ALLOWANCE)
    return {job: round((1 + allowed) * period_ns) for job, period_ns in periods_ns.items()}


def _timed_too_long(timelines: Mapping[str, JobTimeline], timed_ns: Mapping[str, int]) -> bool:
    """Whether jobs were told more than they take by themselves, now that they have run in their places for a while.

    They were told in the middle of a collision, as a rule, when nobody could know.
    """
    known = all(len(timeline.durations_ns) == PACED_BY for timeline in timelines.values())
    return known and any(
        timeline.timed_ns > (1 + RETIMED) * timed_ns[job] for job, timeline in timelines.items()
    )


def _seen(timelines: Mapping[str, JobTimeline], paces_ns: Mapping[str, int]) -> dict[str, int]:
    """When iterations begin at about the time of the latest report: some are older than others."""
    return _nearest(timelines, paces_ns, max(_began_ns(timeline) for timeline in timelines.values()))


def _foreseen(timelines: Mapping[str, JobTimeline], paces_ns: Mapping[str, int]) -> dict[str, int]:
    """When iterations will begin at about the time when delays sent now have been kept."""
    kept_ns = max(_began_ns(timeline) + timeline.lead * paces_ns[job] for job, timeline in timelines.items())
    return _nearest(timelines, paces_ns, kept_ns)


def _nearest(timelines: Mapping[str, JobTimeline], paces_ns: Mapping[str, int], at_ns: int) -> dict[str, int]:
    """When that iteration of each job begins that begins nearest to a moment."""
    began_ns = {job: _began_ns(timeline) for job, timeline in timelines.items()}
    return {job: at + round((at_ns - at) / paces_ns[job]) * paces_ns[job] for job, at in began_ns.items()}


def _began_ns(timeline: JobTimeline) -> int:
    """When the last iteration began that was reported; there must be one."""
    assert timeline.report is not None
    return timeline.report.began_ns


def _check(report: IterationTiming, before: IterationTiming | None, now_ns: int, prefix: str) -> None:
    if report.number < 0:
        raise invalid(f"{prefix}number", f"is {report.number}: 0 or more is allowed")
    if report.duration_ns < 0:
        raise invalid(f"{prefix}duration_ns", f"is {report.duration_ns}: 0 or more is allowed")
    ahead_ns = report.began_ns - now_ns
    if report.began_ns <= 0 or ahead_ns > AHEAD_NS:
        raise invalid(
            f"{prefix}began_ns",
            f"is {report.began_ns}: {ahead_ns / 1e9:.3f} s ahead of the service's clock; up to {AHEAD_NS / 1e9:.0f} s"
            " is allowed",
        )
    if before is None:
        return
    if report.number <= before.number:
        raise invalid(
            f"{prefix}number", f"is {report.number}: more than the last, {before.number}, is allowed"
        )
    if report.began_ns <= before.began_ns:
        behind_s = (before.began_ns - report.began_ns) / 1e9
        raise invalid(
            f"{prefix}began_ns",
            f"is {report.began_ns}: {behind_s:.3f} s before the last report; its clock went back",
        )
