"""The paper's policies: what they see and do, their environment, their training, and themselves as schedulers."""

import json

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from placement.cli import main as cli
from placement.learning.environment import EPISODES_A_TRACE, PUBLISHED_NAME, TRACES, PublishedEnvironment
from placement.learning.episodes import EpisodeSettings
from placement.model.throughput_table import TableModel, published_table
from placement.policies.schedulers.contention.learned.checkpoint import Checkpoint
from placement.policies.schedulers.contention.learned.published import (
    RULE_OF,
    drawn_action,
    new_grid,
    observe_grid,
)
from placement.policies.schedulers.contention.ordered import act, draw, find_candidates
from placement.policies.schedulers.contention.rounds import begin_decision
from placement.policies.schedulers.contention.rule import find_rule
from placement.policies.schedulers.registry import named_scheduler
from placement.simulator.rates.rounds.loop import admit
from placement.simulator.rates.rounds.run import RoundsSettings, run_rule, run_scheduler, world_of
from placement.traces.contention import ContentionJob, ContentionMix, ContentionTrace

S = 10**9
TABLE = published_table()
ROUNDS = RoundsSettings(TableModel(TABLE))
RUNS = EpisodeSettings(ROUNDS, loads=None, jobs=40, reward="code")
NODES_01, NODES_23, ALL_NODES, NOTHING = 0, 5, 6, 7


def kind_number(model, gpus):
    """From 1 on, as in the public code."""
    models = ["MobileNetV3", "GraphSage", "FSDP", "Transformer-XL", "DLRM", "MoE"]
    return 1 + 3 * models.index(model) + (2, 4, 8).index(gpus)


def begun(*jobs):
    """A run of jobs (model, GPUs) that are all there at time 0, at its first decision."""
    drawn = [ContentionJob(str(number), 0, model, gpus, 1e6) for number, (model, gpus) in enumerate(jobs)]
    world = world_of(ContentionTrace("t", tuple(drawn)), ROUNDS, RULE_OF["rl-base"])
    admit(world)
    begin_decision(world)
    return world


def seen(world):
    grid = new_grid(4, 8)
    observe_grid(world, find_candidates(world), grid)
    return grid


class TestView:
    """The grid."""

    def test_candidates_are_where_their_layouts_are(self):
        grid = seen(begun(("DLRM", 8), ("MoE", 2), ("FSDP", 8), ("GraphSage", 4)))
        eight, two, four = kind_number("DLRM", 8), kind_number("MoE", 2), kind_number("GraphSage", 4)
        expected = np.zeros((4, 16))
        expected[0, 8 + 7], expected[1, 8 + 3], expected[3, 8 + 1] = eight, eight, eight
        expected[0, 8 + 3], expected[1, 8 + 1], expected[3, 8 + 0] = four, four, four
        expected[0, 8 + 1], expected[1, 8 + 0] = two, two
        assert (grid == expected).all()

    def test_running_jobs_fill_their_nodes_in_the_order_of_their_starts(self):
        world = begun(("DLRM", 4), ("MoE", 2), ("FSDP", 8))
        assert act(world, ALL_NODES, find_candidates(world))  # of two candidates that could, the smaller one
        assert world.jobs["state"].tolist().count(2) == 1
        world.jobs["started"][0], world.jobs["cell_before"][0] = 600 * S, world.jobs["cell"][0]
        world.jobs["nodes_before"][0] = world.jobs["nodes"][0]
        assert act(world, NODES_01, find_candidates(world))
        world.jobs["started"][1], world.jobs["cell_before"][1] = 300 * S, world.jobs["cell"][1]
        world.jobs["nodes_before"][1] = world.jobs["nodes"][1]
        left = seen(world)[:, :8]
        dlrm, moe = kind_number("DLRM", 4), kind_number("MoE", 2)
        assert left[0].tolist() == left[1].tolist() == [moe, dlrm, 0, 0, 0, 0, 0, 0]
        assert left[2].tolist() == left[3].tolist() == [dlrm, 0, 0, 0, 0, 0, 0, 0]

    def test_a_start_of_this_round_comes_after_all_others(self):
        world = begun(("MoE", 2), ("DLRM", 2))
        assert act(world, NODES_23, find_candidates(world))
        world.jobs["started"][0] = 10**6 * S  # a start without a note of it before: new
        assert act(world, NODES_23, find_candidates(world))
        world.jobs["started"][1] = 300 * S
        world.jobs["cell_before"][1], world.jobs["nodes_before"][1] = (
            world.jobs["cell"][1],
            world.jobs["nodes"][1],
        )
        assert seen(world)[2, :2].tolist() == [kind_number("DLRM", 2), kind_number("MoE", 2)]


class TestActions:
    """Starts, nothing, and the fallback."""

    def test_the_smallest_candidate_that_can_run_there_is_started(self):
        world = begun(("FSDP", 8), ("GraphSage", 4))
        assert act(world, NODES_01, find_candidates(world))
        assert world.jobs["state"].tolist() == [1, 2]
        assert not act(world, NOTHING, find_candidates(world))

    def test_what_fits_nobody_starts_nothing_unless_there_is_a_fallback(self):
        world = begun(("MoE", 2))
        assert not act(world, ALL_NODES, find_candidates(world))
        world.core["fallback"] = True
        assert act(world, ALL_NODES, find_candidates(world))


class TestEnvironment:
    """The gymnasium environment."""

    @pytest.mark.filterwarnings("ignore::UserWarning")
    def test_it_is_one(self):
        environment = gymnasium.make(PUBLISHED_NAME, jobs=12, disable_env_checker=True)
        check_env(environment.unwrapped, skip_render_check=True)
        assert environment.observation_space.shape == (64,)
        assert environment.action_space.n == 8

    def test_ten_traces_follow_each_other_again_and_again(self):
        environment = PublishedEnvironment(RUNS, first_seed=500)
        seeds = [environment.reset()[1]["seed"] for _ in range(EPISODES_A_TRACE * TRACES + 1)]
        assert seeds == [seed for seed in range(500, 510) for _ in range(20)] + [500]

    @pytest.mark.parametrize("loads", [None, (0.6, 0.6)])
    def test_random_actions_have_the_outcome_of_the_rule_that_draws_them(self, loads):
        settings = EpisodeSettings(ROUNDS, loads, jobs=40)
        environment = PublishedEnvironment(settings)
        _, told = environment.reset(seed=3)
        total, now, drawn, done = 0.0, -1, 0, False
        while not done:
            core = environment.world.core[0]
            now, drawn = int(core["now"]), drawn if int(core["now"]) == now else 0
            _, reward, done, cut, info = environment.step(draw(0, now, drawn, 8))
            assert not cut
            drawn, total = drawn + 1, total + reward
        trace = settings.mix(told["seed"]).trace(told["seed"], TABLE)
        by_rule = run_rule(trace, ROUNDS, "random-ratio", find_rule("random-ratio")).mean_jct_s
        assert info["mean_jct_s"] == by_rule
        assert total == pytest.approx(-by_rule * 40 / 3600, abs=1e-6)

    def test_a_policy_that_starts_nothing_is_cut_off(self):
        environment = PublishedEnvironment(EpisodeSettings(ROUNDS, loads=None, jobs=2))
        environment.reset(seed=0)
        steps, cut, done = 0, False, False
        while not (cut or done):
            _, _, done, cut, _ = environment.step(NOTHING)
            steps += 1
        assert (cut, done, steps) == (True, False, 5001)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A policy of a training far too short to learn anything."""
    folder = tmp_path_factory.mktemp("branch")
    arguments = [
        "learn-published",
        "-o",
        str(folder),
        "--branch",
        "E",
        "--steps",
        "1",
        "--jobs",
        "12",
        "--json",
    ]
    assert cli.main(arguments) == 0
    return folder / "policy.npz"


@pytest.mark.slow
class TestPolicy:
    """Training, and its outcome as a scheduler."""

    def test_the_checkpoint_says_how_it_was_trained(self, trained):
        header = Checkpoint.load(trained).header
        assert (header.view, header.features, header.outputs) == ("published", 64, 8)
        told = header.training
        assert (told["w1"], told["reward"], told["loads"], told["steps"]) == (0.7, "code", None, 2048)

    def test_actions_are_drawn_with_the_networks_probabilities(self, trained):
        checkpoint, grid = Checkpoint.load(trained), new_grid(4, 8)
        (weights, _), bound = checkpoint.layers[-1], np.linspace(0, 1, 1000, endpoint=False)
        last = (np.zeros_like(weights), np.log(np.arange(1, 9)).astype(np.float32))
        sure = Checkpoint(checkpoint.header, (*checkpoint.layers[:-1], last))
        counts = np.bincount([drawn_action(sure, grid, chance) for chance in bound], minlength=8)
        assert counts == pytest.approx(1000 * np.arange(1, 9) / 36, abs=2)

    @pytest.mark.parametrize(
        ("name", "alike"), [("rl-base", "random-ratio"), ("rl-hybrid", "random-fallback-ratio")]
    )
    def test_an_untrained_one_does_as_random_actions_do(self, trained, name, alike):
        scheduler = named_scheduler(f"{name}:{trained}")
        ratios = []
        for seed in range(4):
            trace = ContentionMix(None, "normal", 60).trace(seed, TABLE)
            by_rule = run_rule(trace, ROUNDS, alike, find_rule(alike)).mean_jct_s
            ratios.append(run_scheduler(trace, ROUNDS, scheduler).mean_jct_s / by_rule)
        assert 0.8 < np.mean(ratios) < 1.25

    def test_it_is_a_policy_of_the_command(self, trained, tmp_path, capsys):
        names, table = f"rl-base:{trained},rl-hybrid:{trained}", tmp_path / "jobs.csv"
        rows = [f"{number},0,DLRM,{(2, 4, 8)[number % 3]}" for number in range(40)]
        table.write_text("job_id,arrival_s,model,gpus\n" + "\n".join(rows) + "\n")
        arguments = ["jobs", "--workload", "contention", "--trace", str(table), "--policies", names, "--json"]
        assert cli.main(arguments) == 0
        base, hybrid = json.loads(capsys.readouterr().out)["policies"]
        assert (base["policy"], hybrid["policy"]) == tuple(names.split(","))
        assert hybrid["mean_jct_s"] < base["mean_jct_s"]
        assert hybrid["utilization"] > base["utilization"]

    def test_it_is_refused_where_another_view_is_needed(self, trained, capsys):
        for arguments in (
            ["jobs", "--workload", "contention", "--seeds", "0", "--policies", f"learned:{trained}"],
            ["evaluate", str(trained), "--seeds", "0:2"],
        ):
            assert cli.main(arguments) == 2
            error = capsys.readouterr().err
            assert "expected" in error
            assert error.count("\n") == 1

    def test_another_cluster_is_refused(self, trained):
        scheduler = named_scheduler(f"rl-base:{trained}")
        trace = ContentionMix(None, "normal", 4).trace(0, TABLE)
        other = RoundsSettings(TableModel(TABLE), nodes=5)
        with pytest.raises(Exception, match="cluster: expected 4 nodes of 8 GPUs"):
            run_scheduler(trace, other, scheduler)


def test_bad_arguments_of_learn_published(tmp_path, capsys):
    for arguments, message in (
        (["--steps", "0"], "--steps: expected 1 or more, got 0"),
        (["--branch", "F"], "--branch: invalid choice: 'F'"),
        (["--mixes", "none"], "mixes: expected some of"),
    ):
        assert cli.main(["learn-published", "-o", str(tmp_path / "policy"), *arguments]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
