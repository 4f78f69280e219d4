"""Use over time: to the nanosecond what the GPUs and links did."""

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest

from placement.model.job import Job, Model
from placement.simulator.exact.simulation import run
from placement.simulator.exact.transfers import note_use
from tests.unit.placement.simulator.exact_mixes import ns
from tests.unit.placement.simulator.layered_mixes import YIELDING, alone_on_two, instants, layered_mix

NAMES = (*YIELDING, "srsf-1", "srsf-3", "ada-srsf", "ada-srsf-k:layered", "srsf-2:layered")


def mixes():
    for number in range(30):
        mix = layered_mix(random.Random(f"use {number}"), NAMES)
        jobs = [
            replace(job, model=replace(job.model, size_bytes=max(1, job.model.size_bytes)))
            for job in mix.jobs
        ]
        yield replace(mix, jobs=jobs)


def watched(mix):
    """Of each GPU and link, the (since, until) in which it was busy, as seen from instant to instant."""
    world, before = mix.world(), 0
    spans = [[] for _ in range(len(world.gpus) + len(world.links))]
    busy = np.zeros(len(spans), bool)
    for now in instants(world):
        for row in np.flatnonzero(busy):
            spans[row].append((before, now))
        busy = np.concatenate([world.gpus["current"] >= 0, world.links["running"] > 0])
        before = now
    return spans, len(world.gpus), before


def cut(spans, interval, intervals):
    return [
        [
            sum(
                max(0, min(until, (number + 1) * interval) - max(since, number * interval))
                for since, until in row
            )
            for number in range(intervals)
        ]
        for row in spans
    ]


@pytest.mark.slow
@pytest.mark.parametrize("intervals", [1, 2, 7, 100])
def test_the_use_is_what_was_seen(intervals):
    for mix in itertools.islice(mixes(), 15):
        spans, gpus, end = watched(mix)
        interval = -(-end // intervals)
        world = mix.world((intervals, interval))
        assert [*instants(world)][-1] == end
        expected = cut(spans, interval, intervals)
        assert world.gpu_use.tolist() == expected[:gpus]
        assert world.link_use.tolist() == expected[gpus:]


@pytest.mark.parametrize("intervals", [1, 3, 1000, 100_000])
def test_the_sum_of_the_use_is_the_busy_time(intervals):
    for mix in mixes():
        end = ns(mix.outcome().makespan_s)
        world = mix.world((intervals, -(-end // intervals)))
        if mix.placement != "random":
            assert run(world) == end
        else:
            end = run(world)
        assert (world.gpu_use.sum(axis=1) == world.gpus["busy"]).all()
        assert (world.link_use.sum(axis=1) == world.links["busy"]).all()
        assert world.gpus["busy"].max() <= end


@pytest.mark.parametrize("intervals", [1, 2, 5, 999])
def test_shares_of_the_whole_are_of_the_makespan(intervals):
    for mix in mixes():
        outcome = mix.outcome(3, intervals)
        assert len(outcome.use.gpus) == len(mix.cluster.gpus)
        assert len(outcome.use.links) == len(mix.cluster.links)
        for row in (*outcome.use.gpus, *outcome.use.links):
            assert len(row) == intervals
            assert 0 <= min(row) <= max(row) <= 1
        total = sum(map(sum, outcome.use.gpus)) * ns(outcome.use.width_s) / len(outcome.use.gpus)
        assert total == pytest.approx(outcome.average_gpu_utilization * ns(outcome.makespan_s))
        assert replace(mix.outcome(3), wall_s=0) == replace(outcome, wall_s=0, use=None)


def test_worked_by_hand():
    # 0 to 10 computing, 10 to 16 sending, twice: 32 in four parts of 8.
    outcome = alone_on_two(0, "srsf-1", 6, 4, 6, iterations=2).outcome(intervals=4)
    assert ns(outcome.use.width_s) == 8
    gpu, link = [1, 2 / 8, 1, 2 / 8], [0, 6 / 8, 0, 6 / 8]
    assert outcome.use.gpus == [gpu, gpu]
    assert outcome.use.links == [link, link]


@pytest.mark.parametrize(
    ("since", "until", "expected"),
    [
        (0, 0, [0, 0, 0]),
        (0, 30, [10, 10, 10]),
        (10, 20, [0, 10, 0]),
        (9, 11, [1, 1, 0]),
        (5, 28, [5, 10, 8]),
        (20, 20, [0, 0, 0]),
    ],
)
def test_a_span_is_cut_where_intervals_end(since, until, expected):
    use = np.zeros((2, 3), np.int64)
    note_use(use, 10, 1, since, until)
    assert use.tolist() == [[0, 0, 0], expected]


def test_jobs_that_take_no_time_at_all():
    mix = alone_on_two(0, "srsf-1", 0, 0, 0)
    outcome = mix.outcome(intervals=2)
    assert outcome.makespan_s == 0
    assert outcome.average_gpu_utilization == 0
    assert outcome.use.gpus == [[0, 0], [0, 0]]
    none = replace(mix, jobs=[Job(1, 0, 1, 1, Model("any", 0, 0, 0, 0))])
    assert none.outcome().average_gpu_utilization == 0
