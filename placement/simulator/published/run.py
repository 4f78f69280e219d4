"""Runs the published simulator's rules on a trace."""

from __future__ import annotations

import time
from collections.abc import Sequence

from mltcp.core.errors import UsageError
from placement.model.cluster import GPU_MEMORY_MB
from placement.model.job import Job
from placement.simulator.published.loop import run_to_end
from placement.simulator.published.result import PublishedRun, result_of
from placement.simulator.published.rules import PublishedRules, rules_of
from placement.simulator.published.state import initial_state


def run(
    jobs: Sequence[Job],
    placement: str,
    kappa: int,
    communication: str,
    *,
    defect: bool,
    seed: int = 0,
    servers: int = 16,
    gpus: int = 4,
    memory_mb: int = GPU_MEMORY_MB,
) -> PublishedRun:
    """Run the jobs by the published simulator's rules.

    Args:
        jobs: of the trace, in any order.
        placement: random, first-fit, list-scheduling or lwf.
        kappa: of lwf: jobs with more workers are kept together on servers.
        communication: ada-srsf, or srsf-N with the number of transfers that a server may have.
        defect: whether AdaDUAL's queries advance the queried transfers, as published.
        seed: of the random placement, which draws what Python's generator of this seed gives.
        servers: around one switch.
        gpus: of a server.
        memory_mb: of a GPU.

    Raises:
        UsageError: no jobs, an unknown policy, a job that can never run, or times that are not whole milliseconds.
    """
    rule, kappa, most = rules_of(placement, kappa, communication)
    rules = PublishedRules(rule, kappa, most, defect, servers, gpus, memory_mb)
    if not jobs:
        raise UsageError("jobs: expected one or more, got no jobs")
    rules.check_jobs(jobs)
    ordered = sorted(jobs, key=lambda job: (job.arrival_ns, job.job_id))
    state = initial_state(ordered, rules, seed)
    began = time.perf_counter()
    total_ms = run_to_end(state, False)
    return result_of(ordered, state, total_ms, time.perf_counter() - began)
