"""From reports of when iterations began to delays: jobs that no longer lie as their time shifts have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from placement.cassini.drift import corrections
from placement.service import placement_pb2 as pb
from placement.service.refusal import invalid

AHEAD_NS = 1_000_000_000
"""So far ahead of the service's clock a report may be: more is a clock that jumped."""

APPLY_WITHIN_NS = 60_000_000_000
"""A delay that is not confirmed by then is taken as lost."""


@dataclass(frozen=True)
class Report:
    """When an iteration began, on the service's clock."""

    number: int
    began_ns: int
    duration_ns: int


@dataclass(frozen=True)
class Course:
    """What is known of how a job runs.

    Attributes:
        report: the last.
        heard_ns: when it came.
        sequence: of the last delay; they rise by one.
        sent_ns: when a delay was sent that is not applied yet; 0 if there is none.
        from_iteration: reports of earlier iterations do not count: they began before a delay was applied.
        fresh: whether the report is newer than the last look at the job's group.
    """

    report: Report | None = None
    heard_ns: int = 0
    sequence: int = 0
    sent_ns: int = 0
    from_iteration: int = 0
    fresh: bool = False


@dataclass
class Courses:
    """The courses of all jobs that report."""

    threshold: float
    _courses: dict[str, Course] = field(default_factory=dict)

    def of(self, job_id: str) -> Course:
        """The course of a job; an empty one if it never reported."""
        return self._courses.get(job_id, Course())

    def forget(self, job_id: str) -> None:
        """Start again, but for the sequence: the job's agent is another, or its clock."""
        if job_id in self._courses:
            self._courses[job_id] = Course(sequence=self._courses[job_id].sequence)

    def drop(self, job_id: str) -> None:
        """The job is over."""
        self._courses.pop(job_id, None)

    def note(self, job_id: str, report: Report, now_ns: int, prefix: str) -> bool:
        """Note a report; whether it counts, or the job still has a delay before it.

        Raises:
            Refused: its numbers cannot be, or its clock jumped.
        """
        course = self.of(job_id)
        _check(report, course.report, now_ns, prefix)
        pending = course.sent_ns > 0 and now_ns - course.sent_ns < APPLY_WITHIN_NS
        counts = not pending and report.number >= course.from_iteration
        self._courses[job_id] = replace(
            course, report=report, heard_ns=now_ns, fresh=counts, sent_ns=course.sent_ns if pending else 0
        )
        return counts

    def applied(self, job_id: str, sequence: int, iteration: int) -> None:
        """A delay has been applied, from this iteration on. One that is not awaited changes nothing."""
        course = self.of(job_id)
        if course.sent_ns and sequence == course.sequence:
            self._courses[job_id] = replace(course, sent_ns=0, from_iteration=iteration, fresh=False)

    def delays(
        self, jobs: Sequence[str], shifts_ns: Mapping[str, int], periods_ns: Mapping[str, int], now_ns: int
    ) -> dict[str, pb.Delay]:
        """What to send to which of some connected jobs, once all of them have reported anew."""
        courses = {job: self.of(job) for job in jobs}
        if len(courses) < 2 or not all(course.fresh for course in courses.values()):
            return {}
        phases = {job: course.report.began_ns for job, course in courses.items() if course.report}
        waits = corrections(phases, shifts_ns, periods_ns, self.threshold)
        for job, course in courses.items():
            self._courses[job] = replace(course, fresh=False)
        return {job: self._delay(job, wait, now_ns) for job, wait in waits.items()}

    def ahead_ns(
        self, job_id: str, shifts_ns: Mapping[str, int], periods_ns: Mapping[str, int]
    ) -> int | None:
        """How far a job is ahead of the others, as they last reported; None if it is not known."""
        reports = {job: self.of(job).report for job in shifts_ns}
        phases = {job: report.began_ns for job, report in reports.items() if report is not None}
        if job_id not in phases or len(phases) < 2:
            return None
        return corrections(phases, shifts_ns, periods_ns, 0.0).get(job_id, 0)

    def _delay(self, job_id: str, wait_ns: int, now_ns: int) -> pb.Delay:
        course = replace(self.of(job_id), sequence=self.of(job_id).sequence + 1, sent_ns=now_ns)
        self._courses[job_id] = course
        reason = f"{wait_ns / 1e6:.3f} ms ahead of where its time shift has it"
        return pb.Delay(sequence=course.sequence, delay_ns=wait_ns, reason=reason)


def _check(report: Report, before: Report | None, now_ns: int, prefix: str) -> None:
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
