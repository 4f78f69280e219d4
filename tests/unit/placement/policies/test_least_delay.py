"""Least delay: the example on which LWF-k has no bound, and how many servers a job is put on."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement.model.cluster import Cluster
from placement.model.job import PUBLISHED, Job, Model
from placement.policies.catalogue import LEAST_DELAY, communication_policy, placement_policy
from placement.policies.slot_pool import Holder, SlotPool, SlotRequest
from placement.simulator.exact.simulation import simulate

SECOND = Model("second", 1, 500_000_000, 500_000_000, 1)
"""An iteration computes for a second."""


def mean_of_small_jobs_s(placement, length):
    """Two GPUs; a job of so many seconds, and as many times two jobs of one second, a second apart."""
    long = Job(0, 0, 1, length, SECOND)
    small = [Job(1 + number, 10**9 * (1 + number // 2), 1, 1, SECOND) for number in range(2 * length)]
    outcome = simulate(
        [long, *small],
        Cluster.star(2, 1),
        placement_policy(placement),
        communication_policy("srsf-1"),
        PUBLISHED,
    )
    return np.mean([job.end_s - job.arrival_s for job in outcome.jobs if job.job_id])


@pytest.mark.parametrize("length", [16, 32, 64])
def test_behind_the_least_work_small_jobs_wait_for_each_other_and_not_where_they_go_first(length):
    # LWF sends them to the second GPU until it has as much work as the first; each that comes there waits for more.
    assert mean_of_small_jobs_s("lwf", length) >= length / 8
    # On the first one each goes before the long job, as soon as the second of its iterations that runs has ended.
    assert mean_of_small_jobs_s("least-delay", length) <= 2


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.data())
def test_a_job_is_on_as_few_servers_as_can_be_whoever_is_there(counts, data):
    made = SlotPool()
    made.add(counts, [0] * len(counts))
    free, holders = list(range(sum(counts))), []
    while len(free) > 1 and data.draw(st.booleans()):
        slots = tuple(data.draw(st.lists(st.sampled_from(free), min_size=1, max_size=3, unique=True)))
        holders.append(Holder(slots, data.draw(st.integers(0, 100))))
        made.occupy(slots, SlotRequest(len(slots)), holders[-1].left_ns)
        free = [slot for slot in free if slot not in slots]
    if not free:
        return
    wanted = data.draw(st.integers(1, len(free)))
    chosen = made.choose(LEAST_DELAY, 1, SlotRequest(wanted), left_ns=50, neighbours=made.neighbours(holders))
    assert len(chosen) == len({*chosen} & {*free}) == wanted
    rooms = sorted((made.free_of(server) for server in range(len(counts))), reverse=True)
    fewest = next(number for number in range(1, len(rooms) + 1) if sum(rooms[:number]) >= wanted)
    assert len(made.by_server(chosen)) == fewest
