"""The speeds of running jobs: what their agents report corrects the models, and says how far the jobs are.

The iterations of a job are collected by its number of slots and whether they are on one server; the medians correct the
model that was submitted (`placement.model.speed_fit`). What neighbours take of a link is part of what is measured.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from fractions import Fraction

from placement.model.job_speed import JobSpeed
from placement.model.speed_fit import MeasuredTime, SpeedFit, fitted
from placement.model.throughput import BETWEEN_BYTES_PER_S
from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol.speeds import speed_of
from placement.service.state.job_record import JobRecord

SKIPPED = 2
"""The first iterations of a run, which do not count."""

ENOUGH = 5
"""Iterations from which a median is taken."""

UNLIKE = 0.1
"""A job is not as predicted if its iterations differ from the submitted speed by more than this fraction."""

CHANGED = 0.01
"""A correction of the times by less than this fraction is not stored."""

_KEPT = 64
_Place = tuple[int, bool]
"""A number of slots, and whether they are on one server."""


@dataclass
class _JobMeasurements:
    """The measurements of a job.

    Attributes:
        submitted: the model before any correction.
        durations_ns: of its last iterations, by place.
        fit: the last correction.
        new: iterations since then.
        next: the number of new iterations from which on it is corrected again.
    """

    submitted: JobSpeed
    durations_ns: dict[_Place, deque[int]] = field(default_factory=dict)
    fit: SpeedFit | None = None
    new: int = 0
    next: int = ENOUGH

    def measured(self) -> list[MeasuredTime]:
        """The times of the places where it has run for long enough."""
        kept = self.durations_ns.items()
        return [MeasuredTime.of(*place, tuple(each)) for place, each in kept if len(each) >= ENOUGH]


@dataclass
class _ReportingRun:
    """A run of a job that reports.

    Attributes:
        restarts: of the job before it.
        before: iterations that earlier runs had done, in those with as many slots as the job asks for.
        iterations: of this run, on the slots that it has.
    """

    restarts: int
    before: Fraction
    iterations: int = 0


class MeasuredSpeeds:
    """The measurements and the progress of the jobs of a service that have a speed."""

    def __init__(self) -> None:
        self._measured: dict[str, _JobMeasurements] = {}
        self._runs: dict[str, _ReportingRun] = {}
        self._since_ns = time.time_ns()

    def reported(self, job: JobRecord, one_server: bool, number: int, duration_ns: int) -> JobSpeed:
        """Note an iteration of a job that holds slots, and return its speed, which this may have corrected.

        Args:
            job: has a speed.
            one_server: whether its slots are on one server.
            number: of the iteration in this run of the job, from 0.
            duration_ns: without the time for which it was held back.
        """
        assert job.speed is not None, "only jobs with a speed are measured"
        run = self._run(job)
        if run is None:
            run = self._runs[job.id] = _ReportingRun(job.restarts, self._done_before(job, number))
        run.iterations = max(run.iterations, number + 1)
        known = self._measured.setdefault(job.id, _JobMeasurements(_submitted(job)))
        if number < SKIPPED or duration_ns <= 0:
            return job.speed
        kept = known.durations_ns.setdefault((len(job.slots), one_server), deque(maxlen=_KEPT))
        kept.append(duration_ns)
        known.new += 1
        if known.new < known.next or len(kept) < ENOUGH:
            return job.speed
        known.new, known.next = 0, min(2 * known.next, _KEPT)
        known.fit = fitted(known.submitted, known.measured())
        changed = any(
            abs(known.fit.speed.iteration_ns(*place) / job.speed.iteration_ns(*place) - 1) > CHANGED
            for place in known.durations_ns
        )
        return known.fit.speed if changed else job.speed

    def done(self, job: JobRecord, one_server: bool, begun_ns: int, now_ns: int) -> Fraction:
        """The iterations that a job with a speed has done, less than all: by its agent, or by the time it has run.

        Args:
            job: with a speed.
            one_server: whether its slots are on one server.
            begun_ns: when its present run has begun to make progress.
            now_ns: the time.
        """
        assert job.speed is not None, "only of jobs with a speed"
        done, run = Fraction(job.done), self._run(job)
        if run is not None and job.placed:
            done = max(done, run.before + run.iterations * _share(job))
        elif job.state == pb.PLACED:
            iteration_ns = job.speed.iteration_ns(len(job.slots), one_server)
            done += Fraction(max(0, now_ns - begun_ns), iteration_ns) * _share(job)
        return min(done, Fraction(job.spec.iterations - 1))

    def note(self, job: JobRecord, one_server: bool) -> str:
        """What is to be told of a running job that is not as fast as was submitted; empty: it is, or is not known."""
        known = self._measured.get(job.id)
        place = len(job.slots), one_server
        kept = () if known is None else tuple(known.durations_ns.get(place, ()))
        if known is None or len(kept) < ENOUGH:
            return ""
        found, submitted_ns = MeasuredTime.of(*place, kept), known.submitted.iteration_ns(*place)
        low_ns, high_ns = found.interval_ns
        if abs(found.time_ns / submitted_ns - 1) <= UNLIKE or low_ns <= submitted_ns <= high_ns:
            return ""
        return (
            f"not as predicted: iterations on {_slots_text(*place)} take {_ms(found.time_ns)} ms "
            f"(95 %: {_ms(low_ns)} to {_ms(high_ns)}), and not {_ms(submitted_ns)} ms, as submitted"
        )

    def explanation(self, job: JobRecord) -> str:
        """The corrected times of a job with their intervals, for people; empty: it has not been measured."""
        known = self._measured.get(job.id)
        if known is None or known.fit is None:
            return ""
        fit = known.fit
        places = sorted({(1, True), *((each.slots, each.one_node) for each in known.measured())})
        texts = [
            f"{_ms(fit.speed.iteration_ns(*place))} ms on {_slots_text(*place)} "
            f"(95 %: {' to '.join(map(_ms, fit.interval_ns(*place)))})"
            for place in places
        ]
        return f"iterations take, by its reports, {', '.join(texts)}"

    def forget(self, job_id: str) -> None:
        """Forget a job that is over."""
        self._measured.pop(job_id, None)
        self._runs.pop(job_id, None)

    def _run(self, job: JobRecord) -> _ReportingRun | None:
        """The present run of a job, if it has reported."""
        run = self._runs.get(job.id)
        return run if run is not None and run.restarts == job.restarts else None

    def _done_before(self, job: JobRecord, number: int) -> Fraction:
        """The iterations before a run whose first report is of this iteration.

        Of a run that an earlier service has seen, those that were done when its state was last stored are known.
        """
        if job.placed_ns >= self._since_ns:
            return Fraction(job.done)
        return max(Fraction(0), job.done - number * _share(job))


def _share(job: JobRecord) -> Fraction:
    """The progress of an iteration on the slots of a job."""
    return Fraction(len(job.slots), job.count)


def _submitted(job: JobRecord) -> JobSpeed:
    default = getattr(job.speed, "between_bytes_per_s", BETWEEN_BYTES_PER_S)
    return speed_of(job.spec.speed, "job.speed", default)


def _slots_text(slots: int, one_server: bool) -> str:
    where = "" if slots == 1 else " of one server" if one_server else " of several servers"
    return f"{slots} slot{'s' if slots > 1 else ''}{where}"


def _ms(time_ns: float) -> str:
    return f"{time_ns / 1e6:.4g}"
