"""A small training from its command to the policy that it leaves."""

import json

import numpy as np
import pytest

from placement.cli import main as cli
from placement.learning.episodes import EpisodeSettings
from placement.learning.evaluation import play
from placement.learning.imitation import watch
from placement.model.throughput.table import TableModel, published_table
from placement.policies.schedulers.contention.checkpoint import Checkpoint
from placement.policies.schedulers.contention.rule import find_rule
from placement.simulator.rates.rounds.run import run_rule
from placement.simulator.rates.rounds.settings import RoundsSettings

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


@pytest.mark.slow
def test_a_policy_is_trained_kept_and_evaluated(tmp_path, capsys):
    runs = ["--loads", "0.6", "--jobs", "16"]
    arguments = ["learn", "-o", str(tmp_path / "policy"), *runs, "--imitate", "40", "--steps", "20000"]
    assert cli.main([*arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["imitated"], told["steps"], told["seed"], told["jobs"]) == (40, 20000, 0, 16)
    assert set(told["versions"]) == {"numpy", "torch", "gymnasium", "stable-baselines3", "sb3-contrib"}
    checkpoint = Checkpoint.load(tmp_path / "policy" / "policy.npz")
    settings = EpisodeSettings(ROUNDS, (0.6, 0.6), jobs=16)
    seeds = range(40, 60)
    ratios = [
        found
        / run_rule(settings.mix(seed).trace(seed, TABLE), ROUNDS, "r", find_rule("random-none")).mean_jct_s
        for seed, found in zip(seeds, play(checkpoint, settings, seeds), strict=True)
    ]
    assert np.mean(ratios) < 0.9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--imitate", "0"), "--imitate and --steps: expected one of them above 0, got 0 and 0"),
        (("--loads", "2:1"), "loads: expected a range within 0.001 to 1000"),
        (("--loads", "1:2:3"), "--loads: expected A:B, A or at-once, got '1:2:3'"),
        (("--mixes", "light"), "mixes: expected some of normal, heavy, medium, low, got light"),
        (("--imitate", "-1"), "imitated: expected 0 or more, got -1"),
        (("--table", "nowhere"), "isolated_throughput.csv: No such file"),
    ],
)
def test_bad_arguments(tmp_path, capsys, arguments, message):
    assert cli.main(["learn", "-o", str(tmp_path / "policy"), *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
