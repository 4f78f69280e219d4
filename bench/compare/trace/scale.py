"""From the time of a trace to the time of the lab, whose iterations are longer and fewer."""

from __future__ import annotations

from dataclasses import dataclass

from bench.workloads.phases import time_scale
from placement.traces.sets import JobSet, TracedJob

LEAST_ITERATIONS = 5
ISOLATED_ITERATIONS = 10


@dataclass(frozen=True)
class TraceScale:
    """The factors from the trace to the lab.

    Attributes:
        time: of the time of an iteration.
        iterations: of the number of iterations of a job.
    """

    time: float
    iterations: float

    @property
    def clock(self) -> float:
        """The lab time that a second of the trace takes."""
        return self.time * self.iterations

    def iterations_of(self, job: TracedJob, isolated: bool) -> int:
        """The iterations that a job runs in the lab; isolated, no more than a mean needs."""
        shared = max(LEAST_ITERATIONS, round(job.iterations * self.iterations))
        return min(ISOLATED_ITERATIONS, shared) if isolated else shared


def scale_of(trace: JobSet, iterations: int) -> TraceScale:
    """The scale at which iterations last 0.2 to 0.6 s, and the longest job has so many of them."""
    times_s = [job.demand.iteration_ns / 1e9 for job in trace.jobs]
    return TraceScale(time_scale(times_s), iterations / max(job.iterations for job in trace.jobs))
