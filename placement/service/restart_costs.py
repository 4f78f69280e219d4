"""What stops and starts of jobs are seen to cost: schedulers weigh it against what a move brings."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

from placement.service.protocol import placement_pb2 as pb
from placement.service.state.job_record import JobRecord

ENOUGH = 3
"""Times of other jobs from which on a job without its own has their median."""

SOON = 2
"""The last iteration of a run whose report still tells when the run has begun."""

_KEPT_OF_JOB = 9
_KEPT = 64


@dataclass
class _Times:
    """Durations of one kind: of each job, and of all, also of those that are over."""

    own: dict[str, deque[int]] = field(default_factory=dict)
    last: deque[int] = field(default_factory=lambda: deque(maxlen=_KEPT))

    def add(self, job_id: str, duration_ns: int) -> None:
        self.own.setdefault(job_id, deque(maxlen=_KEPT_OF_JOB)).append(duration_ns)
        self.last.append(duration_ns)

    def median_ns(self, job_id: str) -> int | None:
        """Of the job, or else of all; None: too little is known."""
        known = self.own.get(job_id) or (self.last if len(self.last) >= ENOUGH else ())
        return round(median(known)) if known else None


class RestartCosts:
    """Measured stops and starts. A start lasts from the slots to the first iteration that sends.

    Args:
        assumed_ns: what a restart is taken to cost until starts have been seen.
    """

    def __init__(self, assumed_ns: int) -> None:
        self._assumed_ns = assumed_ns
        self._starts, self._stops = _Times(), _Times()
        self._reported: dict[str, int] = {}
        self._stopping: dict[str, int] = {}

    def reported(self, job: JobRecord, number: int, began_ns: int, duration_ns: int) -> None:
        """Note an iteration of a job that holds slots; the first one that is heard of a run tells its start.

        Args:
            job: that holds slots.
            number: of the iteration in this run, from 0.
            began_ns: when it began to send, on the service's clock.
            duration_ns: of an iteration.
        """
        if self._reported.get(job.id) == job.placed_ns:
            return
        self._reported[job.id] = job.placed_ns
        start_ns = began_ns - number * duration_ns - job.placed_ns
        if number <= SOON and start_ns >= 0:
            self._starts.add(job.id, start_ns)

    def changed(self, job: JobRecord, now_ns: int) -> None:
        """Note the present state of a job: how long it was STOPPING before it was QUEUED, its stop has taken."""
        if job.state == pb.STOPPING:
            self._stopping.setdefault(job.id, now_ns)
            return
        began_ns = self._stopping.pop(job.id, None)
        if began_ns is not None and job.state == pb.QUEUED:
            self._stops.add(job.id, now_ns - began_ns)

    def start_ns(self, job_id: str) -> int:
        """The time for which a job that has been given slots makes no progress."""
        found = self._starts.median_ns(job_id)
        return self._assumed_ns if found is None else found

    def restart_ns(self, job_id: str) -> int:
        """The same of one that runs and is to be moved: it is stopped first."""
        if self._starts.median_ns(job_id) is None:
            return self._assumed_ns
        return self.start_ns(job_id) + (self._stops.median_ns(job_id) or 0)

    def explanation(self, job_id: str) -> str:
        """What a job's own starts and stops have taken, for people; empty: none has been seen."""
        parts = []
        for noun, times in (("start", self._starts), ("stop", self._stops)):
            if own := times.own.get(job_id):
                parts.append(f"a {noun} takes {median(own) / 1e9:.3g} s (median of {len(own)})")
        return ", ".join(parts)

    def forget(self, job_id: str) -> None:
        """Forget a job that is over; others of which nothing is known go by its times all the same."""
        for known in (self._starts.own, self._stops.own, self._reported, self._stopping):
            known.pop(job_id, None)
