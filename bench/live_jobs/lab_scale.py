"""The scale of whole jobs on the lab: from a trace's cluster and clock to the lab's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from bench.lab.two_tier import TwoTier
from mltcp.core.errors import UsageError, shown
from placement.model.throughput import BETWEEN_BYTES_PER_S, RingAllReduce, Workload
from placement.simulator.rates.timed_job import RatesSettings
from placement.traces.deadlines import DeadlineJob, DeadlineTrace

SPEED = 400
STEP_NS = 250_000_000
"""The computing time of a step in the lab, of every workload: long against what 16 ranks cost two cores in a step."""

BATCH = 4
"""Samples of a rank in a step, in the lab."""

INSIDE_BYTES_PER_S = 250_000_000
"""The bandwidth of an all-reduce over the loopback of a host of the lab, about."""

_FRAMING = Fraction(97, 100)
_MOST_SPEED = 1_000_000


@dataclass(frozen=True)
class LabScale:
    """From a trace to the lab.

    The ratio of communication to computation of a workload is kept: its gradients are as large as the lab's NICs
    transfer in the time that the trace's cluster needs, at the length of the lab's steps. Inside a host the lab is
    faster than that, unless its shape says how fast; schedulers and prediction are told so.

    Attributes:
        shape: of the lab; each rack has one server, and a server is a node.
        speed: seconds of the trace in a second of the lab.
        between_bytes_per_s: of the trace's cluster, between nodes.

    Raises:
        UsageError: the speed is out of range, or a rack has several servers.
    """

    shape: TwoTier
    speed: Fraction = Fraction(SPEED)
    between_bytes_per_s: int = BETWEEN_BYTES_PER_S

    def __post_init__(self) -> None:
        if not 0 < self.speed <= _MOST_SPEED:
            raise UsageError(
                f"speed: expected more than 0 and up to {_MOST_SPEED}, got {shown(float(self.speed))}"
            )
        if self.shape.servers != 1:
            raise UsageError(
                f"servers: expected 1 a rack for whole jobs, whose racks are nodes, got {self.shape.servers}"
            )

    @property
    def inside_bytes_per_s(self) -> int:
        """The payload that a rank sends to the next one inside a host of the lab."""
        return INSIDE_BYTES_PER_S if self.shape.inside_bps is None else self.shape.inside_bps // 8

    @property
    def nic_bytes_per_s(self) -> int:
        """The payload that a NIC of the lab carries, without headers."""
        return int(self.shape.nic.rate_bps * _FRAMING / 8)

    @property
    def model(self) -> RingAllReduce:
        """The speeds of jobs in the lab."""
        return RingAllReduce(self.inside_bytes_per_s, self.nic_bytes_per_s)

    def settings(self, restart_ns: int = 0) -> RatesSettings:
        """The lab as a simulated cluster."""
        return RatesSettings(self.model, self.shape.racks, self.shape.slots, restart_ns)

    def workload(self, workload: Workload) -> Workload:
        """The training that stands for a workload of the trace."""
        steps = max(1, round(workload.alone_ns / self.speed / STEP_NS))
        stretch = Fraction(STEP_NS, workload.compute_ns)
        size = workload.parameters * stretch * self.nic_bytes_per_s / self.between_bytes_per_s
        return Workload(workload.name, max(1, round(size)), BATCH, STEP_NS, steps * BATCH, 1)

    def trace(self, trace: DeadlineTrace) -> DeadlineTrace:
        """The trace on the lab's clock, with the lab's trainings."""
        jobs = tuple(self._job(job) for job in trace.jobs)
        return replace(trace, jobs=jobs, arrivals_ns=max(1, self._lab_ns(trace.arrivals_ns)))

    def _job(self, job: DeadlineJob) -> DeadlineJob:
        arrival_ns = self._lab_ns(job.arrival_ns)
        deadline_ns = arrival_ns + max(1, self._lab_ns(job.deadline_ns - job.arrival_ns))
        return replace(
            job, arrival_ns=arrival_ns, deadline_ns=deadline_ns, workload=self.workload(job.workload)
        )

    def _lab_ns(self, time_ns: int) -> int:
        return round(time_ns / self.speed)
