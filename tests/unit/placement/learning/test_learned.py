"""Checkpoints, and learned policies as schedulers: the same decisions as in the runs that they are trained on."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from mltcp.core.errors import UsageError
from placement.cli import main as cli
from placement.learning.episodes import Episodes, EpisodeSettings, kind_names, row
from placement.learning.evaluation import check_fits, estimate, play
from placement.learning.lessons import watch
from placement.model.throughput_table import TableModel, published_table
from placement.policies.schedulers.contention.learned.checkpoint import (
    FORMAT,
    STEPS,
    Checkpoint,
    CheckpointHeader,
    best_steps,
    digest_of_table,
    preferences,
)
from placement.policies.schedulers.contention.learned.learned import network_of, prefer
from placement.policies.schedulers.contention.rule import find_rule
from placement.policies.schedulers.registry import named_scheduler
from placement.simulator.rates.rounds.run import RoundsSettings, run_rule, run_scheduler

TABLE = published_table()
ROUNDS = RoundsSettings(TableModel(TABLE), restart_ns=30 * 10**9)
RUNS = EpisodeSettings(ROUNDS, (0.6, 0.6), jobs=30)


def drawn(settings, seed=1, hidden=(16,)):
    """A network that was not trained."""
    episodes = Episodes(settings, 1)
    chance = np.random.default_rng(seed)
    widths = (episodes.observations.shape[1], *hidden, episodes.masks.shape[1])
    layers = tuple(
        (
            chance.normal(size=(rows, columns)).astype(np.float32),
            chance.normal(size=columns).astype(np.float32),
        )
        for rows, columns in pairwise(widths)
    )
    kinds = kind_names(ROUNDS)
    digest = digest_of_table(TABLE)
    header = CheckpointHeader(
        FORMAT,
        STEPS,
        kinds,
        4,
        8,
        widths[0],
        widths[-1],
        episodes.slots,
        settings.stops,
        True,
        digest,
        {"seed": 1},
    )
    return Checkpoint(header, layers)


@pytest.mark.parametrize("stops", [False, True])
def test_the_scheduler_takes_the_decisions_of_the_runs(tmp_path, stops):
    settings = replace(RUNS, stops=stops)
    checkpoint = drawn(settings)
    checkpoint.save(tmp_path / "policy.npz")
    scheduler = named_scheduler(f"learned:{tmp_path / 'policy.npz'}")
    for seed in (10_000, 10_001):
        (mean_jct_s,) = play(checkpoint, settings, [seed])
        outcome = run_scheduler(settings.mix(seed).trace(seed, TABLE), ROUNDS, scheduler)
        assert outcome.mean_jct_s == pytest.approx(mean_jct_s, rel=1e-9)


@pytest.mark.slow
class TestLookAhead:
    """A look-ahead that a network guides."""

    def test_compiled_code_prefers_the_steps_that_the_checkpoint_does(self):
        checkpoint = drawn(RUNS, hidden=(24, 16))
        episodes = Episodes(RUNS, 2)
        network = network_of(checkpoint.layers, (8,) * 4, episodes.slots)
        for number in range(2):
            episodes.reset(number, 10_000 + number)
            prefer(row(episodes.worlds, number), network, network.logits)
            expected = preferences(checkpoint.layers, episodes.observations[number])
            assert network.logits == pytest.approx(expected, rel=1e-4, abs=1e-4)

    def test_the_scheduler_takes_the_decisions_of_the_runs_and_better_ones_than_the_network(self, tmp_path):
        checkpoint = drawn(RUNS, hidden=(24, 16))
        checkpoint.save(tmp_path / "policy.npz")
        scheduler = named_scheduler(f"learned-look:{tmp_path / 'policy.npz'}")
        seeds = [10_000, 10_001, 10_002]
        ahead = play(checkpoint, RUNS, seeds, looks_ahead=True)
        for seed, mean_jct_s in zip(seeds, ahead, strict=True):
            outcome = run_scheduler(RUNS.mix(seed).trace(seed, TABLE), ROUNDS, scheduler)
            assert outcome.mean_jct_s == pytest.approx(mean_jct_s, rel=1e-9)
        assert np.mean(ahead) < 0.9 * np.mean(play(checkpoint, RUNS, seeds))

    @pytest.mark.parametrize(("stops", "name"), [(False, "greedy-look"), (True, "reopt-look")])
    def test_a_network_that_was_not_trained_does_little_harm(self, stops, name):
        settings, seeds = replace(RUNS, stops=stops), [10_000, 10_001, 10_002]
        checkpoint = drawn(settings, hidden=(24, 16))
        rule = find_rule(name)
        by_rule = [
            run_rule(settings.mix(seed).trace(seed, TABLE), ROUNDS, name, rule).mean_jct_s for seed in seeds
        ]
        assert np.mean(play(checkpoint, settings, seeds, looks_ahead=True)) < 1.08 * np.mean(by_rule)
        assert np.mean(play(checkpoint, settings, seeds)) > 1.3 * np.mean(by_rule)

    def test_it_can_be_imitated(self):
        checkpoint, seeds = drawn(RUNS, hidden=(24, 16)), [10_000, 10_001]
        lessons = watch(RUNS, seeds[0], len(seeds), guide=checkpoint)
        mean_s = play(checkpoint, RUNS, seeds, looks_ahead=True)
        assert min(lessons.returns) * -3600 == pytest.approx(max(mean_s))

    def test_a_guide_of_another_shape_is_refused(self, tmp_path, capsys):
        drawn(RUNS, hidden=(24, 16)).save(tmp_path / "guide.npz")
        arguments = [
            "learn",
            "-o",
            str(tmp_path / "policy"),
            "--stops",
            "--guide",
            str(tmp_path / "guide.npz"),
        ]
        assert cli.main(arguments) == 2
        assert "checkpoint: steps: expected 143, got 127" in capsys.readouterr().err

    def test_a_network_of_another_depth_cannot_guide(self):
        with pytest.raises(
            UsageError, match="layers: expected 3 of a network that guides a look-ahead, got 2"
        ):
            play(drawn(RUNS), RUNS, [10_000], looks_ahead=True)


def test_a_checkpoint_comes_back_as_it_was(tmp_path):
    kept = drawn(RUNS)
    kept.save(tmp_path / "policy.npz")
    found = Checkpoint.load(tmp_path / "policy.npz")
    assert found.header == kept.header
    features = np.random.default_rng(0).normal(size=(5, kept.header.features)).astype(np.float32)
    assert preferences(found.layers, features).tobytes() == preferences(kept.layers, features).tobytes()
    mask = np.zeros((5, kept.header.steps), np.bool_)
    mask[:, [3, 7]] = True
    assert set(found.choose(features, mask).tolist()) <= {3, 7}


def test_the_pass_through_a_network_is_that_of_numpy():
    layers = drawn(RUNS, hidden=(24, 16)).layers
    features = np.random.default_rng(0).normal(size=(2, 3, len(layers[0][0]))).astype(np.float32)
    features[:, :, ::2] = 0
    values = features.astype(np.float64)
    for weights, bias in layers[:-1]:
        values = np.tanh(values @ weights + bias)
    expected = values @ layers[-1][0] + layers[-1][1]
    assert preferences(layers, features) == pytest.approx(expected, rel=1e-4, abs=1e-4)
    mask = np.random.default_rng(1).random(expected.shape) < 0.3
    assert (best_steps(layers, features, mask) == np.where(mask, expected, -np.inf).argmax(axis=-1)).all()


def without(name):
    def change(arrays):
        del arrays[name]

    return change


def with_header(**changes):
    def change(arrays):
        header = {**json.loads(arrays["header"].tobytes()), **changes}
        arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)

    return change


def with_nan(arrays):
    arrays["bias0"] = np.full_like(arrays["bias0"], np.nan)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("header"), "expected a checkpoint of a learned policy, got an archive without a header"),
        (without("weights0"), "layers: expected one or more, got none"),
        (without("bias1"), "steps: expected the 16 columns of the last layer, got 127"),
        (with_header(format=1), "format: expected 2, got 1"),
        (with_header(features=5), "layer 0: expected 5 rows and one bias a column, got"),
        (with_header(view="other"), "view: expected steps, got other"),
        (with_nan, "layer 0: expected finite numbers"),
    ],
)
def test_bad_checkpoints_are_refused(tmp_path, capsys, change, message):
    path = tmp_path / "policy.npz"
    drawn(RUNS).save(path)
    with np.load(path) as archive:
        arrays = dict(archive)
    change(arrays)
    with open(path, "wb") as file:
        np.savez(file, **arrays)
    arguments = ["jobs", "--workload", "contention", "--seeds", "0", "--policies", f"learned:{path}"]
    assert cli.main(arguments) == 2
    assert f"{path}: {message}" in capsys.readouterr().err


def test_a_file_that_is_no_checkpoint(tmp_path, capsys):
    path = tmp_path / "policy.npz"
    for content, message in (
        (None, "No such file"),
        (b"nonsense", "expected a checkpoint of a learned policy"),
    ):
        if content is not None:
            path.write_bytes(content)
        assert cli.main(["evaluate", str(path), "--seeds", "0:2"]) == 2
        assert f"{path}: {message}" in capsys.readouterr().err


def test_a_checkpoint_of_another_shape():
    checkpoint = drawn(RUNS)
    with pytest.raises(UsageError, match="checkpoint: steps: expected 143, got 127"):
        check_fits(checkpoint, Episodes(replace(RUNS, stops=True), 1))
    other = replace(RUNS, rounds=RoundsSettings(TableModel(TABLE), nodes=5))
    with pytest.raises(UsageError, match="checkpoint: nodes: expected 5, got 4"):
        check_fits(checkpoint, Episodes(other, 1))


def test_evaluate_prints_ratios_to_the_first_rule(tmp_path, capsys):
    path = tmp_path / "policy.npz"
    drawn(RUNS).save(path)
    arguments = ["evaluate", str(path), "--seeds", "0:4", "--jobs", "20", "--rules", "greedy,srsf-first-none"]
    assert cli.main([*arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["rule"], document["seeds"]) == ("greedy", [0, 1, 2, 3])
    rule, learned = document["policies"]
    assert (rule["policy"], learned["policy"], learned["same_table"]) == ("srsf-first-none", str(path), True)
    assert learned["low"] <= learned["ratio"] <= learned["high"]
    assert learned["ratio"] > 1


def test_estimates_of_known_ratios():
    ratios = np.tile(np.array([0.5, 0.9, 1.0, 1.1, 3.0, 0.9, 1.0, 1.1]), (3, 1))
    found = estimate(ratios, resamples=200)
    assert found.mean == pytest.approx(1.0)  # the outer quarters do not count
    assert (found.low, found.high) == (pytest.approx(1.0), pytest.approx(1.0))  # all rows are equal
    assert (found.below_1, found.worst_decile) == (3 / 8, pytest.approx(3.0, abs=1.3))
    spread = estimate(ratios[:1], resamples=500)
    assert spread.low < 1 < spread.high
