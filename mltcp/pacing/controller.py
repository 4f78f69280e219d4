"""The control loop of pacing: computes a rate for every job from the counters of its flows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from mltcp.control.aggressiveness import Aggressiveness
from mltcp.control.iteration import IterationRecord, IterationTracker
from mltcp.pacing.rate_law import Constants, RateLaw
from mltcp.pacing.sock_diag import NO_SAMPLE, FlowKey, Sample

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
    _waiting: bool = False
    _in_flight: bool = False  # at each reading since the last one with acknowledgements, that one included

    @property
    def bytes_ratio(self) -> float:
        """The progress of the job in its iteration, 0 to 1; 0 while iterations are not recognised."""
        tracker = self.tracker
        return min(1.0, tracker.bytes / tracker.total_bytes) if tracker.total_bytes else 0.0

    @property
    def factor(self) -> float:
        """F(bytes_ratio); 1 while iterations are not recognised, and for plain DCQCN."""
        if self.aggressiveness is None or not self.tracker.recognised:
            return 1.0
        return self.aggressiveness(self.bytes_ratio)

    def advance(self, from_ns: int, to_ns: int, grown: Sample) -> None:
        """Advance by a control interval, in which the flows' counters grew by ``grown``."""
        self.retransmits += grown.retransmits
        self.marks += grown.delivered_ce
        self.acked_bytes += grown.acked_bytes
        record = self.tracker.observe_interval(from_ns, to_ns, grown.acked_bytes, self._in_flight)
        self._in_flight = grown.unacked > 0 and (self._in_flight or grown.acked_bytes > 0)
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
        if self._in_flight or now_ns - tracker.last_ns <= tracker.gap_ns:
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
    """

    def __init__(
        self,
        samples: SampleSource,
        line_rate_bps: float,
        mltcp: bool = True,
        constants: Constants | None = None,
    ) -> None:
        self._samples = samples
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
        flows = [flow for job in self.jobs.values() for flow in job.flows]
        samples = iter(self._samples.sample(flows))
        # Not if they cannot be read: the next ones then belong to both intervals.
        from_ns, self._last_ns = self._last_ns, now_ns
        gone: list[FlowKey] = []
        changed: dict[int, float] = {}
        for number, job in self.jobs.items():
            grown = self._take(job, samples, gone)
            if from_ns is None:
                continue
            job.advance(from_ns, now_ns, grown)
            share = job.law.current_bps / self._line_rate_bps
            if abs(share - job.applied) > SMALLEST_CHANGE * job.applied:
                changed[number] = job.applied = share
        return changed, gone

    def _take(self, job: PacedJob, samples: Iterable[Sample | None], gone: list[FlowKey]) -> Sample:
        """The growth of the counters, and what is in flight, summed over the flows of a job."""
        acked = delivered = marked = retransmits = unacked = 0
        lost = []
        for (flow, before), now in zip(job.flows.items(), samples, strict=False):
            if now is None:
                lost.append(flow)
                continue
            unacked += now.unacked
            if before is not None:
                acked += now.acked_bytes - before.acked_bytes
                delivered += (now.delivered - before.delivered) & 0xFFFFFFFF
                marked += (now.delivered_ce - before.delivered_ce) & 0xFFFFFFFF
                retransmits += (now.retransmits - before.retransmits) & 0xFFFFFFFF
            job.flows[flow] = now
        for flow in lost:
            del job.flows[flow]
            self._samples.forget(flow)
        gone += lost
        return Sample(acked, delivered, marked, retransmits, unacked) if job.flows else NO_SAMPLE

    def rates(self) -> Mapping[int, float]:
        """The rate in force of every job, as a share of the line rate."""
        return {number: job.applied for number, job in self.jobs.items()}
