"""A small training from its command to the policy that it leaves."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from mltcp.core.errors import UsageError
from placement.cli import main as cli
from placement.learning.episodes import Episodes, EpisodeSettings, row
from placement.learning.evaluation import play
from placement.learning.lessons import soften, watch, weigh_by_rule
from placement.learning.training import train
from placement.learning.training_folder import TrainingSettings
from placement.model.throughput_table import TableModel, published_table
from placement.policies.schedulers.contention.learned.checkpoint import Checkpoint, mean_of
from placement.policies.schedulers.contention.learned.step_rows import WIDTH
from placement.policies.schedulers.contention.look_ahead import NEVER, PLACE, WAIT, simulated
from placement.policies.schedulers.contention.rule import find_rule
from placement.policies.schedulers.contention.world import trial_of
from placement.policies.schedulers.registry import named_scheduler
from placement.simulator.rates.rounds.run import RoundsSettings, run_rule, run_scheduler
from tests.unit.placement.learning.test_learned import drawn

TABLE = published_table()
ROUNDS = RoundsSettings(TableModel(TABLE))
RUNS = EpisodeSettings(ROUNDS, (0.6, 0.6), jobs=24)


def test_a_lesson_prefers_what_ends_jobs_soonest_in_the_simulation():
    settings = replace(RUNS, loads=(0.8, 0.8))
    lessons = watch(settings, 10_000, 3)
    assert lessons.rows.shape[1:] == (17, WIDTH)
    assert lessons.targets.sum(axis=1) == pytest.approx(1, abs=0.01)
    assert (lessons.targets[lessons.rows[..., :3].sum(axis=-1) == 0] == 0).all()
    # What is preferred has the largest gain more often than not, but not always: the simulation sees further.
    first = lessons.targets.argmax(axis=1) == 1
    assert 0.3 < first.mean() < 0.95
    episodes = Episodes(settings, 1)
    episodes.reset(0, 10_000)
    world = row(episodes.worlds, 0)
    trial, weights = trial_of(world), np.zeros(episodes.masks.shape)
    scratch = trial_of(world)
    weigh_by_rule(episodes.worlds, episodes.states, scratch, trial, episodes.found, episodes.masks, weights)
    totals = []
    for each in np.flatnonzero(episodes.masks[0]):
        chosen = world.choices[0]
        for name in ("job", "cell", "nodes"):
            chosen[name] = episodes.found[0, each][name]
        totals.append(
            simulated(world, trial, PLACE if episodes.found[0, each]["cell"] >= 0 else WAIT, 0, NEVER)
        )
    assert weights[0][episodes.masks[0]].argmax() == int(np.argmin(totals))


def test_steps_are_told_apart_by_the_share_by_which_they_cost_more():
    for least_s in (1e3, 1e7):
        totals = np.array([least_s * 1.01, NEVER, least_s, least_s * 1.02])
        soften(totals, least_s)
        whole = 1 + math.exp(-1) + math.exp(-2)
        assert totals == pytest.approx(np.array([math.exp(-1), 0, 1, math.exp(-2)]) / whole)


def test_lessons_of_another_player_are_about_the_states_that_it_reaches():
    own, of_network = watch(RUNS, 10_000, 1), watch(RUNS, 10_000, 1, drawn(RUNS))
    assert own.rows[0].tobytes() == of_network.rows[0].tobytes()
    assert own.rows.tobytes() != of_network.rows.tobytes()


def test_some_runs_have_all_jobs_at_once():
    mixes = [replace(RUNS, loads=(0.4, 0.8), at_once=0.25).mix(seed) for seed in range(400)]
    assert 60 <= sum(mix.load is None for mix in mixes) <= 140
    for seed, mix in enumerate(mixes):
        assert mix.load is None or mix == replace(RUNS, loads=(0.4, 0.8)).mix(seed)


def test_a_training_that_was_interrupted_goes_on_and_ends_alike(tmp_path):
    settings = TrainingSettings(imitated=6, parts=3, passes=3, batch=64, hidden=16)
    runs = replace(RUNS, jobs=12)

    def interrupt(what, done, most, score):
        if what == "teacher" and len(list((tmp_path / "cut").glob("lessons-*"))) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train([runs], settings, tmp_path / "cut", interrupt)
    again = []
    cut = train([runs], settings, tmp_path / "cut", lambda what, *_: again.append(what))
    whole = train([runs], settings, tmp_path / "whole")
    assert again.count("teacher") == 2
    for (weights, bias), (other_weights, other_bias) in zip(cut.layers, whole.layers, strict=True):
        assert weights.tobytes() == other_weights.tobytes()
        assert bias.tobytes() == other_bias.tobytes()
    assert sorted(path.name for path in (tmp_path / "cut").iterdir()) == [
        "model.pt",
        "policy.npz",
        "training.json",
    ]
    with pytest.raises(UsageError, match="seed: expected 1, as given, got 0: use another folder"):
        train([runs], replace(settings, seed=1), tmp_path / "cut")


def test_a_policy_goes_on_from_another_in_small_steps(tmp_path):
    settings = TrainingSettings(imitated=6, parts=1, passes=3, batch=64, hidden=16)
    runs, start = replace(RUNS, jobs=12), drawn(RUNS, hidden=16)
    more = train([runs], settings, tmp_path / "more", start=start)
    new = train([runs], settings, tmp_path / "new")
    assert (more.header.training["from"], new.header.training["from"]) == (start.digest, None)

    def apart(one, other):
        return max(np.abs(a[0] - b[0]).max() for a, b in zip(one.layers, other.layers, strict=True))

    assert 0 < apart(more, start) < 0.05 < apart(more, new)
    with pytest.raises(UsageError, match=r"--from: expected layers of \(43, 8\), got \(43, 16\)"):
        train([runs], replace(settings, hidden=8), tmp_path / "other", start=start)


def test_the_mean_of_policies(tmp_path, capsys):
    one, other, narrow = drawn(RUNS, 1, hidden=64), drawn(RUNS, 2, hidden=64), drawn(RUNS)
    for name, each in (("one", one), ("other", other), ("narrow", narrow)):
        each.save(tmp_path / f"{name}.npz")
    learn = ["learn", "-o", str(tmp_path / "mean"), "--imitate", "0", "--from"]
    assert cli.main([*learn, str(tmp_path / "one.npz"), str(tmp_path / "other.npz"), "--json"]) == 0
    mean = mean_of([one, other])
    assert json.loads(capsys.readouterr().out)["from"] == mean.digest
    kept = Checkpoint.load(tmp_path / "mean" / "policy.npz")
    for layer, first, second in zip(kept.layers, one.layers, other.layers, strict=True):
        for part, a, b in zip(layer, first, second, strict=True):
            np.testing.assert_array_equal(part, (a + b) / 2)
    assert cli.main([*learn, str(tmp_path / "one.npz"), str(tmp_path / "narrow.npz")]) == 2
    assert "a mean of policies: expected layers of" in capsys.readouterr().err


@pytest.mark.slow
def test_a_policy_is_trained_kept_and_evaluated(tmp_path, capsys):
    runs = ["--loads", "0.6", "--jobs", "16"]
    arguments = ["learn", "-o", str(tmp_path / "policy"), *runs, "--imitate", "30", "--steps", "9000"]
    arguments += ["--combination", "minimum,sum", "--nodes", "3,4"]
    assert cli.main([*arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["imitated"], told["steps"], told["seed"], told["jobs"]) == (30, 9000, 0, 16)
    assert set(told["versions"]) == {"numpy", "torch"}
    assert [(each["nodes"], each["combination"]) for each in told["worlds"]] == [
        *((3, "minimum"), (4, "minimum"), (3, "sum"), (4, "sum"))
    ]
    assert told["ratio_to_imitator"] <= 1
    checkpoint = Checkpoint.load(tmp_path / "policy" / "policy.npz")
    settings = EpisodeSettings(ROUNDS, (0.6, 0.6), jobs=16)
    seeds = range(40, 60)
    means_s = play(checkpoint, settings, seeds)
    ratios = [
        found / run_rule(settings.trace_of(seed), ROUNDS, "r", find_rule("random-none")).mean_jct_s
        for seed, found in zip(seeds, means_s, strict=True)
    ]
    assert np.mean(ratios) < 0.9
    # The same policy in the scheduler loop, and on a trace with more jobs than those that it was trained on.
    scheduler = named_scheduler(f"learned:{tmp_path / 'policy' / 'policy.npz'}")
    outcome = run_scheduler(settings.trace_of(40), ROUNDS, scheduler)
    assert outcome.mean_jct_s == pytest.approx(means_s[0])
    larger = replace(settings, jobs=40)
    outcome = run_scheduler(larger.trace_of(40), ROUNDS, scheduler)
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
        (("--imitate", "2"), "imitated: expected 0, or a run for each of 3 parts, got 2"),
        (("--nodes", "0"), "--nodes: expected whole numbers from 1 on, got '0'"),
        (("--nodes", "2.5"), "--nodes: expected whole numbers from 1 on, got '2.5'"),
        (("--nodes", "1"), "expected a kind of jobs that fits on 1 nodes of 8 GPUs, got none"),
        (("--combination", "most"), "--combination: expected minimum, product, sum, got 'most'"),
        (("--trace", "nowhere.csv"), "nowhere.csv: No such file"),
        (("--table", "nowhere"), "isolated_throughput.csv: No such file"),
    ],
)
def test_bad_arguments(tmp_path, capsys, arguments, message):
    assert cli.main(["learn", "-o", str(tmp_path / "policy"), *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
