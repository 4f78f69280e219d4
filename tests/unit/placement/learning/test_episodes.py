"""Runs in which a policy chooses every step: the same as the rules, their rewards, and what may be chosen."""

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from mltcp.core.errors import MltcpError, UsageError
from placement.learning.environment import NAME, ContentionEnvironment
from placement.learning.episodes import Episodes, EpisodeSettings, row
from placement.learning.lessons import rule_steps
from placement.model.throughput_table import TableModel, published_table
from placement.policies.schedulers.contention.rule import find_rule
from placement.policies.schedulers.contention.world import trial_of
from placement.simulator.rates.rounds.loop import MOST_ROUNDS
from placement.simulator.rates.rounds.run import RoundsSettings, run_rule

S = 10**9
TABLE = published_table()
ROUNDS = RoundsSettings(TableModel(TABLE))
SMALL = EpisodeSettings(ROUNDS, (0.6, 0.6), jobs=40)


def play(episodes, seed, choose):
    """The sum of rewards of a run, and the observations and masks on the way."""
    episodes.reset(0, seed)
    total, seen = 0.0, []
    while not episodes.is_done(0):
        seen.append((episodes.observations[0].copy(), episodes.masks[0].copy()))
        episodes.step([choose(episodes)])
        total += episodes.rewards[0]
    return total, seen


def at_random(seed):
    chance = np.random.default_rng(seed)
    return lambda episodes: chance.choice(np.flatnonzero(episodes.masks[0]))


def starts_first(episodes):
    return int(np.argmax(episodes.masks[0]))


def teacher_of(episodes):
    plan, trial = trial_of(row(episodes.worlds, 0)), trial_of(row(episodes.worlds, 0))
    steps = np.zeros(1, np.int64)

    def teacher(episodes):
        rule_steps(episodes.worlds, episodes.states, plan, trial, steps)
        return int(steps[0])

    return teacher


@pytest.mark.parametrize("loads", [None, (0.4, 0.8)])
def test_the_teacher_takes_the_decisions_of_the_look_ahead(loads):
    settings = EpisodeSettings(ROUNDS, loads, mixes=("normal", "heavy"), jobs=60)
    episodes = Episodes(settings, 1)
    for seed in (10_000, 10_001):
        total, _ = play(episodes, seed, teacher_of(episodes))
        trace = settings.mix(seed).trace(seed, TABLE)
        by_rule = run_rule(trace, ROUNDS, "greedy-look", find_rule("greedy-look"))
        assert episodes.mean_jct_s(0) == by_rule.mean_jct_s
        assert total == pytest.approx(-by_rule.mean_jct_s * 60 / 3600, abs=1e-6)


@pytest.mark.parametrize("restart_s", [0, 700])
def test_the_teacher_with_stops_comes_close_to_the_look_ahead_with_stops(restart_s):
    """Not equal: a step starts the job of a kind that has the least left, whichever the rule would start."""
    rounds = RoundsSettings(TableModel(TABLE), restart_ns=restart_s * S)
    settings = EpisodeSettings(rounds, (0.6, 0.6), jobs=60, stops=True)
    episodes = Episodes(settings, 1)
    ratios = []
    for seed in range(10_000, 10_004):
        play(episodes, seed, teacher_of(episodes))
        trace = settings.mix(seed).trace(seed, TABLE)
        by_rule = run_rule(trace, rounds, "reopt-look", find_rule("reopt-look")).mean_jct_s
        ratios.append(episodes.mean_jct_s(0) / by_rule)
    assert np.mean(ratios) == pytest.approx(1, abs=0.06)


@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.parametrize("restart_s", [0, 30, 700])
def test_rewards_sum_to_the_completion_times_and_masks_can_be_followed(stops, restart_s):
    rounds = RoundsSettings(TableModel(TABLE), restart_ns=restart_s * S)
    episodes = Episodes(EpisodeSettings(rounds, (0.5, 0.7), jobs=40, stops=stops), 1)
    for seed in (10_000, 10_001):
        total, seen = play(episodes, seed, at_random(seed))
        assert total == pytest.approx(-episodes.mean_jct_s(0) * 40 / 3600, abs=1e-6)
        jobs = episodes.worlds.jobs[0]
        assert (jobs["starts"].max() > 1) == stops
        found = np.array([observation for observation, _ in seen])
        assert (found.min(), found.max()) >= (-1, 0)
        assert found.max() < 2
        assert all(mask[episodes.masks.shape[1] - 1 - (episodes.slots if stops else 0)] for _, mask in seen)


def test_the_same_seed_is_the_same_run_beside_any_others():
    alone, beside = Episodes(SMALL, 1), Episodes(SMALL, 3)
    _, seen = play(alone, 10_007, starts_first)
    for number, seed in enumerate((10_003, 10_007, 10_004)):
        beside.reset(number, seed)
    for observation, mask in seen:
        assert beside.observations[1].tobytes() == observation.tobytes()
        assert beside.masks[1].tobytes() == mask.tobytes()
        beside.step([starts_first_of(beside, number) for number in range(3)])
        for number in (0, 2):
            if beside.is_done(number):
                beside.reset(number, 10_020)
    assert beside.is_done(1)


def starts_first_of(episodes, number):
    return int(np.argmax(episodes.masks[number]))


def test_the_three_rewards_differ():
    totals = {}
    for reward in ("completion", "paper", "code"):
        settings = EpisodeSettings(ROUNDS, (0.6, 0.6), jobs=40, reward=reward, w1=0.3)
        totals[reward], _ = play(Episodes(settings, 1), 10_000, at_random(1))
    assert len({round(total, 3) for total in totals.values()}) == 3
    # A mean sensitivity of at least 1 outweighs a utilisation of at most 1 if W1 > 0.5, and the loss is at most 1 - r.
    assert totals["paper"] < totals["code"]


def test_gains_can_be_left_out():
    wide, narrow = Episodes(SMALL, 1), Episodes(EpisodeSettings(ROUNDS, (0.6, 0.6), jobs=40, gains=False), 1)
    starts = len(wide.worlds.kinds) * len(wide.worlds.sets)
    assert wide.observations.shape[1] - narrow.observations.shape[1] == starts
    for episodes in (wide, narrow):
        episodes.reset(0, 10_000)
    assert (wide.observations[0, :-starts] == narrow.observations[0]).all()


def test_a_policy_that_places_nothing_is_an_error():
    episodes = Episodes(EpisodeSettings(ROUNDS, None, jobs=4), 1)
    episodes.reset(0, 10_000)
    end = episodes.masks.shape[1] - 1
    for _ in range(MOST_ROUNDS):
        episodes.step([end])
    with pytest.raises(MltcpError, match=f"more than {MOST_ROUNDS} rounds"):
        episodes.step([end])


def test_the_environment_is_what_gymnasium_expects():
    environment = gymnasium.make(NAME, loads=(0.6, 0.6), jobs=20)
    check_env(environment.unwrapped, skip_render_check=True)
    observation, _ = environment.reset(seed=10_000)
    mask = environment.unwrapped.action_masks()
    assert mask.dtype == np.bool_
    assert (mask.shape, mask[-1]) == ((environment.action_space.n,), True)
    assert environment.reset(seed=10_000)[0].tobytes() == observation.tobytes()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loads": (0.8, 0.4)}, "loads: expected a range within 0.001 to 1000, got"),
        ({"mixes": ("light",)}, "mixes: expected some of normal, heavy, medium, low, got light"),
        ({"reward": "utility"}, "reward: expected completion, paper, code, got utility"),
        ({"w1": 1.5}, "w1: expected 0 to 1, got 1.5"),
        ({"jobs": 0}, "jobs: expected 1 to 100000, got 0"),
    ],
)
def test_bad_settings(options, message):
    with pytest.raises(UsageError, match=message):
        ContentionEnvironment(**options)


def test_a_step_that_the_mask_does_not_allow():
    episodes = Episodes(SMALL, 1)
    episodes.reset(0, 10_000)
    with pytest.raises(UsageError, match="step: expected one that the mask allows"):
        episodes.step([int(np.argmin(episodes.masks[0]))])
