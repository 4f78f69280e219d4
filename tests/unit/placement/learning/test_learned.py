"""Checkpoints, and learned policies as schedulers: the same decisions as in the runs that they are trained on."""

import json
from dataclasses import replace

import numpy as np
import pytest

from mltcp.core.errors import UsageError
from placement.cli import main as cli
from placement.learning.episodes import EpisodeSettings
from placement.learning.evaluation import check_fits, estimate, play
from placement.learning.lessons import watch
from placement.model.throughput_table import TableModel, published_table
from placement.policies.schedulers.contention.learned.checkpoint import (
    FORMAT,
    SHIPPED,
    STEPS,
    Checkpoint,
    CheckpointHeader,
    digest_of_table,
)
from placement.policies.schedulers.contention.learned.step_rows import WIDTH
from placement.policies.schedulers.contention.rule import find_rule
from placement.policies.schedulers.registry import named_scheduler
from placement.simulator.rates.rounds.run import RoundsSettings, run_rule, run_scheduler

TABLE = published_table()
ROUNDS = RoundsSettings(TableModel(TABLE), restart_ns=30 * 10**9)
RUNS = EpisodeSettings(ROUNDS, (0.6, 0.6), jobs=30)


def drawn(settings=RUNS, seed=1, hidden=16):
    """A network that was not trained."""
    chance = np.random.default_rng(seed)
    shapes = (WIDTH, hidden), (hidden, hidden), (2 * hidden, hidden), (hidden, 1)
    layers = tuple(
        (
            chance.normal(scale=shape[0] ** -0.5, size=shape).astype(np.float32),
            chance.normal(size=shape[1]).astype(np.float32),
        )
        for shape in shapes
    )
    tables = (digest_of_table(TABLE),)
    return Checkpoint(CheckpointHeader(FORMAT, STEPS, WIDTH, 1, settings.stops, tables, {"seed": 1}), layers)


@pytest.mark.parametrize("stops", [False, True])
def test_the_scheduler_takes_the_decisions_of_the_runs(tmp_path, stops):
    settings = replace(RUNS, stops=stops)
    checkpoint = drawn(settings)
    checkpoint.save(tmp_path / "policy.npz")
    scheduler = named_scheduler(f"learned:{tmp_path / 'policy.npz'}")
    for seed in (10_000, 10_001):
        (mean_jct_s,) = play(checkpoint, settings, [seed])
        outcome = run_scheduler(settings.trace_of(seed), ROUNDS, scheduler)
        assert outcome.mean_jct_s == pytest.approx(mean_jct_s, rel=1e-9)


@pytest.mark.slow
class TestLookAhead:
    """A look-ahead that a network guides."""

    def test_the_scheduler_takes_the_decisions_of_the_runs_and_better_ones_than_the_network(self, tmp_path):
        checkpoint = drawn(RUNS)
        checkpoint.save(tmp_path / "policy.npz")
        scheduler = named_scheduler(f"learned-look:{tmp_path / 'policy.npz'}")
        seeds = [10_000, 10_001, 10_002]
        ahead = play(checkpoint, RUNS, seeds, looks_ahead=True)
        for seed, mean_jct_s in zip(seeds, ahead, strict=True):
            outcome = run_scheduler(RUNS.trace_of(seed), ROUNDS, scheduler)
            assert outcome.mean_jct_s == pytest.approx(mean_jct_s, rel=1e-9)
        assert np.mean(ahead) < 0.9 * np.mean(play(checkpoint, RUNS, seeds))

    @pytest.mark.parametrize(("stops", "name"), [(False, "greedy-look"), (True, "reopt-look")])
    def test_a_network_that_was_not_trained_does_little_harm(self, stops, name):
        settings, seeds = replace(RUNS, stops=stops), [10_000, 10_001, 10_002]
        checkpoint = drawn(settings)
        rule = find_rule(name)
        by_rule = [run_rule(settings.trace_of(seed), ROUNDS, name, rule).mean_jct_s for seed in seeds]
        assert np.mean(play(checkpoint, settings, seeds, looks_ahead=True)) < 1.08 * np.mean(by_rule)
        assert np.mean(play(checkpoint, settings, seeds)) > 1.3 * np.mean(by_rule)

    def test_it_can_be_imitated(self):
        checkpoint, seeds = drawn(RUNS), [10_000, 10_001]
        lessons = watch(RUNS, seeds[0], len(seeds), guide=checkpoint)
        assert lessons.targets.sum(axis=1) == pytest.approx(1, abs=0.01)
        assert (lessons.targets[lessons.rows[..., :3].sum(axis=-1) == 0] == 0).all()

    def test_a_guide_of_another_shape_is_refused(self, tmp_path, capsys):
        drawn(RUNS).save(tmp_path / "guide.npz")
        arguments = [
            "learn",
            "-o",
            str(tmp_path / "policy"),
            "--stops",
            "--guide",
            str(tmp_path / "guide.npz"),
        ]
        assert cli.main(arguments) == 2
        assert "checkpoint: stops: expected True, got False" in capsys.readouterr().err


def test_a_checkpoint_comes_back_as_it_was(tmp_path):
    kept = drawn(RUNS)
    kept.save(tmp_path / "policy.npz")
    found = Checkpoint.load(tmp_path / "policy.npz")
    assert found.header == kept.header
    assert [each.tobytes() for layer in found.layers for each in layer] == [
        each.tobytes() for layer in kept.layers for each in layer
    ]


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
        (without("bias1"), "network: expected 4 layers that read 43 numbers a step, got 1 that read 43"),
        (without("bias3"), "network: expected 4 layers that read 43 numbers a step, got 3 that read 43"),
        (with_header(format=2), "format: expected 3, got 2: train it again"),
        (
            with_header(features=5),
            "network: expected 4 layers that read 43 numbers a step, got 4 that read 5",
        ),
        (with_header(outputs="x"), "outputs: expected a whole number, got 'x'"),
        (with_header(stops="yes"), "stops: expected true or false, got 'yes'"),
        (with_header(training=[]), "training: expected an object, got []"),
        (with_header(view="other"), "view: expected steps or published, got 'other'"),
        (with_header(view="published"), "layer 2: expected 16 rows and one bias a column, got (32, 16)"),
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
        (SHIPPED.read_bytes()[:20_000], "expected a checkpoint of a learned policy"),
    ):
        if content is not None:
            path.write_bytes(content)
        assert cli.main(["evaluate", str(path), "--seeds", "0:2"]) == 2
        assert f"{path}: {message}" in capsys.readouterr().err


def test_a_checkpoint_that_does_something_else():
    with pytest.raises(UsageError, match="checkpoint: stops: expected True, got False"):
        check_fits(drawn(RUNS), replace(RUNS, stops=True))


def test_the_shipped_policy_is_small_and_says_what_it_comes_from():
    told = Checkpoint.load(SHIPPED).header.training
    assert SHIPPED.stat().st_size < 500_000
    assert {"seed", "worlds", "versions", "first_trace"} <= set(told)
    assert SHIPPED.with_name("policy.md").exists()


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
