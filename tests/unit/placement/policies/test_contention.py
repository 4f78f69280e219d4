"""Rules in rounds: gains, what schedulers are shown and answer, and names."""

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mltcp.core.errors import UsageError
from placement.model.throughput_table import TableModel, published_table
from placement.policies.schedulers.contention.marginal import best_start, reopt
from placement.policies.schedulers.contention.places import gain, start, utility, weigh_running
from placement.policies.schedulers.contention.rule import NAMES, ORDERED_RULES, RULES, find_rule
from placement.policies.schedulers.contention.world import WAITS
from placement.policies.schedulers.registry import named_scheduler
from placement.policies.schedulers.scheduling_policy import scheduling_policy
from placement.simulator.rates.rounds.run import RoundsSettings, world_of
from placement.simulator.rates.timed_job import TimedJob
from placement.simulator.scheduled_job import ScheduledJob
from placement.traces.contention import ContentionMix

MODEL = TableModel(published_table())
SETTINGS = RoundsSettings(MODEL)
CLUSTER = SETTINGS.cluster()


def world_at(seed, name, jobs, shares):
    """All jobs wait, with a share of their samples left."""
    trace = ContentionMix(None, jobs=jobs).trace(seed, MODEL.table)
    world = world_of(trace, SETTINGS, find_rule(name))
    world.jobs["state"], world.queue[:] = WAITS, range(jobs)
    world.jobs["remaining"] *= [shares[number % len(shares)] for number in range(jobs)]
    world.core["waiting"] = world.core["seen"] = jobs
    return world


shares = st.lists(st.sampled_from((0.001, 0.1, 0.5, 1.0)), min_size=1, max_size=5)


@settings(max_examples=25)
@given(st.integers(0, 99), st.integers(1, 20), shares)
def test_each_start_of_greedy_raises_the_utility_by_its_gain(seed, jobs, shares):
    world = world_at(seed, "greedy", jobs, shares)
    weigh_running(world)
    while True:
        job, cell, nodes, weight = best_start(world)
        if job < 0:
            break
        expected, before = gain(world, weight, cell, nodes), utility(world)
        assert expected > 0
        start(world, job, cell, nodes, weight * world.cells[cell]["speed"])
        assert utility(world) - before == pytest.approx(expected, abs=1e-9)
        assert (world.free >= 0).all()
        gpus = sum(
            world.cells[slot["cell"]]["gpus"] * world.cells[slot["cell"]]["nodes"] for slot in running(world)
        )
        assert gpus + world.free.sum() == 32


def running(world):
    return world.slots[: int(world.core[0]["running"])]


@settings(max_examples=25)
@given(st.integers(0, 99), st.integers(1, 20), shares, st.integers(0, 12))
def test_reopt_never_lowers_the_utility(seed, jobs, shares, starts):
    world = world_at(seed, "reopt", jobs, shares)
    weigh_running(world)
    for _ in range(starts):  # a state that `reopt` did not choose
        job = int(world.queue[0])
        cell = int(world.kinds[world.jobs[job]["kind"]]["first"])
        each = int(world.sets[int(world.cells[cell]["first"]) + seed % int(world.cells[cell]["sets"])])
        fits = all(world.free[node] >= world.cells[cell]["gpus"] for node in range(4) if each >> node & 1)
        if not fits or int(world.core[0]["waiting"]) == 1:
            break
        start(world, job, cell, each, 0.0)
    weigh_running(world)
    before = utility(world)
    reopt(world)
    assert utility(world) >= before - 1e-9


def views(now_ns, jobs, running):
    """Views of drawn jobs; `running` gives some of them GPUs."""
    trace = ContentionMix(None, jobs=jobs).trace(0, MODEL.table)
    found = []
    for job in trace.jobs:
        scheduled = ScheduledJob(TimedJob.fixed(job, MODEL), running.get(job.name, ()))
        found.append(scheduled.view(0, now_ns))
    return found


@pytest.mark.parametrize("name", [*RULES, "srsf-table-ratio", "las-head-most-nodes-full"])
def test_a_decision_is_a_function_of_what_the_scheduler_is_shown(name):
    scheduler = named_scheduler(name)
    jobs = views(0, 20, {})
    (first,), (again,) = (scheduler.candidates(CLUSTER, 0, jobs) for _ in range(2))
    assert first == again
    wanted = {job.name: job.gpus_wanted for job in jobs}
    assert all(len(gpus) == wanted[job] for job, gpus in first.items())
    taken = [gpu for gpus in first.values() for gpu in gpus]
    assert len(taken) == len(set(taken)) <= 32
    (later,) = scheduler.candidates(CLUSTER, 300 * 10**9, views(300 * 10**9, 20, first))
    if find_rule(name).stops == 0 and name not in ("reopt", "reopt-look"):
        assert {job: later[job] for job in first} == dict(first)


def test_jobs_with_little_throughput_left_are_stopped_in_the_order_of_their_starts():
    s = 10**9
    jobs = [
        dataclasses.replace(job, ratio=ratio, started_ns=started * s, restart_ns=0)
        for job, ratio, started in zip(
            views(0, 4, {"0": tuple(range(8)), "1": (8, 9, 10, 11), "2": (16, 17)}),
            (0.6, 0.3, 0.61, 1.0),
            (600, 300, 0, 0),
            strict=True,
        )
    ]
    scheduler = named_scheduler("srsf-first-ratio")
    assert scheduler.stops(900 * s, jobs) == ("1", "0")
    assert named_scheduler("srsf-first-none").stops(900 * s, jobs) == ()
    costly = [dataclasses.replace(job, restart_ns=300 * s) for job in jobs]
    assert scheduler.stops(900 * s, costly) == ()
    assert scheduler.stops(1200 * s, costly) == ("1",)


def test_names():
    assert len(ORDERED_RULES) == 5 * 2 * 4 * 3
    assert find_rule("reopt-5").hysteresis == pytest.approx(0.05)
    assert find_rule("greedy-look-12").choices == 12
    assert (find_rule("random-ratio-7").seed, find_rule("random-ratio", 3).seed) == (7, 3)
    assert find_rule("fifo") is None
    assert find_rule("fifo-packed-none-3") is None
    assert [find_rule(f"srsf-first-ratio{number}").stop_ratio for number in ("", "-45", "-100")] == [
        0.6,
        0.45,
        1,
    ]
    assert find_rule("greedy-ratio-45") == dataclasses.replace(find_rule("greedy-ratio"), stop_ratio=0.45)
    with pytest.raises(
        UsageError, match="srsf-first-ratio-101: expected a ratio of 1 to 100 percent, got 101"
    ):
        find_rule("srsf-first-ratio-101")
    assert scheduling_policy("greedy+cassini").name == "greedy+cassini"
    with pytest.raises(UsageError, match="scheduler: expected"):
        NAMES.parse("srsf-worst-none")


def test_a_cluster_with_too_many_sets_of_nodes_is_refused():
    large = RoundsSettings(MODEL, nodes=60)
    jobs = views(0, 20, {})
    with pytest.raises(UsageError, match="up to 20000 sets of nodes"):
        named_scheduler("greedy").candidates(large.cluster(), 0, jobs)
    (assignment,) = named_scheduler("srsf-packed-none").candidates(large.cluster(), 0, jobs)
    assert len(assignment) == 20
    assert math.comb(60, 4) > 20_000
