"""The order in which jobs get GPUs and links: the smallest rank first."""

from __future__ import annotations

from placement.model.compiled import compiled
from placement.model.state import Records
from placement.policies.rule_numbers import REMAINING_TIME, SERVICE


@compiled
def rank(kind: int, jobs: Records, job: int) -> int:
    """The rank of a job that has been placed."""
    record = jobs[job]
    if kind == SERVICE:
        return record.service_left
    if kind == REMAINING_TIME:
        return record.iterations_left * (record.compute + record.transfer)
    # The compute that a worker has left, in 1024ths (which loses about a microsecond, but no range), times the cube
    # root of the number of workers; halved if the job communicates.
    work = ((record.iterations_left * record.compute) >> 10) * record.weight
    return work >> 1 if record.places else work
