"""Comparisons on a trace that are refused before a lab is built."""

import pytest

from bench.compare.approach import parse_approaches
from bench.compare.trace.hosts import LabTraceSource
from bench.compare.trace.trace import TracePlan, compare_trace, first_jobs, total_iterations
from bench.lab.two_tier import TwoTier
from mltcp.core.demand import Demand, Phase
from mltcp.core.errors import UsageError
from placement.traces.sets import JobSet, TracedJob


def trace_of(*workers, iterations=100):
    demand = Demand((Phase(60_000_000, 0), Phase(40_000_000, 10**9)))
    jobs = [TracedJob(f"j{number}", each, iterations, 0, demand) for number, each in enumerate(workers)]
    return JobSet("trace", "", 50.0, tuple(jobs))


SMALL = TwoTier(racks=2, servers=2, slots=1)


def plan_of(policies="isolated,fair"):
    return TracePlan(parse_approaches(policies, "reno"), 20, repeat=3)


@pytest.mark.parametrize(
    ("trace", "plan", "shape", "message"),
    [
        (trace_of(1, 5), plan_of(), SMALL, "trace: j1: expected at most 4 workers, got 5"),
        (
            trace_of(1),
            plan_of("fair,mltcp_dcqcn"),
            SMALL,
            "--policies: expected mltcp_dcqcn@by=socket, since no daemon .* got mltcp_dcqcn",
        ),
        (
            trace_of(*[1] * 300),
            plan_of(),
            TwoTier(racks=8, servers=8, slots=8),
            "trace: jobs: expected at most .* got 300",
        ),
    ],
)
def test_what_the_lab_cannot_run_is_refused(trace, plan, shape, message):
    with pytest.raises(UsageError, match=message):
        compare_trace(
            trace, plan, LabTraceSource(shape), lambda approach, repeat: None, lambda measured: None
        )


def test_the_number_of_iterations_of_a_comparison():
    # 20 iterations a job in the lab; 10 where it runs alone.
    assert total_iterations(trace_of(1, 1), plan_of()) == 3 * (2 * 10 + 2 * 20)
    assert total_iterations(first_jobs(trace_of(1, 1), 1), plan_of("fair")) == 3 * 20
