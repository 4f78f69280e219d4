"""The scheme decision, the allocation and the migration of DRS."""

from fractions import Fraction
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltcp.core.errors import UsageError
from placement.model.cluster import Cluster
from placement.model.throughput import RingAllReduce
from placement.policies.schedulers.drs.allocation import FreeGpus
from placement.policies.schedulers.drs.migration import by_node, migrated
from placement.policies.schedulers.drs.scheme import decide, gains, schemes
from placement.simulator.executor import ScheduledJob
from placement.simulator.rates.timed_job import ModelTimes, TimedJob
from placement.traces.deadlines import WORKLOADS, DeadlineJob

NODES = Cluster.star(4, 4)
FREE = st.lists(st.integers(0, 4), min_size=1, max_size=4).filter(any)


def waiting(workload, alpha, bandwidth=10):
    job = DeadlineJob.with_priority("j", 0, workload, Fraction(alpha))
    model = RingAllReduce(bandwidth * 10**9, bandwidth * 6 * 10**8)
    return ScheduledJob(TimedJob.elastic(job, ModelTimes(model, workload, 4), 16)).view(0)


JOBS = st.builds(
    waiting, st.sampled_from(WORKLOADS), st.sampled_from(["1/2", "1", "3/2"]), st.sampled_from([1, 5, 10])
)


@given(job=JOBS, free=FREE, late_s=st.integers(0, 40_000))
def test_no_other_scheme_of_its_list_is_better(job, free, late_s):
    now_ns = late_s * 10**9
    chosen = decide(job, now_ns, free)
    assert chosen.gpus == 1 or gains(job, chosen.gpus, not chosen.cross_node)
    rivals = schemes(job, now_ns, sum(free) if chosen.cross_node else max(free), chosen.cross_node)
    slack_ns = job.deadline_ns - chosen.end_ns
    for other in rivals:
        other_slack_ns = job.deadline_ns - other.end_ns
        if slack_ns >= 0:
            assert other_slack_ns < 0 or Fraction(other_slack_ns, other.gpus) <= Fraction(
                slack_ns, chosen.gpus
            )
        else:
            assert other_slack_ns >= 0 or other.end_ns >= chosen.end_ns
    if chosen.cross_node:
        gpus = FreeGpus(NODES, {"held": _held(free)}).take(chosen.gpus, cross_node=True)
        assert len(by_node(NODES, gpus)) >= 2


@given(job=JOBS, free=FREE)
def test_only_the_multiset_of_free_gpus_counts(job, free):
    assert len({decide(job, 0, order) for order in permutations(free)}) == 1


@pytest.mark.parametrize(("alpha", "gpus"), [("1/2", 4), ("1", 2), ("3/2", 1)])
def test_twice_the_fewest_gpus_that_meet_the_deadline(alpha, gpus):
    """With hardly any communication."""
    job = waiting(WORKLOADS[6], alpha, bandwidth=1000)
    assert decide(job, 0, (4, 4, 4, 4)).gpus == gpus


def test_fragments_are_used_up():
    job = waiting(WORKLOADS[6], "1/2")
    assert decide(job, 0, (4, 4, 4, 4)).cross_node is False
    scheme = decide(job, 0, (1, 3, 0, 0))
    assert (scheme.gpus, scheme.cross_node) == (4, True)


def test_allocation_takes_the_fullest_node_that_has_room():
    free = FreeGpus(NODES, {"held": _held((4, 2, 3, 2))})
    assert by_node(NODES, free.take(2, cross_node=False)) == {1: 2}
    assert by_node(NODES, free.take(3, cross_node=False)) == {2: 3}
    assert by_node(NODES, free.take(5, cross_node=True)) == {0: 3, 3: 2}
    assert free.take(2, cross_node=False) is None
    assert free.total == 1


def test_five_jobs_go_from_four_nodes_to_three():
    held = {"a": (0, 1), "b": (2, 3), "c": (4, 5), "d": (8, 9), "e": (12, 13)}
    after = migrated(NODES, held)
    assert {job: len(gpus) for job, gpus in after.items()} == dict.fromkeys(held, 2)
    assert len({node for gpus in after.values() for node in by_node(NODES, gpus)}) == 3
    assert after["a"] == held["a"]
    assert migrated(NODES, after) == after


def test_nothing_moves_while_half_of_the_nodes_are_more_than_half_used():
    held = {"a": (0, 1, 2), "b": (4, 5, 6), "c": (8,), "d": (12,)}
    assert migrated(NODES, held) is held


def test_nothing_moves_where_the_plan_is_what_there_is():
    held = {"a": (0, 1)}
    assert migrated(Cluster.star(1, 4), held) is held


def test_nothing_moves_where_a_job_finds_no_room():
    nodes = Cluster.star(2, 8)
    held = {"a": (0, 1, 2, 3), "b": (4, 5), "c": (6, 7), "d": (8, 9, 10), "e": (11, 12, 13), "f": (14, 15)}
    assert migrated(nodes, held) is held


def test_a_job_needs_a_deadline():
    job = waiting(WORKLOADS[0], "1")
    object.__setattr__(job, "deadline_ns", None)
    with pytest.raises(UsageError, match="job 'j': deadline: expected one"):
        decide(job, 0, (4,))


def _held(free):
    return tuple(
        4 * node + gpu for node, count in enumerate((*free, 4, 4, 4)[:4]) for gpu in range(4 - count)
    )
