"""The control loop of pacing: computes a rate for every job from the counters of its flows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from mltcp.control.aggressiveness import Aggressiveness
from mltcp.control.iteration import IterationRecord, IterationTracker
from mltcp.pacing.rate_law import Constants, RateLaw
from mltcp.pacing.sock_diag import NO_SAMPLE, FlowKey, Sample

MOST_READ = 1024
"""Flows that are read in a control interval. Of jobs with many, a part is read in each, and they advance after all."""

IDLE_NS = 100_000_000
IDLE_TICKS = 16
"""Where idle jobs rest, one that is not recognised and has been idle for so long is read in one interval of so many."""

LATE_SHIFT = 6
"""Of an iteration's bytes one part in 2 to this may be acknowledged after the next one has begun."""

SMALLEST_CHANGE = 0.005
"""The smallest relative change of a rate that is sent to the kernel."""


class SampleSource(Protocol):
    """A source of the counters of flows: :class:`mltcp.pacing.sock_diag.SockDiag`."""

    def sample(self, flows: list[FlowKey]) -> list[Sample | None]:
        """The counters of each flow; None for one that is closed."""

    def forget(self, flow: FlowKey) -> None:
        """Forget a flow that will not be sampled again."""


@dataclass
class PacedJob:
    """The control loop's state of a job.

    Attributes:
        law: the rate law.
        aggressiveness: F; None for plain DCQCN.
        tracker: recognises iterations in the acknowledged bytes of all flows of the job on this host.
        flows: each with its last counters; None before the first reading.
        applied: the rate in force, as a share of the line rate.
        retransmits, marks, acked_bytes: sums over all flows since each was added, closed ones included.
        finished: the iterations that have ended since the caller last cleared the list.
        unread: the flows that are still to be read before the job advances.
        grown: what the counters of the others have grown by.
        read_ns: when it advanced.
        busy_ns: when it last had sent something, or was added.
    """

    law: RateLaw
    aggressiveness: Aggressiveness | None
    tracker: IterationTracker
    flows: dict[FlowKey, Sample | None] = field(default_factory=dict)
    applied: float = 1.0
    retransmits: int = 0
    marks: int = 0
    acked_bytes: int = 0
    finished: list[IterationRecord] = field(default_factory=list)
    unread: list[FlowKey] = field(default_factory=list)
    grown: Sample = NO_SAMPLE
    read_ns: int | None = None
    busy_ns: int | None = None
    _waiting: bool = False
    _in_flight: bool = False  # at each reading since the last one with acknowledgements, that one included

    @property
    def bytes_ratio(self) -> float:
        """The progress of the job in its iteration, 0 to 1; 0 while iterations are not recognised."""
        tracker = self.tracker
        return min(1.0, tracker.bytes / tracker.total_bytes) if tracker.total_bytes else 0.0

    def idle(self, now_ns: int) -> bool:
        """Whether no iterations are recognised and nothing has been sent for long."""
        return not self.tracker.recognised and self.busy_ns is not None and now_ns - self.busy_ns > IDLE_NS

    @property
    def factor(self) -> float:
        """F(bytes_ratio) of the present burst; 1 while iterations are not recognised, and for plain DCQCN."""
        if self.aggressiveness is None or not self.tracker.recognised:
            return 1.0
        return self.aggressiveness(self.tracker.burst_ratio)

    def advance(self, from_ns: int, to_ns: int, grown: Sample) -> None:
        """Advance by a control interval, in which the flows' counters grew by ``grown``."""
        self.retransmits += grown.retransmits
        self.marks += grown.delivered_ce
        self.acked_bytes += grown.acked_bytes
        record = self.tracker.observe_interval(from_ns, to_ns, grown.acked_bytes, self._in_flight)
        self._in_flight = grown.unacked > 0 and (self._in_flight or grown.acked_bytes > 0)
        if grown.acked_bytes or grown.unacked or self.busy_ns is None:
            self.busy_ns = to_ns
        if record is not None:
            self.finished.append(record)
        if self._waits(to_ns, grown):
            return
        marked = grown.delivered_ce > 0 or grown.retransmits > 0
        self.law.step((to_ns - from_ns) / 1e9, marked, grown.acked_bytes, self.factor)

    def _waits(self, now_ns: int, grown: Sample) -> bool:
        """Whether the job is between two iterations; the rate is then set for the first bytes of the next one.

        It is set now because it must be in force before the first byte is sent. MLTCP's F(0) leaves bandwidth to jobs
        that are further in their iteration; under plain DCQCN the rate recovers to the line rate during the pause, as
        it does on a network card.
        """
        tracker = self.tracker
        if self.aggressiveness is None or not tracker.recognised or grown.acked_bytes:
            self._waiting = False
            return False
        if tracker.reported:
            # Silences within an iteration are then none between two, however long they are.
            pauses = tracker.bytes <= tracker.total_bytes >> LATE_SHIFT
        else:
            pauses = now_ns - tracker.last_ns > tracker.gap_ns
        if self._in_flight or not pauses:
            return False
        if not self._waiting:
            self._waiting = True
            self.law.start(self.aggressiveness(0.0))
        return True


class PacingController:
    """Computes the rates of jobs, which are identified by the number of their class, as shares of the line rate.

    Args:
        samples: the source of the flows' counters.
        line_rate_bps: of the fastest interface; only the law's byte counter depends on it.
        mltcp: whether F acts; without it this is plain DCQCN.
        constants: of the rate law.
        rest: whether idle jobs are read less often (`PacedJob.idle`).
    """

    def __init__(
        self,
        samples: SampleSource,
        line_rate_bps: float,
        mltcp: bool = True,
        constants: Constants | None = None,
        rest: bool = False,
    ) -> None:
        self._samples = samples
        self._rest = rest
        self._ticks = 0
        self._line_rate_bps = line_rate_bps
        self._mltcp = mltcp
        self._constants = constants or Constants()
        self._last_ns: int | None = None
        self.jobs: dict[int, PacedJob] = {}

    def add_job(self, number: int, aggressiveness: Aggressiveness, tracker: IterationTracker) -> PacedJob:
        """Add a job, from the next interval on."""
        job = PacedJob(
            RateLaw(self._line_rate_bps, self._constants), aggressiveness if self._mltcp else None, tracker
        )
        job.read_ns = self._last_ns
        self.jobs[number] = job
        return job

    def remove_job(self, number: int) -> None:
        """Remove a job; an unknown one is ignored."""
        job = self.jobs.pop(number, None)
        for flow in () if job is None else job.flows:
            self._samples.forget(flow)

    def add_flows(self, number: int, flows: Iterable[FlowKey]) -> None:
        """Add connections to a job; their counters count from the next reading on."""
        job = self.jobs[number]
        for flow in flows:
            job.flows.setdefault(flow, None)

    def change(self, number: int, aggressiveness: Aggressiveness) -> None:
        """Give a job another F."""
        if self._mltcp:
            self.jobs[number].aggressiveness = aggressiveness

    def tick(self, now_ns: int) -> tuple[dict[int, float], list[FlowKey]]:
        """Run a control interval; returns the changed rates, as shares of the line rate, and the closed flows."""
        self._ticks += 1
        parts = self._parts(now_ns)
        samples = iter(self._samples.sample([flow for part in parts.values() for flow in part]))
        # Not if they cannot be read: the next ones then belong to both intervals.
        self._last_ns = now_ns
        gone: list[FlowKey] = []
        changed: dict[int, float] = {}
        for number, part in parts.items():
            job = self.jobs[number]
            self._take(job, [(flow, next(samples)) for flow in part], gone)
            del job.unread[: len(part)]
            if job.unread:
                continue
            from_ns, job.read_ns = job.read_ns, now_ns
            grown, job.grown = job.grown if job.flows else NO_SAMPLE, NO_SAMPLE
            if from_ns is None:
                continue
            job.advance(from_ns, now_ns, grown)
            share = job.law.current_bps / self._line_rate_bps
            if abs(share - job.applied) > SMALLEST_CHANGE * job.applied:
                changed[number] = job.applied = share
        return changed, gone

    def _parts(self, now_ns: int) -> dict[int, list[FlowKey]]:
        """The flows that are read now, of each job that does not rest: all, or as many as there is space for."""
        awake = [number for number, job in self.jobs.items() if not self._rests(job, now_ns)]
        for number in awake:
            self.jobs[number].unread = self.jobs[number].unread or list(self.jobs[number].flows)
        left, parts = MOST_READ, {}
        for rest, number in enumerate(sorted(awake, key=lambda each: len(self.jobs[each].unread))):
            most = max(1, left // (len(awake) - rest))
            parts[number] = self.jobs[number].unread[:most]
            left -= len(parts[number])
        return {number: parts[number] for number in awake}

    def _rests(self, job: PacedJob, now_ns: int) -> bool:
        return self._rest and self._ticks % IDLE_TICKS > 0 and job.idle(now_ns)

    def _take(
        self, job: PacedJob, samples: Iterable[tuple[FlowKey, Sample | None]], gone: list[FlowKey]
    ) -> None:
        """Add the growth of the counters, and what is in flight, to that of the job's flows that were read before."""
        acked, delivered, marked, retransmits, unacked = job.grown
        for flow, now in samples:
            if now is None:
                del job.flows[flow]
                self._samples.forget(flow)
                gone.append(flow)
                continue
            unacked += now.unacked
            before = job.flows[flow]
            if before is not None:
                acked += now.acked_bytes - before.acked_bytes
                delivered += (now.delivered - before.delivered) & 0xFFFFFFFF
                marked += (now.delivered_ce - before.delivered_ce) & 0xFFFFFFFF
                retransmits += (now.retransmits - before.retransmits) & 0xFFFFFFFF
            job.flows[flow] = now
        job.grown = Sample(acked, delivered, marked, retransmits, unacked)

    def rates(self) -> Mapping[int, float]:
        """The rate in force of every job, as a share of the line rate."""
        return {number: job.applied for number, job in self.jobs.items()}
