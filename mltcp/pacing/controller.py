"""The control loop of pacing: what the kernel tells of every job's flows goes in, a rate for every job comes out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from mltcp.control.aggressiveness import Aggressiveness
from mltcp.control.iteration import IterationRecord, IterationTracker
from mltcp.pacing.rate_law import Constants, RateLaw
from mltcp.pacing.sock_diag import NO_SAMPLE, FlowKey, Sample

SMALLEST_CHANGE = 0.005
"""A rate that differs by less than this share from the one in force is not worth a message to the kernel."""


class Diagnosis(Protocol):
    """Where samples come from: :class:`mltcp.pacing.sock_diag.SockDiag`."""

    def sample(self, flows: list[FlowKey]) -> list[Sample | None]:
        """The counters of each flow; None for one that is gone."""

    def forget(self, flow: FlowKey) -> None:
        """This flow will not be asked for again."""


@dataclass
class PacedJob:
    """A job as the control loop sees it.

    Attributes:
        law: its rate.
        aggressiveness: F; None for plain DCQCN.
        tracker: its iterations, out of the acknowledged bytes of all its flows on this host.
        flows: each with its last counters; None until it has been read once.
        applied: the rate in force, as a share of the line rate.
        retransmits, marks, acked_bytes: sums over all flows since each came, also those that are gone.
        finished: the iterations that ended since they were last taken.
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

    @property
    def bytes_ratio(self) -> float:
        """How far the job is in its iteration, 0 to 1; 0 while its iterations are not known."""
        tracker = self.tracker
        return min(1.0, tracker.bytes / tracker.total_bytes) if tracker.total_bytes else 0.0

    @property
    def factor(self) -> float:
        """F(bytes_ratio); 1 while the iterations are not known, and for plain DCQCN."""
        if self.aggressiveness is None or not self.tracker.recognised:
            return 1.0
        return self.aggressiveness(self.bytes_ratio)

    def advance(self, from_ns: int, to_ns: int, grown: Sample) -> None:
        """A control interval has passed, in which the flows' counters grew by so much."""
        self.retransmits += grown.retransmits
        self.marks += grown.delivered_ce
        self.acked_bytes += grown.acked_bytes
        record = self.tracker.observe_interval(from_ns, to_ns, grown.acked_bytes)
        if record is not None:
            self.finished.append(record)
        if self._waits(to_ns, grown):
            return
        marked = grown.delivered_ce > 0 or grown.retransmits > 0
        self.law.step((to_ns - from_ns) / 1e9, marked, grown.acked_bytes, self.factor)

    def _waits(self, now_ns: int, grown: Sample) -> bool:
        """Whether the iteration is over and the next has not begun: then the rate is set for its first bytes.

        Only then: what a flow begins with must be in force before it begins. MLTCP's F(0) makes room for those that
        are further; under plain DCQCN the rate recovers to the line rate during the pause, as it does on a card.
        """
        tracker = self.tracker
        if self.aggressiveness is None or not tracker.recognised or grown.acked_bytes:
            self._waiting = False
            return False
        if now_ns - tracker.last_ns <= tracker.gap_ns:
            return False
        if not self._waiting:
            self._waiting = True
            self.law.start(self.aggressiveness(0.0))
        return True


class PacingController:
    """Paces jobs by their number (that of their class). What comes out are shares of the line rate.

    Args:
        diagnosis: where samples come from.
        line_rate_bps: of the fastest interface; it matters for the law's byte counter only.
        mltcp: whether F acts; without it this is plain DCQCN.
        constants: of the rate law.
    """

    def __init__(
        self,
        diagnosis: Diagnosis,
        line_rate_bps: float,
        mltcp: bool = True,
        constants: Constants | None = None,
    ) -> None:
        self._diagnosis = diagnosis
        self._line_rate_bps = line_rate_bps
        self._mltcp = mltcp
        self._constants = constants or Constants()
        self._last_ns: int | None = None
        self.jobs: dict[int, PacedJob] = {}

    def add_job(self, number: int, aggressiveness: Aggressiveness, tracker: IterationTracker) -> PacedJob:
        """Pace another job from the next interval on."""
        job = PacedJob(
            RateLaw(self._line_rate_bps, self._constants), aggressiveness if self._mltcp else None, tracker
        )
        self.jobs[number] = job
        return job

    def remove_job(self, number: int) -> None:
        """Pace this job no more; one that is not known is no error."""
        job = self.jobs.pop(number, None)
        for flow in () if job is None else job.flows:
            self._diagnosis.forget(flow)

    def add_flows(self, number: int, flows: Iterable[FlowKey]) -> None:
        """Connections of a job; they count from their next reading on."""
        job = self.jobs[number]
        for flow in flows:
            job.flows.setdefault(flow, None)

    def change(self, number: int, aggressiveness: Aggressiveness) -> None:
        """Give a job another F."""
        if self._mltcp:
            self.jobs[number].aggressiveness = aggressiveness

    def tick(self, now_ns: int) -> tuple[dict[int, float], list[FlowKey]]:
        """One control interval: the rates that change, as shares of the line rate, and the flows that are gone."""
        from_ns, self._last_ns = self._last_ns, now_ns
        flows = [flow for job in self.jobs.values() for flow in job.flows]
        samples = iter(self._diagnosis.sample(flows))
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
        """By how much the counters of a job's flows have grown together."""
        acked = delivered = marked = retransmits = 0
        lost = []
        for (flow, before), now in zip(job.flows.items(), samples, strict=False):
            if now is None:
                lost.append(flow)
                continue
            if before is not None:
                acked += now.acked_bytes - before.acked_bytes
                delivered += (now.delivered - before.delivered) & 0xFFFFFFFF
                marked += (now.delivered_ce - before.delivered_ce) & 0xFFFFFFFF
                retransmits += (now.retransmits - before.retransmits) & 0xFFFFFFFF
            job.flows[flow] = now
        for flow in lost:
            del job.flows[flow]
            self._diagnosis.forget(flow)
        gone += lost
        return Sample(acked, delivered, marked, retransmits) if job.flows else NO_SAMPLE

    def rates(self) -> Mapping[int, float]:
        """The rate in force of every job, as a share of the line rate."""
        return {number: job.applied for number, job in self.jobs.items()}
