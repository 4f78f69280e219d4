"""A small training from its command to the policy that it leaves."""

import json
from dataclasses import replace

import numpy as np
import pytest

from mltcp.core.errors import UsageError
from placement.cli import main as cli
from placement.learning.episodes import Episodes, EpisodeSettings
from placement.learning.evaluation import play
from placement.learning.lessons import watch
from placement.learning.training import train
from placement.learning.training_folder import TrainingSettings
from placement.model.throughput_table import TableModel, published_table
from placement.policies.schedulers.contention.learned.checkpoint import Checkpoint
from placement.policies.schedulers.contention.rule import find_rule
from placement.policies.schedulers.registry import named_scheduler
from placement.simulator.rates.rounds.run import RoundsSettings, run_rule, run_scheduler

TABLE = published_table()
ROUNDS = RoundsSettings(TableModel(TABLE))
RUNS = EpisodeSettings(ROUNDS, (0.6, 0.6), jobs=24)


def test_the_lessons_are_the_look_aheads_steps_and_their_returns():
    lessons = watch(RUNS, 10_000, 3)
    assert lessons.masks[np.arange(len(lessons.steps)), lessons.steps].all()
    means = []
    for seed in range(10_000, 10_003):
        trace = RUNS.mix(seed).trace(seed, TABLE)
        means.append(run_rule(trace, ROUNDS, "greedy-look", find_rule("greedy-look")).mean_jct_s / 3600)
    # The return at a run's first choice is minus its mean completion time in hours, and no later one is less.
    assert min(lessons.returns) == pytest.approx(-max(means))
    assert set(np.round(means, 6)) <= set(np.round(-lessons.returns, 6))


def test_lessons_of_another_player_are_what_the_look_ahead_would_do_there():
    played = []

    def first_allowed(episodes):
        played.append(episodes.masks.argmax(axis=1))
        return played[-1]

    lessons = watch(RUNS, 10_000, 1, first_allowed)
    assert lessons.masks[np.arange(len(lessons.steps)), lessons.steps].all()
    assert (lessons.steps != np.concatenate(played)).any()
    episodes = Episodes(RUNS, 1)
    episodes.reset(0, 10_000)
    for steps in played:
        episodes.step(steps)
    assert lessons.returns[0] * 3600 == pytest.approx(-episodes.mean_jct_s(0))


def test_some_runs_have_all_jobs_at_once():
    mixes = [replace(RUNS, loads=(0.4, 0.8), at_once=0.25).mix(seed) for seed in range(400)]
    assert 60 <= sum(mix.load is None for mix in mixes) <= 140
    for seed, mix in enumerate(mixes):
        assert mix.load is None or mix == replace(RUNS, loads=(0.4, 0.8)).mix(seed)


def test_a_training_that_was_interrupted_goes_on_and_ends_alike(tmp_path):
    settings = TrainingSettings(imitated=6, parts=3, passes=3, batch=64, hidden=(16,))
    runs = replace(RUNS, jobs=12)

    def interrupt(what, done, most, score):
        if what == "teacher" and len(list((tmp_path / "cut").glob("lessons-*"))) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(runs, settings, tmp_path / "cut", interrupt)
    again = []
    cut = train(runs, settings, tmp_path / "cut", lambda what, *_: again.append(what))
    whole = train(runs, settings, tmp_path / "whole")
    assert again.count("teacher") == 2
    for (weights, bias), (other_weights, other_bias) in zip(cut.layers, whole.layers, strict=True):
        assert weights.tobytes() == other_weights.tobytes()
        assert bias.tobytes() == other_bias.tobytes()
    assert sorted(path.name for path in (tmp_path / "cut").iterdir()) == [
        "model.zip",
        "policy.npz",
        "training.json",
    ]
    with pytest.raises(UsageError, match="seed: expected 1, as given, got 0: use another folder"):
        train(runs, replace(settings, seed=1), tmp_path / "cut")


@pytest.mark.slow
def test_a_policy_is_trained_kept_and_evaluated(tmp_path, capsys):
    runs = ["--loads", "0.6", "--jobs", "16"]
    arguments = ["learn", "-o", str(tmp_path / "policy"), *runs, "--imitate", "40", "--steps", "16384"]
    assert cli.main([*arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["imitated"], told["steps"], told["seed"], told["jobs"]) == (40, 16384, 0, 16)
    assert set(told["versions"]) == {"numpy", "torch", "gymnasium", "stable-baselines3", "sb3-contrib"}
    checkpoint = Checkpoint.load(tmp_path / "policy" / "policy.npz")
    settings = EpisodeSettings(ROUNDS, (0.6, 0.6), jobs=16)
    seeds = range(40, 60)
    means_s = play(checkpoint, settings, seeds)
    ratios = [
        found
        / run_rule(settings.mix(seed).trace(seed, TABLE), ROUNDS, "r", find_rule("random-none")).mean_jct_s
        for seed, found in zip(seeds, means_s, strict=True)
    ]
    assert np.mean(ratios) < 0.9
    # The same policy in the scheduler loop, and on a trace with more jobs than those that it was trained on.
    scheduler = named_scheduler(f"learned:{tmp_path / 'policy' / 'policy.npz'}")
    outcome = run_scheduler(settings.mix(40).trace(40, TABLE), ROUNDS, scheduler)
    assert outcome.mean_jct_s == pytest.approx(means_s[0])
    larger = replace(settings, jobs=40)
    outcome = run_scheduler(larger.mix(40).trace(40, TABLE), ROUNDS, scheduler)
    assert [outcome.mean_jct_s] == pytest.approx(play(checkpoint, larger, [40]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--imitate", "0"), "--imitate and --steps: expected one of them above 0, got 0 and 0"),
        (("--loads", "2:1"), "loads: expected a range within 0.001 to 1000"),
        (("--loads", "1:2:3"), "--loads: expected A:B, A or at-once, got '1:2:3'"),
        (("--mixes", "light"), "mixes: expected some of normal, heavy, medium, low, got light"),
        (("--imitate", "-1"), "imitated: expected 0 or more, got -1"),
        (("--at-once", "2"), "at_once: expected 0 to 1, got 2.0"),
        (("--imitate", "3"), "imitated: expected 0, or a run for each of 4 parts, got 3"),
        (("--table", "nowhere"), "isolated_throughput.csv: No such file"),
    ],
)
def test_bad_arguments(tmp_path, capsys, arguments, message):
    assert cli.main(["learn", "-o", str(tmp_path / "policy"), *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
