"""How far a job is, as the service knows it: by its agent's reports, or by the time for which it has run."""

from __future__ import annotations

from fractions import Fraction

from placement.service.state.job_record import JobRecord


def done_iterations(job: JobRecord, now_ns: int) -> int:
    """The iterations that a job has done, counted in those with as many slots as it asked for; less than all.

    Of a job without an agent, or one that was restarted, it is an estimate: iterations take as long as in its profile,
    whatever its slots.
    """
    done = Fraction(job.done)
    if job.placed and (job.restarts or not job.agent):
        elapsed_ns = max(0, now_ns - job.placed_ns)
        done += Fraction(elapsed_ns * len(job.slots), job.iteration_ns * job.count)
    return min(int(done), job.spec.iterations - 1)
