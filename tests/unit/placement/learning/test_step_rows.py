"""The rows of steps, and the network that scores them: neither the order of jobs and nodes nor their number matters."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.learning.episodes import Episodes, EpisodeSettings, row
from placement.learning.training import StepPolicy
from placement.model.cluster import Cluster, Gpu, Server, Switch
from placement.model.throughput_table import COMBINATIONS, TableModel, TableTimes, published_table
from placement.policies.schedulers.contention.learned.learned import (
    LearnedScheduler,
    guided_step,
    look,
    network_of,
    score_rows,
    simulated_with,
)
from placement.policies.schedulers.contention.learned.step_rows import NUMBERS
from placement.policies.schedulers.contention.look_ahead import NEVER
from placement.policies.schedulers.contention.places import set_ratios, update_room
from placement.policies.schedulers.contention.steps import (
    LOOK_AHEADS,
    end_step,
    find_steps,
    rule_step,
    rule_total,
)
from placement.policies.schedulers.contention.tables import all_kinds, name_of, node_counts
from placement.policies.schedulers.contention.world import trial_of
from placement.policies.schedulers.registry import named_scheduler
from placement.policies.schedulers.scheduler import JobView
from placement.simulator.rates.rounds.run import RoundsSettings, run_scheduler
from tests.unit.placement.learning.test_learned import drawn

TABLE = published_table()
SEEDS = st.integers(0, 2**31)


def reached(seed, combination="minimum", nodes=4, stops=False, steps=60):
    """The state of a run, within a decision, after so many steps at random; no two jobs have equally much left."""
    rounds = RoundsSettings(TableModel(TABLE, combination), nodes=nodes)
    episodes = Episodes(EpisodeSettings(rounds, (0.7, 0.9), jobs=60, stops=stops), 1)
    chance = np.random.default_rng(seed)
    episodes.reset(0, 10_000 + seed % 1000)
    episodes.worlds.jobs[0]["remaining"] *= chance.uniform(0.5, 1.0, 60)
    for _ in range(int(chance.integers(5, steps))):
        episodes.step([int(chance.choice(np.flatnonzero(episodes.masks[0])))])
    return row(episodes.worlds, 0)


def renamed(world, chance):
    """The same state with jobs and nodes in another order; also the new number of each node."""
    found, nodes = trial_of(world), chance.permutation(len(world.free))
    jobs = chance.permutation(len(world.jobs))

    def moved(bits):
        return sum(1 << int(nodes[node]) for node in range(len(nodes)) if int(bits) >> node & 1)

    found.free[nodes] = world.free
    found.jobs[jobs] = world.jobs
    for name in ("nodes", "nodes_before"):
        found.jobs[name] = [moved(bits) for bits in found.jobs[name]]
    waiting, running = int(world.core[0]["waiting"]), int(world.core[0]["running"])
    found.queue[:waiting] = jobs[chance.permutation(world.queue[:waiting])]
    found.slots["job"][:running] = jobs[world.slots["job"][:running]]
    found.slots["nodes"][:running] = [moved(bits) for bits in world.slots["nodes"][:running]]
    order = np.argsort(found.slots["job"][:running])
    found.slots[:running] = found.slots[:running][order]
    set_ratios(found)
    update_room(found)
    return found, moved


def seen(world, stops, layers=None):
    """The rows, their logits, and the steps."""
    network = network_of(layers or drawn(hidden=16).layers, len(world.free), stops)
    count = look(world, network)
    return network.rows[:count], network.logits[:count], network.found[:count]


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.sampled_from(COMBINATIONS), st.booleans(), st.sampled_from([4, 6]))
def test_another_order_of_jobs_and_nodes_changes_no_bit(seed, combination, stops, nodes):
    world = reached(seed, combination, nodes, stops)
    other, moved = renamed(world, np.random.default_rng(seed))
    rows, logits, found = seen(world, stops)
    rows_too, logits_too, found_too = seen(other, stops)
    by_content, by_content_too = (sorted(map(bytes, each)) for each in (rows, rows_too))
    assert by_content == by_content_too
    assert sorted(logits) == sorted(logits_too)
    best, best_too = (int(np.argmax(each)) for each in (logits, logits_too))
    assert rows[best].tobytes() == rows_too[best_too].tobytes()
    if len(found) > 1 and list(map(bytes, rows)).count(bytes(rows[best])) == 1:
        assert found[best]["cell"] == found_too[best_too]["cell"]
        assert seen_nodes(world, moved(found[best]["nodes"]), other) == seen_nodes(
            other, found_too[best_too]["nodes"], other
        )


def seen_nodes(world, bits, other):
    """What the nodes of a set hold: free GPUs and jobs, in whatever order."""
    slots = other.slots[: int(other.core[0]["running"])]
    return sorted(
        (
            int(other.free[node]),
            tuple(sorted(int(each["job"]) for each in slots if int(each["nodes"]) >> node & 1)),
        )
        for node in range(len(other.free))
        if int(bits) >> node & 1
    )


@settings(max_examples=30, deadline=None)
@given(SEEDS, st.booleans())
def test_all_steps_are_allowed_and_places_that_are_alike_are_there_once(seed, stops):
    world = reached(seed, stops=stops)
    rows, _, found = seen(world, stops)
    mask = np.zeros(end_step(world) + 1 + (len(world.slots) if stops else 0), np.bool_)
    assert find_steps(world, mask) == (len(found) > 1)
    assert mask[found["step"]].all()
    assert len(set(found["step"])) == len(found)
    starts = found[found["cell"] >= 0]
    assert len(set(starts["alike"])) == len(starts)
    assert np.isfinite(rows).all()
    assert (rows[:, :3].sum(axis=1) == 1).all()
    assert (np.abs(rows) <= 8).all()
    assert (rows * 65536 == np.rint(rows * 65536)).all()


def test_a_row_says_what_a_start_does():
    rounds = RoundsSettings(TableModel(TABLE))
    episodes = Episodes(EpisodeSettings(rounds, None, jobs=40), 1)
    episodes.reset(0, 10_000)
    first = dict(zip(NUMBERS, episodes.rows[0, 1].tolist(), strict=True))
    assert (first["start"], first["ratio"], first["neighbours"], first["all_free"]) == (1, 1, 0, 1)
    assert first["gain_to_best"] == 1
    assert first["free_before"] == 1
    assert first["free_after"] < 1


def test_a_queue_that_is_longer_than_any_that_was_learned_from_looks_like_a_long_one():
    rounds, found = RoundsSettings(TableModel(TABLE)), []
    for jobs in (40, 150, 600):
        episodes = Episodes(EpisodeSettings(rounds, None, jobs=jobs), 1)
        episodes.reset(0, 10_000)
        found.append(dict(zip(NUMBERS, episodes.rows[0, 0].tolist(), strict=True)))
    short, long, longer = ((each["all_waiting"], each["queued_work"]) for each in found)
    assert short[0] == pytest.approx(math.log(41) / 4, abs=1e-4)
    assert 0 < short[1] < long[1]
    assert long == longer == pytest.approx((math.log(65) / 4, math.log(13) / 4), abs=1e-4)


def test_torch_and_compiled_code_agree():
    policy = StepPolicy(24)
    episodes = Episodes(EpisodeSettings(RoundsSettings(TableModel(TABLE)), (0.8, 0.8), jobs=60), 3)
    for number in range(3):
        episodes.reset(number, 10_000 + number)
    network, logits = network_of(policy.layers(), 4, False), np.zeros(episodes.masks.shape[1], np.float32)
    found, _ = policy(torch.as_tensor(episodes.rows))
    for number in range(3):
        count, mask = int(episodes.counts[number]), episodes.masks[number]
        score_rows(network, episodes.rows[number], count, logits)
        weights = np.exp(logits[mask] - logits[mask].max())
        assert found[number].exp().detach().numpy()[mask] == pytest.approx(weights / weights.sum(), abs=1e-5)
        assert found[number].exp().detach().numpy()[~mask] == pytest.approx(0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["learned", "learned-look"])
@pytest.mark.parametrize(("nodes", "gpus"), [(2, 4), (3, 8), (9, 4)])
def test_the_shipped_policy_serves_clusters_of_any_size(name, nodes, gpus):
    rounds = RoundsSettings(TableModel(TABLE, "sum"), nodes, gpus)
    runs = EpisodeSettings(rounds, (0.7, 0.7), jobs=25)
    outcome = run_scheduler(runs.trace_of(3), rounds, named_scheduler(name))
    assert (outcome.jct_s > 0).all()


@pytest.mark.parametrize("name", ["learned", "learned-look"])
@pytest.mark.parametrize("sizes", [(8, 0, 8, 4, 8), (2, 6), (1, 3, 5, 7, 9)])
def test_nodes_of_different_sizes_and_jobs_without_a_table(name, sizes):
    """Of node 0 GPUs there is none: it is drained."""
    sizes = tuple(size for size in sizes if size)
    servers = tuple(Server(f"s{number}", (Gpu(),) * size, "root") for number, size in enumerate(sizes))
    cluster = Cluster(servers, (Switch("root"),))
    model = TableModel(TABLE)
    views = [
        JobView(
            name_of(kind),
            0,
            kind.gpus,
            kind.gpus,
            kind.gpus,
            10**6,
            10**6,
            TableTimes(model, name_of(kind).split()[0]),
        )
        for kind in all_kinds(model)
        if node_counts(kind, sizes)
    ]
    scheduler = named_scheduler(name)
    (assignment,) = scheduler.candidates(cluster, 0, views)
    given_out = [gpu for gpus in assignment.values() for gpu in gpus]
    assert len(set(given_out)) == len(given_out) <= sum(sizes)
    assert all(
        len(gpus) == next(view.gpus_wanted for view in views if view.name == job)
        for job, gpus in assignment.items()
    )
    assert assignment
    told = scheduler.reasons(cluster, 0, views)
    assert set(told) <= set(assignment)
    assert all("started at a ratio of" in text for text in told.values())


@settings(max_examples=15, deadline=None)
@given(SEEDS, st.booleans(), st.integers(0, 5))
def test_no_step_is_worse_than_the_rules_in_the_simulation(seed, stops, network_seed):
    """The guard: whatever the network, the sum of completion times is at most that after the rule's own step."""
    world = reached(seed, stops=stops)
    plan, trial = trial_of(world), trial_of(world)
    layers = drawn(seed=network_seed, hidden=16).layers
    network, ahead = (network_of(layers, len(world.free), stops) for _ in range(2))
    step, total, of_rule = guided_step(world, plan, trial, network, ahead)
    mask = np.zeros(end_step(world) + 1 + (len(world.slots) if stops else 0), np.bool_)
    find_steps(world, mask)
    assert mask[step]
    assert total <= of_rule
    by_rule = rule_step(world, plan, trial)
    if total and step != by_rule:
        assert simulated_with(world, trial, ahead, step, NEVER) == total < of_rule


def test_the_scheduler_does_not_stop_jobs_unless_its_network_may():
    assert not named_scheduler("learned").checkpoint.header.stops
    checkpoint = drawn(EpisodeSettings(RoundsSettings(TableModel(TABLE)), stops=True))
    assert LearnedScheduler("x", LOOK_AHEADS[True], checkpoint=checkpoint).next_ns(1, ()) is not None


def test_jobs_that_run_for_centuries_are_simulated_to_their_end_at_once():
    episodes = Episodes(EpisodeSettings(RoundsSettings(TableModel(TABLE)), None, jobs=1), 1)
    episodes.reset(0, 10_000)
    world, layers = row(episodes.worlds, 0), drawn(hidden=16).layers
    world.jobs["remaining"] *= 1e7
    network, ahead, plan, trial = (
        *(network_of(layers, 4, False) for _ in range(2)),
        *map(trial_of, [world] * 2),
    )
    assert look(world, network) > 1
    first = network.found[1]
    alone_s = world.jobs[0]["remaining"] / world.cells[first["cell"]]["rate"]
    assert alone_s > 1e9
    assert simulated_with(world, trial, ahead, first["step"], NEVER) == pytest.approx(alone_s, rel=1e-9)
    step = rule_step(world, plan, trial)
    assert step == first["step"]
    assert rule_total(world, plan, trial, step, NEVER) == pytest.approx(alone_s, rel=1e-9)
