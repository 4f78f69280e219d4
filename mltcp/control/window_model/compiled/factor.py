"""F(bytes_ratio), and its scale by the time to send an iteration, as in law.bpf.h and flow.bpf.h."""

from __future__ import annotations

from mltcp.control.window_model.compiled.compiler import compiled
from mltcp.control.window_model.compiled.state import Record

LARGEST_SCALE, SMALLEST_SCALE = 4.0, 0.25

# The codes of mltcp.control.aggressiveness.Shape.
LINEAR, QUADRATIC, RECIPROCAL, CONCAVE, FALLING_LINEAR, FALLING_QUADRATIC, REMAINING = range(1, 8)


@compiled
def factor(law: Record, x: float, scale: float) -> float:
    """F at the bytes_ratio x."""
    s, i = law.slope, law.intercept
    if law.shape == LINEAR:
        return s * x + i
    if law.shape == QUADRATIC:
        return s * x * x + i
    if law.shape == RECIPROCAL:
        return i * (s + i) / ((s + i) - s * x)
    if law.shape == CONCAVE:
        return s * x * (2 - x) + i
    if law.shape == FALLING_LINEAR:
        return (s + i) - s * x
    if law.shape == FALLING_QUADRATIC:
        return (s + i) - s * x * x
    if law.shape == REMAINING:
        return min(s + i, i * scale / (1 - x) ** 2) if x < 1 else s + i
    return 1.0


@compiled
def is_recognised(law: Record, job: Record) -> bool:
    """Whether a law of MLTCP is in force: the job's iterations are recognised."""
    return law.shape > 0 and job.iteration >= law.learning


@compiled
def current_factor(law: Record, job: Record) -> float:
    """F of a job now; 1 until its iterations are recognised."""
    if not is_recognised(law, job):
        return 1.0
    return factor(law, min(1.0, job.acked / job.total), job.scale)


@compiled
def rescale(law: Record, job: Record) -> None:
    """mltcp_rescale(): at an iteration's end, scale F by sqrt(reference / time to send an iteration)."""
    took = job.last_acked - job.first_sent
    if law.reference == 0 or took <= 0 or job.iteration < law.learning:
        return
    if job.sending_time == 0 or took < job.sending_time:
        job.sending_time = took
    else:
        job.sending_time += (took - job.sending_time) / 64
    job.scale = min(LARGEST_SCALE, max(SMALLEST_SCALE, (law.reference / job.sending_time) ** 0.5))
