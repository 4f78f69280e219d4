"""Every scheduler gives complete assignments in every state that a live run can be in."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.model.throughput import RingAllReduce
from placement.policies.schedulers.registry import SCHEDULERS, named_scheduler
from placement.policies.schedulers.scheduler import JobView
from placement.simulator.rates.timed_job import ModelTimes, RatesSettings
from placement.traces.deadlines import WORKLOADS
from tests.unit.placement.policies.schedulers import S, check_complete

RESTART_NS = 7 * S


@st.composite
def live_states(draw):
    """A cluster, a time, and jobs of which some hold GPUs, are restarting, are late, or have no work left."""
    shape = RatesSettings(RingAllReduce(), draw(st.integers(1, 3)), draw(st.integers(1, 4)))
    cluster, jobs = shape.cluster(), []
    free = draw(st.permutations(range(len(cluster.gpus))))
    for number in range(draw(st.integers(1, 6))):
        workload = draw(st.sampled_from(WORKLOADS))
        count = draw(st.integers(0, min(3, len(free))))
        gpus, free = tuple(sorted(free[:count])), free[count:]
        restarts, arrival_ns = draw(st.integers(0, 2)), number * S
        iterations = Fraction(workload.total_samples, workload.batch)
        jobs.append(
            JobView(
                name=str(number),
                arrival_ns=arrival_ns,
                gpus_wanted=1,
                gpus_min=1,
                gpus_max=len(cluster.gpus),
                iterations=iterations,
                iterations_left=iterations
                * draw(st.sampled_from([0, 1, Fraction(1, 3), Fraction(1, 10**15)])),
                times=ModelTimes(shape.model, workload, shape.gpus),
                gpus=gpus,
                restarts=restarts,
                noise_scale=float("inf"),
                deadline_ns=arrival_ns + draw(st.sampled_from([1, 3600 * S, 10**6 * S])),
                restart_ns=RESTART_NS if gpus or restarts else 0,
                restart_left_ns=draw(st.integers(0, RESTART_NS)) if gpus and restarts else 0,
                restart_cost_ns=RESTART_NS,
            )
        )
    return cluster, draw(st.sampled_from([6 * S, 10**4 * S])), jobs


@pytest.mark.parametrize("name", SCHEDULERS)
@settings(max_examples=25, deadline=None)
@given(state=live_states())
def test_assignments_are_complete_in_any_live_state(name, state):
    cluster, now_ns, jobs = state
    scheduler = named_scheduler(name)
    assignment = scheduler.candidates(cluster, now_ns, jobs, 1)[0]
    assert set(assignment) <= {job.name for job in jobs}
    check_complete(cluster, {name: gpus for name, gpus in assignment.items() if gpus}, jobs)
    next_ns = scheduler.next_ns(now_ns, jobs)
    assert next_ns is None or next_ns > now_ns
