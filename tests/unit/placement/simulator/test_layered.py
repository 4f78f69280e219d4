"""Transfers in buckets that become ready during the backward pass: against theory, and the rules told plainly."""

import math
import os
import random
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.model.state import COMPUTING, SENDING, WAITING
from placement.policies.catalogue import BUCKET_BYTES
from placement.simulator.exact.simulation import alone_ns
from tests.unit.placement.simulator.layered_mixes import alone_on_two, instants, layered_mix

LAYERED = ("srsf-1:layered", "srsf-2:layered", "srtf-1:layered", "srtf-3:layered:gpus", "ada-srsf:layered")
CHUNKS = int(os.environ.get("MLTCP_TEST_EXACT", "6")) // 3
"""Of 20 mixes; more take longer and look into more corners."""

few = settings(max_examples=80, deadline=None)
names = st.sampled_from(
    ["srsf-1:layered", "srsf-4:layered", "ada-srsf:layered", "ada-srsf-k:layered", "srtf-yield"]
)


def expected(buckets, each, forward, backward):
    """When the iteration ends, and what of the sending comes after the backward pass; `each` is a bucket's time.

    The k-th bucket is ready after k/n of the backward pass, and sent as soon as those before it have been.
    """
    computed = forward + backward
    free = after = 0
    for number in range(1, buckets + 1):
        begins = max(free, forward + math.ceil(Fraction(number * backward, buckets)))
        free = begins + each
        after += max(0, free - max(begins, computed))
    return free, after


@given(
    names,
    st.integers(1, 12),
    st.integers(1, 400),
    st.integers(0, 300),
    st.integers(0, 2000),
    st.sampled_from([0, 1, 17, 500]),
    st.sampled_from([Fraction(1, 2), Fraction(1), Fraction(4)]),
    st.integers(1, 3),
)
@few
def test_a_job_alone_takes_what_theory_says(
    name, buckets, each, forward, backward, latency, speed, iterations
):
    mix = alone_on_two(buckets, name, buckets * each, forward, backward, latency, speed, iterations)
    sending = latency + math.ceil(each / speed)
    end, after = expected(buckets, sending, forward, backward)
    ((_, result),) = mix.results().items()
    assert result.end == iterations * end
    assert result.communication == iterations * after == iterations * (end - forward - backward)
    assert (result.gpu_wait, result.link_wait) == (0, 0)


@given(names, st.integers(1, 12), st.integers(1, 5000), st.integers(0, 300), st.integers(0, 2000))
@few
def test_buckets_are_of_equal_sizes_whatever_the_size(name, buckets, size, forward, backward):
    buckets = -(-size // -(-size // buckets))  # as many as there are of that many bytes
    mix = alone_on_two(buckets, name, size, forward, backward)
    end, _ = expected(buckets, math.ceil(Fraction(size, buckets)), forward, backward)
    ((_, result),) = mix.results().items()
    assert result.end == end


@pytest.mark.parametrize(
    ("each", "end"),
    [
        (
            1,
            12 + 100 + 1,
        ),  # the links starve: a bucket of 1 every 20, the last at the end of the backward pass
        (20, 12 + 100 + 20),  # as fast as they become ready
        (30, 12 + 20 + 5 * 30),  # from the first on without a break
    ],
)
def test_five_buckets_of_a_backward_pass_of_100(each, end):
    ((_, result),) = alone_on_two(5, "srsf-1:layered", 5 * each, 12, 100).results().items()
    assert (result.end, result.communication) == (end, end - 112)


def test_every_bucket_costs_the_latency():
    # At 12 + 20 the first is ready; then five times 7 + 30.
    ((_, result),) = alone_on_two(5, "srtf-yield", 150, 12, 100, latency=7).results().items()
    assert result.end == 12 + 20 + 5 * 37


@given(st.integers(1, 12), st.integers(1, 400), st.integers(0, 300), st.integers(0, 2000))
@few
def test_buckets_are_never_slower_than_the_whole(buckets, each, forward, backward):
    ends = [
        alone_on_two(buckets, name, buckets * each, forward, backward).results()[1].end
        for name in ("srtf-yield", "srsf-1")
    ]
    whole = forward + backward + buckets * each
    whole_mix = alone_on_two(0, "srsf-1", buckets * each, forward, backward)
    assert whole_mix.results()[1].end == whole
    assert all(max(forward + backward, forward + buckets * each) <= end <= whole for end in ends)


@pytest.mark.parametrize(
    ("size", "buckets"),
    [(1, 1), (BUCKET_BYTES, 1), (BUCKET_BYTES + 1, 2), (4 * BUCKET_BYTES, 4), (4 * BUCKET_BYTES + 1, 5)],
)
def test_a_bucket_has_25_megabytes_at_most(size, buckets):
    backward = 1000 * size
    mix = alone_on_two(0, "srsf-1:layered", size, 10, backward)
    assert mix.world().jobs["buckets"].tolist() == [buckets]
    # All but the last have been sent long before the backward pass ends.
    assert mix.results()[1].communication == math.ceil(Fraction(size, buckets))


def test_each_bucket_is_sent_when_it_is_its_turn():
    world = alone_on_two(4, "srsf-1:layered", 40, 12, 100, iterations=2).world()
    begun = [
        (now, int(world.jobs[0]["sent"])) for now in instants(world) if world.jobs[0]["state"] == SENDING
    ]
    assert begun == [
        (37, 0), (62, 1), (87, 2), (112, 3), (122 + 37, 0), (122 + 62, 1), (122 + 87, 2), (122 + 112, 3)
    ]  # fmt: skip
    assert world.jobs[0]["ended"] == 244


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_the_same_as_told_plainly(chunk):
    for mix in mixes(chunk):
        told = replace(mix, placement="lwf") if mix.placement == "random" else mix
        assert told.results() == told.told(), told


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_what_is_counted_is_what_was_seen(chunk):
    for mix in mixes(chunk):
        check_times(mix.world())


def mixes(chunk):
    for number in range(20):
        mix = layered_mix(random.Random(f"layered {chunk} {number}"), LAYERED)
        jobs = [
            replace(job, model=replace(job.model, size_bytes=max(1, job.model.size_bytes)))
            for job in mix.jobs
        ]
        yield replace(mix, jobs=jobs)


def check_times(world):
    """Waiting for links and sending count once the workers have computed, and sending takes its time in all."""
    jobs, before = world.jobs, 0
    waited, sent, in_all = ([0] * len(jobs) for _ in range(3))
    states, computed = jobs["state"].tolist(), jobs["computed"].tolist()
    for now in instants(world):
        for number in range(len(jobs)):
            passed = now - before
            in_all[number] += passed if states[number] == SENDING else 0
            if computed[number] >= 0 and jobs[number]["places"]:
                assert passed == 0 or states[number] != COMPUTING
                waited[number] += passed if states[number] == WAITING else 0
                sent[number] += passed if states[number] == SENDING else 0
        states, computed, before = jobs["state"].tolist(), jobs["computed"].tolist(), now
    assert jobs["link_wait"].tolist() == waited
    assert jobs["communication"].tolist() == sent
    assert jobs["sending"].tolist() == in_all
    for job in jobs:
        assert job["sending"] >= job["iterations"] * alone_ns(world, job)
        assert job["sent"] == (job["buckets"] if job["places"] else 0)
