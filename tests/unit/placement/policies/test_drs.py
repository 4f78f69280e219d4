"""The scheme decision, the allocation and the migration of DRS."""

from dataclasses import replace
from fractions import Fraction
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltcp.core.errors import UsageError
from placement.model.cluster import Cluster
from placement.model.throughput import RingAllReduce
from placement.policies.schedulers.deadlines.rules import RULES
from placement.policies.schedulers.deadlines.scheduler import DeadlineScheduler
from placement.policies.schedulers.free_gpus import FreeGpus
from placement.simulator.rates.timed_job import ModelTimes, TimedJob
from placement.simulator.scheduled_job import ScheduledJob
from placement.traces.deadlines import WORKLOADS, DeadlineJob
from tests.unit.placement.policies.deadlines_reference import gains, schemes
from tests.unit.placement.policies.schedulers import view

NODES = Cluster.star(4, 4)
FREE = st.lists(st.integers(0, 4), min_size=1, max_size=4).filter(any)


def waiting(workload, alpha, bandwidth=10):
    job = DeadlineJob.with_priority("j", 0, workload, Fraction(alpha))
    model = RingAllReduce(bandwidth * 10**9, bandwidth * 6 * 10**8)
    return ScheduledJob(TimedJob.elastic(job, ModelTimes(model, workload, 4), 16)).view(0)


JOBS = st.builds(
    waiting, st.sampled_from(WORKLOADS), st.sampled_from(["1/2", "1", "3/2"]), st.sampled_from([1, 5, 10])
)


def started(job, free, now_ns=0):
    """The number of GPUs that the job gets on nodes of four with so many free ones, whether across nodes, and T_end."""
    held = view("held", 16, 1, gpus=_held(free))
    (after,) = DeadlineScheduler("norm").candidates(NODES, now_ns, [held, job] if held.gpus else [job])
    gpus = after[job.name]
    cross_node = len(NODES.by_node(gpus)) > 1
    return len(gpus), cross_node, now_ns + job.run_ns(len(gpus), not cross_node)


def migrated(cluster, held):
    """The assignment of jobs that run after a decision of DRS."""
    return DeadlineScheduler("drs").candidates(
        cluster, 0, [view(name, len(gpus), gpus=gpus) for name, gpus in held.items()]
    )[0]


@given(job=JOBS, free=FREE, late_s=st.integers(0, 40_000))
def test_no_other_scheme_of_its_list_is_better(job, free, late_s):
    now_ns = late_s * 10**9
    count, cross_node, end_ns = started(job, free, now_ns)
    assert count == 1 or gains(job, count, not cross_node)
    slack_ns = job.deadline_ns - end_ns
    for other in schemes(job, now_ns, sum(free) if cross_node else max(free), cross_node):
        other_slack_ns = job.deadline_ns - other.end_ns
        if slack_ns >= 0:
            assert other_slack_ns < 0 or Fraction(other_slack_ns, other.gpus) <= Fraction(slack_ns, count)
        else:
            assert other_slack_ns >= 0 or other.end_ns >= end_ns


@given(job=JOBS, free=FREE)
def test_only_the_multiset_of_free_gpus_counts(job, free):
    assert len({started(job, order) for order in permutations(free)}) == 1


@pytest.mark.parametrize(("alpha", "gpus"), [("1/2", 4), ("1", 2), ("3/2", 1)])
def test_twice_the_fewest_gpus_that_meet_the_deadline(alpha, gpus):
    """With hardly any communication."""
    assert started(waiting(WORKLOADS[6], alpha, bandwidth=1000), (4, 4, 4, 4))[0] == gpus


def test_fragments_are_used_up():
    job = waiting(WORKLOADS[6], "1/2")
    assert started(job, (4, 4, 4, 4))[1] is False
    assert started(job, (1, 3, 0, 0))[:2] == (4, True)


def test_allocation_takes_the_fullest_node_that_has_room():
    free = FreeGpus(NODES, {"held": _held((4, 2, 3, 2))})
    assert NODES.by_node(free.take(2, cross_node=False)) == {1: 2}
    assert NODES.by_node(free.take(3, cross_node=False)) == {2: 3}
    assert NODES.by_node(free.take(5, cross_node=True)) == {0: 3, 3: 2}
    assert free.take(2, cross_node=False) is None
    assert free.total == 1


def test_five_jobs_go_from_four_nodes_to_three():
    held = {"a": (0, 1), "b": (2, 3), "c": (4, 5), "d": (8, 9), "e": (12, 13)}
    after = migrated(NODES, held)
    assert {job: len(gpus) for job, gpus in after.items()} == dict.fromkeys(held, 2)
    assert len({node for gpus in after.values() for node in NODES.by_node(gpus)}) == 3
    assert after["a"] == held["a"]
    assert migrated(NODES, after) == after


def test_nothing_moves_while_half_of_the_nodes_are_more_than_half_used():
    held = {"a": (0, 1, 2), "b": (4, 5, 6), "c": (8,), "d": (12,)}
    assert migrated(NODES, held) == held


def test_nothing_moves_where_the_plan_is_what_there_is():
    held = {"a": (0, 1)}
    assert migrated(Cluster.star(1, 4), held) == held


def test_nothing_moves_where_a_job_finds_no_room():
    nodes = Cluster.star(2, 8)
    held = {"a": (0, 1, 2, 3), "b": (4, 5), "c": (6, 7), "d": (8, 9, 10), "e": (11, 12, 13), "f": (14, 15)}
    assert migrated(nodes, held) == held


def test_a_job_needs_a_deadline_unless_the_rule_looks_at_none():
    job = replace(waiting(WORKLOADS[0], "1"), deadline_ns=None)
    for name, rule in RULES.items():
        if name in ("fifo", "themis-batch"):
            assert not rule.needs_deadlines
            assert DeadlineScheduler(name).candidates(NODES, 0, [job])[0]["j"]
        else:
            with pytest.raises(UsageError, match="job 'j': deadline: expected one"):
                DeadlineScheduler(name).candidates(NODES, 0, [job])


def _held(free):
    return tuple(
        4 * node + gpu for node, count in enumerate((*free, 4, 4, 4)[:4]) for gpu in range(4 - count)
    )
