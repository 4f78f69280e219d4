"""Runs in which a policy chooses every step: the same as the rules, their rewards, and what may be chosen."""

from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from mltcp.core.errors import UsageError
from placement.learning.environment import NAME, ContentionEnvironment
from placement.learning.episodes import Episodes, EpisodeSettings, row
from placement.model.table_reader import Source
from placement.model.throughput_table import Layout, SensitivityTable, TableModel, published_table
from placement.policies.schedulers.contention.learned.step_rows import NUMBERS
from placement.policies.schedulers.contention.rule import find_rule
from placement.policies.schedulers.contention.steps import rule_step
from placement.policies.schedulers.contention.world import trial_of
from placement.simulator.rates.rounds.run import RoundsSettings, run_rule
from placement.traces.clusters import philly
from placement.traces.contention import best_rate, read_trace

S = 10**9
PHILLY = Path(__file__).parents[1] / "data" / "philly_cluster_job_log.json"
TABLE = published_table()
ROUNDS = RoundsSettings(TableModel(TABLE))
SMALL = EpisodeSettings(ROUNDS, (0.6, 0.6), jobs=40)


def play(episodes, seed, choose):
    """The sum of rewards of a run, and the rows and masks on the way; `choose` gives a row, or the number of a step."""
    episodes.reset(0, seed)
    total, seen = 0.0, []
    while not episodes.is_done(0):
        seen.append((episodes.rows[0].copy(), episodes.masks[0].copy()))
        chosen = choose(episodes)
        if isinstance(chosen, np.ndarray):
            episodes.take(chosen)
        else:
            episodes.step([chosen])
        total += episodes.rewards[0]
    return total, seen


def at_random(seed):
    chance = np.random.default_rng(seed)
    return lambda episodes: chance.choice(np.flatnonzero(episodes.masks[0]))


def starts_first(episodes):
    return starts_first_of(episodes, 0)


def teacher_of(episodes):
    plan, trial = trial_of(row(episodes.worlds, 0)), trial_of(row(episodes.worlds, 0))

    def teacher(episodes):
        return np.array([rule_step(row(episodes.worlds, 0), plan, trial)])

    return teacher


@pytest.mark.parametrize("loads", [None, (0.4, 0.8)])
def test_the_teacher_takes_the_decisions_of_the_look_ahead(loads):
    settings = EpisodeSettings(ROUNDS, loads, mixes=("normal", "heavy"), jobs=60)
    episodes = Episodes(settings, 1)
    for seed in (10_000, 10_001):
        total, _ = play(episodes, seed, teacher_of(episodes))
        trace = settings.trace_of(seed)
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
        trace = settings.trace_of(seed)
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
        assert all(mask.any() for _, mask in seen)
        assert all(rows[0, 0] == 1 for rows, _ in seen)


def test_the_same_seed_is_the_same_run_beside_any_others():
    alone, beside = Episodes(SMALL, 1), Episodes(SMALL, 3)
    _, seen = play(alone, 10_007, starts_first)
    for number, seed in enumerate((10_003, 10_007, 10_004)):
        beside.reset(number, seed)
    for rows, mask in seen:
        assert beside.rows[1].tobytes() == rows.tobytes()
        assert beside.masks[1].tobytes() == mask.tobytes()
        beside.step([starts_first_of(beside, number) for number in range(3)])
        for number in (0, 2):
            if beside.is_done(number):
                beside.reset(number, 10_020)
    assert beside.is_done(1)


def starts_first_of(episodes, number):
    return 1 if episodes.masks[number, 1] else 0


def test_the_three_rewards_differ():
    totals = {}
    for reward in ("completion", "paper", "code"):
        settings = EpisodeSettings(ROUNDS, (0.6, 0.6), jobs=40, reward=reward, w1=0.3)
        totals[reward], _ = play(Episodes(settings, 1), 10_000, at_random(1))
    assert len({round(total, 3) for total in totals.values()}) == 3
    # A mean sensitivity of at least 1 outweighs a utilisation of at most 1 if W1 > 0.5, and the loss is at most 1 - r.
    assert totals["paper"] < totals["code"]


def test_the_cluster_is_never_left_idle_while_a_job_could_run():
    episodes = Episodes(EpisodeSettings(ROUNDS, (0.4, 0.4), jobs=20), 1)
    _, seen = play(episodes, 10_000, at_random(3))
    idle = [mask for rows, mask in seen if rows[0, NUMBERS.index("all_running")] == 0]
    assert idle
    assert not any(mask[0] for mask in idle)


def test_runs_are_parts_of_a_trace_at_the_load():
    whole = EpisodeSettings(ROUNDS, (0.3, 0.3), jobs=120).trace_of(7)
    settings = EpisodeSettings(ROUNDS, (0.6, 0.6), jobs=40, trace=whole)
    part = settings.trace_of(11)
    first = [job.name for job in whole.jobs].index(part.jobs[0].name)
    assert [job.model for job in part.jobs] == [job.model for job in whole.jobs[first : first + 40]]
    gpu_s = sum(job.gpus * job.samples / best_rate(TABLE, job.model, job.gpus) for job in part.jobs)
    assert gpu_s / 32 / (part.jobs[-1].arrival_ns / S) == pytest.approx(0.6, rel=1e-6)
    episodes = Episodes(settings, 1)
    play(episodes, 11, starts_first)
    with pytest.raises(UsageError, match="jobs: expected up to 120, which normal-load-0"):
        replace(settings, jobs=121)


def test_philly_is_a_trace_with_models_of_the_table():
    trace = read_trace(str(PHILLY), TABLE)
    recorded = philly.parse(Source.load(PHILLY))
    assert [job.name for job in trace.jobs] == [job.name for job in recorded.jobs]
    for job, of_cluster in zip(trace.jobs, recorded.jobs, strict=True):
        assert job.gpus == max((each for each in (2, 4, 8) if each <= of_cluster.gpus), default=2)
        seconds = job.samples / best_rate(TABLE, job.model, job.gpus)
        assert seconds == pytest.approx(of_cluster.duration_ns / S, rel=1e-9, abs=1)
    assert len({job.model for job in trace.jobs}) > 1


def test_a_table_with_other_models_has_its_own_jobs(tmp_path):
    layouts = [
        Layout(model, gpus, nodes) for model in ("loud", "quiet") for gpus, nodes in ((2, 1), (2, 2), (3, 3))
    ]
    table = SensitivityTable(
        "own",
        dict.fromkeys(layouts, 100.0),
        {(one, other): 0.5 if one.model == "loud" else 0.9 for one in layouts for other in layouts},
    )
    settings = EpisodeSettings(RoundsSettings(TableModel(table, "sum"), nodes=3, gpus=4), (0.7, 0.7), jobs=30)
    assert {(job.model, job.gpus) for job in settings.trace_of(0).jobs} == {
        *(("loud", 2), ("loud", 3), ("quiet", 2), ("quiet", 3))
    }
    total, _ = play(Episodes(settings, 1), 0, starts_first)
    assert total < 0
    other = EpisodeSettings(
        settings.rounds, (0.7, 0.7), jobs=30, trace=EpisodeSettings(ROUNDS, jobs=30).trace_of(1)
    )
    with pytest.raises(UsageError, match="own: job: expected loud, quiet, got"):
        Episodes(other, 1).reset(0, 0)


def test_the_environment_is_what_gymnasium_expects():
    environment = gymnasium.make(NAME, loads=(0.6, 0.6), jobs=20)
    check_env(environment.unwrapped, skip_render_check=True)
    observation, _ = environment.reset(seed=10_000)
    mask = environment.unwrapped.action_masks()
    assert (mask.dtype, mask.shape) == (np.bool_, (environment.action_space.n,))
    assert mask.any()
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
