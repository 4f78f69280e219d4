"""Laws of whole jobs under deadlines, for every scheduler or for those that have them."""

import math
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from placement.experiments.bound import bound_of
from placement.model.parameter_server import ParameterServer
from placement.model.throughput import RingAllReduce, Workload
from placement.policies.schedulers.registry import SCHEDULERS, named_scheduler
from placement.simulator.rates.run import run_rates
from placement.simulator.rates.timed_job import RatesSettings
from placement.traces.deadlines import DeadlineJob, DeadlineTrace
from tests.unit.placement.simulator.rates.whole_jobs import (
    ALPHAS,
    DEADLINE_SCHEDULERS,
    NON_PREEMPTIVE,
    S,
    check_gpus,
    check_no_job_waits_beside_a_free_gpu,
    check_work,
    settings,
    traces,
)

FEW = hypothesis_settings(max_examples=15)
ALL = (*SCHEDULERS, "lwf-1", "first-fit", "list-scheduling")


def run(trace, setup, name):
    return run_rates(trace, setup, named_scheduler(name))


@pytest.mark.parametrize("name", ALL)
@FEW
@given(trace=traces(), setup=settings())
def test_gpus_are_given_once_and_all_work_is_done(name, trace, setup):
    outcome = run(trace, setup, name)
    check_gpus(outcome, setup.nodes, setup.gpus)
    check_work(outcome, setup.model)
    assert 0 <= outcome.utilization_arrivals <= 1
    assert 0 < outcome.utilization <= 1


class CrowdedRing(RingAllReduce):
    """A ring all-reduce of which each neighbour on a node takes a share."""

    @property
    def uses_neighbours(self):
        return True

    def samples_per_ns(self, workload, allocation, neighbours=()):
        nodes = dict(allocation)
        crowd = sum(any(node in nodes for node, _ in each.allocation) for each in neighbours)
        return super().samples_per_ns(workload, allocation) / (1 + crowd)


@pytest.mark.parametrize("model", [ParameterServer(), CrowdedRing()], ids=lambda model: type(model).__name__)
@pytest.mark.parametrize("name", ALL)
def test_every_scheduler_runs_under_every_kind_of_throughput_model(name, model):
    jobs = tuple(
        DeadlineJob(str(number), number * S, Workload("w", 10**6, 8, 10**8, 500, 2), 10**11 + number)
        for number in range(5)
    )
    setup = RatesSettings(model, 2, 2, S)
    outcome = run(DeadlineTrace("models", jobs, arrivals_ns=5 * S), setup, name)
    check_gpus(outcome, setup.nodes, setup.gpus)
    if not model.uses_neighbours:
        check_work(outcome, model)


@pytest.mark.parametrize("name", ["drs", "norm"])
@FEW
@given(trace=traces(), setup=settings())
def test_no_job_waits_while_a_gpu_is_free(name, trace, setup):
    check_no_job_waits_beside_a_free_gpu(run(trace, setup, name))


@given(trace=traces(most=20), setup=settings())
def test_migration_changes_no_number_of_gpus(trace, setup):
    drs, norm = run(trace, setup, "drs"), run(trace, setup, "norm")
    for job in trace.jobs:
        assert len({len(span.gpus) for span in drs.spans if span.job == job.name}) == 1
    assert norm.restarts == 0
    if drs.restarts == 0 or setup.nodes == 1:
        assert drs.table == norm.table


@pytest.mark.parametrize("name", ["fifo", "themis-batch"])
@FEW
@given(trace=traces(), setup=settings(), alphas=st.lists(st.sampled_from(ALPHAS), min_size=12, max_size=12))
def test_schedulers_that_know_no_deadlines_do_not_depend_on_them(name, trace, setup, alphas):
    jobs = tuple(
        replace(job, deadline_ns=job.arrival_ns + max(1, math.floor(alpha * job.workload.alone_ns)))
        for job, alpha in zip(trace.jobs, alphas, strict=False)
    )
    assert run(trace, setup, name).table == run(replace(trace, jobs=jobs), setup, name).table


@FEW
@given(trace=traces(), nodes=st.integers(2, 4), bandwidth=st.sampled_from([2, 4, 8]))
def test_fifo_ends_no_job_later_with_more_bandwidth(trace, nodes, bandwidth):
    slow, fast = (
        run(trace, RatesSettings(RingAllReduce(value * S, value * S), nodes, 4), "fifo").end_ns
        for value in (bandwidth, bandwidth + 1)
    )
    assert all(after <= before for before, after in zip(slow, fast, strict=True))


@FEW
@given(trace=traces(), nodes=st.integers(2, 4), gpus=st.integers(1, 4))
def test_fifo_ends_no_job_later_with_another_node(trace, nodes, gpus):
    # Steps of a few ns are left out: rounded to whole ns, they may take longer on more GPUs.
    jobs = tuple(
        replace(job, workload=replace(job.workload, compute_ns=job.workload.compute_ns + 1000))
        for job in trace.jobs
    )
    few, many = (
        run(replace(trace, jobs=jobs), RatesSettings(RingAllReduce(), count, gpus), "fifo").end_ns
        for count in (nodes, nodes + 1)
    )
    assert all(after <= before for before, after in zip(few, many, strict=True))


@pytest.mark.parametrize("name", NON_PREEMPTIVE)
@FEW
@given(trace=traces(), setup=settings())
def test_non_preemptive_schedulers_start_each_job_once(name, trace, setup):
    outcome = run(trace, setup, name)
    assert [span.job for span in sorted(outcome.spans, key=lambda span: int(span.job))] == [
        job.name for job in trace.jobs
    ]


@pytest.mark.parametrize("name", ["edf-efficient", "edf-rollout"])
@FEW
@given(trace=traces(), setup=settings())
def test_no_late_job_starts_beside_one_that_is_in_time(name, trace, setup):
    outcome = run(trace, setup, name)
    deadline_ns = {job.name: job.deadline_ns for job in trace.jobs}
    in_time = [span for span in outcome.spans if span.end_ns <= deadline_ns[span.job]]
    for late in (span for span in outcome.spans if span.end_ns > deadline_ns[span.job]):
        assert not any(span.start_ns <= late.start_ns < span.end_ns for span in in_time)


@pytest.mark.parametrize("name", DEADLINE_SCHEDULERS)
@FEW
@given(trace=traces(), setup=settings())
def test_no_scheduler_meets_more_deadlines_than_the_upper_bound(name, trace, setup):
    assert run(trace, setup, name).met <= bound_of(trace, setup).most


@pytest.mark.parametrize("name", DEADLINE_SCHEDULERS)
@FEW
@given(trace=traces(), setup=settings())
def test_a_job_that_arrives_after_all_have_ended_changes_nothing(name, trace, setup):
    alone = run(trace, setup, name)
    late_ns = max(alone.end_ns) + 1
    workload = Workload("late", 1, 1, 10, 10, 1)
    later = DeadlineJob("late", late_ns, workload, late_ns + 100)
    both = run(replace(trace, jobs=(*trace.jobs, later)), setup, name)
    before = [span for span in both.spans if span.job != "late"]
    assert before == list(alone.spans)


@st.composite
def divisible_jobs(draw):
    """Arrival, size, computing time and priority of jobs for `divisible`, by arrival."""
    arrivals = sorted(draw(st.lists(st.integers(0, 2000), min_size=1, max_size=8)))
    return [
        (arrival, draw(st.integers(1, 8)), draw(st.integers(1, 300)), draw(st.sampled_from(ALPHAS)))
        for arrival in arrivals
    ]


def divisible(drawn, factor):
    """A trace in which nothing is rounded on up to 12 GPUs; arrivals, T_cal and bytes are multiplied."""
    unit = 720_720
    jobs = []
    for number, (arrival, size, compute, alpha) in enumerate(drawn):
        workload = Workload(str(size), factor * unit * size, 2, factor * compute * unit, 2 * unit, 1)
        jobs.append(DeadlineJob.with_priority(str(number), factor * arrival * unit * unit, workload, alpha))
    return DeadlineTrace("divisible", tuple(jobs), arrivals_ns=factor * 3000 * unit * unit)


@pytest.mark.parametrize("name", sorted(set(NON_PREEMPTIVE) - {"edf-rollout"}))
@FEW
@given(drawn=divisible_jobs(), factor=st.sampled_from([2, 3, 10]))
def test_all_times_times_k_give_the_same_schedule_times_k(name, drawn, factor):
    setup = RatesSettings(RingAllReduce(2 * S, S), 3, 4)
    once, more = run(divisible(drawn, 1), setup, name), run(divisible(drawn, factor), setup, name)
    assert [factor * time for time in once.end_ns] == more.end_ns
    assert [factor * time for time in once.start_ns] == more.start_ns
    assert once.met == more.met


@pytest.mark.parametrize("name", ["drs", "elastic-edf", "elastic-mh", "elastic-density"])
def test_all_times_times_k_give_the_same_restarts_up_to_rounding(name):
    drawn = [
        (0, 3, 90, 1),
        (5, 1, 40, 0),
        (5, 8, 60, 2),
        (900, 2, 200, 2),
        (901, 5, 30, 1),
        (2000, 1, 300, 0),
    ]
    drawn = [(arrival, size, compute, ALPHAS[alpha]) for arrival, size, compute, alpha in drawn]
    once, thrice = (
        run(divisible(drawn, factor), RatesSettings(RingAllReduce(2 * S, S), 3, 4, factor * S), name)
        for factor in (1, 3)
    )
    assert [3 * time for time in once.end_ns] == pytest.approx(thrice.end_ns, abs=10)
    assert [3 * time for time in once.start_ns] == pytest.approx(thrice.start_ns, abs=10)
    assert (once.met, once.restarts) == (thrice.met, thrice.restarts)


@pytest.mark.parametrize("name", DEADLINE_SCHEDULERS)
def test_a_lone_job_on_one_gpu_ends_exactly_at_its_deadline(name):
    workload = Workload("w", 1000, 7, 333_333_333, 1000, 3)
    job = DeadlineJob.with_priority("lone", 17, workload, Fraction(1))
    outcome = run(DeadlineTrace("lone", (job,), arrivals_ns=18), RatesSettings(RingAllReduce(), 1, 1), name)
    assert outcome.end_ns == [job.deadline_ns] == [17 + -(-3000 * 333_333_333 // 7)]
    assert outcome.met == 1


@pytest.mark.parametrize("name", ALL)
def test_a_run_can_be_repeated(name):
    jobs = tuple(
        DeadlineJob(str(number), number * 100 * S, Workload("w", 10**7, 8, 10**8, 5000, 2), 10**14 + number)
        for number in range(8)
    )
    trace, setup = (
        DeadlineTrace("again", jobs, arrivals_ns=800 * S),
        RatesSettings(RingAllReduce(), 2, 2, 5 * S),
    )
    assert run(trace, setup, name).spans == run(trace, setup, name).spans
