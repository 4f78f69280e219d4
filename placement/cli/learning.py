"""``mltcp-placement learn``, ``learn-published``, ``evaluate``: policies that are trained for contending jobs."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from mltcp.core.errors import UsageError, shown
from mltcp.core.policy_names import parse_names
from mltcp.core.progress import progress_bar
from mltcp.core.quantities import NS_PER_S
from mltcp.core.subcommands import add_command
from placement.cli.simulation.arguments import TOOL, parse_number, parse_seeds
from placement.learning.episodes import REWARDS, EpisodeSettings, kinds_of
from placement.learning.evaluation import LOOKING, LearnedComparison, compare, estimate, uses_table_of
from placement.learning.training_folder import BRANCHES, TrainingSettings
from placement.model.throughput_table import (
    COMBINATIONS,
    Combination,
    TableModel,
    published_table,
    read_table,
)
from placement.policies.schedulers.contention.learned.checkpoint import SHIPPED, Checkpoint, mean_of
from placement.policies.schedulers.contention.rule import NAMES
from placement.simulator.rates.rounds.run import GPUS, NODES, RoundsSettings
from placement.traces.contention import JOBS, MIXES, ContentionTrace, read_trace
from placement.traces.trace import tell_left_out


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the three to the commands."""
    _add_learn(commands)
    _add_learn_published(commands)
    _add_evaluate(commands)


# -- learn -------------------------------------------------------------------------------------------------------------


_LEARN_EXAMPLES = """\
examples:
  mltcp-placement learn -o policy                                  imitation of simulations: 3 minutes of a core
  mltcp-placement learn -o policy --steps 1000000                  then a million steps of its own
  mltcp-placement learn -o policy --table published,measured --combination minimum,sum --nodes 4,8 --gpus 4,8
  mltcp-placement learn -o policy --trace philly-traces/cluster_job_log --loads 0.5:0.9
  mltcp-placement learn -o policy --stops --restart-cost 30
  mltcp-placement learn -o better --guide policy/policy.npz        imitates simulations in which this policy decides
  mltcp-placement learn -o more --from policy/policy.npz --nodes 8 goes on from this policy
  mltcp-placement learn -o mean --from more-*/policy.npz --imitate 0   the mean of several

The policy starts jobs that slow each other down (see mltcp-placement jobs --workload contention --help), one start a
step, on clusters of any size. It first imitates what simulations say of each step, and may then go on by proximal
policy optimisation, held close to that. Of several tables, combinations, sizes and traces, each with each other is
learned from, in equal shares; Philly, PAI and other traces of clusters get models of the table. DIR gets policy.npz: a
policy of jobs and serve, as learned:DIR/policy.npz. A training that was interrupted goes on if the command is given
again.
"""


def _add_learn(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = add_command(commands, "learn", learn, _LEARN_EXAMPLES)
    command.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="for the policy")
    add_run_arguments(command, "0.4:0.8", many=True)
    command.add_argument(
        "--at-once",
        type=float,
        default=0.1,
        metavar="SHARE",
        help="of the runs, in which all jobs come at time 0 (default %(default)s)",
    )
    command.add_argument("--stops", action="store_true", help="the policy may stop running jobs")
    command.add_argument(
        "--seed",
        type=int,
        default=TrainingSettings.seed,
        help="of the network and the traces (default %(default)s)",
    )
    command.add_argument(
        "--imitate",
        type=int,
        default=TrainingSettings.imitated,
        metavar="N",
        help="runs in which simulations are imitated (default %(default)s)",
    )
    command.add_argument(
        "--steps",
        type=int,
        default=TrainingSettings.steps,
        metavar="N",
        help="of proximal policy optimisation after the imitation (default %(default)s)",
    )
    command.add_argument(
        "--guide",
        type=Path,
        metavar="FILE",
        help="a policy.npz that decides in the simulations that are imitated (default: the rule greedy)",
    )
    command.add_argument(
        "--from",
        dest="starts",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="a policy.npz to go on from, half way to what is learned in one part (default: a new network); "
        "of several that went on from one policy, their mean",
    )
    command.add_argument("--tensorboard", type=Path, metavar="DIR", help="for a log of the training")
    command.add_argument("--json", action="store_true", help="what was trained, as one JSON document")


def learn(options: argparse.Namespace) -> int:
    """Train, keep and describe a policy; returns the exit status."""
    from placement.learning.training import train  # torch: slow to import

    worlds = parse_worlds(options, options.stops, options.at_once)
    settings = TrainingSettings(seed=options.seed, imitated=options.imitate, steps=options.steps)
    starts = [Checkpoint.load(path) for path in options.starts or ()]
    if starts:
        settings = replace(settings, parts=1)
    if not (options.imitate or options.steps or len(starts) > 1):
        raise UsageError("--imitate and --steps: expected one of them above 0, got 0 and 0")
    with progress_bar(1000) as bar:

        def tell(what: str, done: int, most: int, score: float | None) -> None:
            text = what if score is None else f"{what}: {score:.3f} of the imitator"
            bar.remaining(text, 1000 - 1000 * done // most)

        guide = options.guide and Checkpoint.load(options.guide)
        start = mean_of(starts) if starts else None
        checkpoint = train(worlds, settings, options.output, tell, options.tensorboard, guide, start)
    told = dict(checkpoint.header.training)
    if options.json:
        print(json.dumps({"schema": 1, "policy": str(options.output / "policy.npz"), **told}))
    else:
        print(
            f"{options.output / 'policy.npz'}: {told['all_s']} s, of which imitation {told['imitation_s']} s"
        )
        print(f"mltcp-placement evaluate {options.output / 'policy.npz'} --seeds 40:90", file=sys.stderr)
    return 0


# -- learn-published ---------------------------------------------------------------------------------------------------


_PUBLISHED_EXAMPLES = """\
examples:
  mltcp-placement learn-published -o branch-b                      W1 = 0.4, all jobs at time 0, as in the paper
  mltcp-placement learn-published -o branch-e --branch E --seed 3
  mltcp-placement learn-published -o poisson --loads 0.4:0.8 --reward completion
  mltcp-placement jobs --workload contention --seeds 40:60 --policies greedy,rl-hybrid:branch-b/policy.npz

Proximal policy optimisation with the defaults of stable-baselines3, on ten traces of which each is run 20 times in a
row, as far as the steps go. The branches A to E weigh contention with W1 = 0.3, 0.4, 0.5, 0.6, 0.7.
"""

_STEPS = 300_000


def _add_learn_published(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = add_command(commands, "learn-published", learn_published, _PUBLISHED_EXAMPLES)
    command.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="for the policy")
    add_run_arguments(command, "at-once")
    command.add_argument(
        "--branch", choices=tuple(BRANCHES), default="B", help="of the paper (default %(default)s)"
    )
    command.add_argument(
        "--reward",
        choices=tuple(REWARDS),
        default="code",
        help="of the paper, of its public code, or minus the completion times (default %(default)s)",
    )
    command.add_argument(
        "--seed", type=int, default=0, help="of the network and the traces (default %(default)s)"
    )
    command.add_argument(
        "--steps",
        type=int,
        default=_STEPS,
        metavar="N",
        help="actions; a run of 256 jobs has about 1,300 (default %(default)s)",
    )
    command.add_argument("--json", action="store_true", help="what was trained, as one JSON document")


def learn_published(options: argparse.Namespace) -> int:
    """Train, keep and describe a policy; returns the exit status."""
    from placement.learning.published_training import train_published  # torch: slow to import

    if options.steps < 1:
        raise UsageError(f"--steps: expected 1 or more, got {options.steps}")
    runs = parse_world(options, stops=False)
    episodes = replace(runs, reward=options.reward, w1=BRANCHES[options.branch])
    first_trace = TrainingSettings(seed=options.seed).first_seed
    with progress_bar(options.steps) as bar:
        checkpoint = train_published(
            episodes,
            options.seed,
            first_trace,
            options.steps,
            options.output,
            lambda done: bar.remaining("learning", max(options.steps - done, 0)),
        )
    path = options.output / "policy.npz"
    if options.json:
        print(json.dumps({"schema": 1, "policy": str(path), **checkpoint.header.training}))
    else:
        print(f"{path}: {checkpoint.header.training['steps']} actions, branch {options.branch}")
        print(
            f"mltcp-placement jobs --workload contention --policies rl-base:{path},rl-hybrid:{path}",
            file=sys.stderr,
        )
    return 0


# -- evaluate ----------------------------------------------------------------------------------------------------------


_EVALUATE_EXAMPLES = """\
examples:
  mltcp-placement evaluate --seeds 40:90 --loads 0.6               the policy that is shipped
  mltcp-placement evaluate policy/policy.npz --seeds 40:90 --loads 0.6 --nodes 8 --combination sum
  mltcp-placement evaluate policy/policy.npz --seeds 40:90 --loads 0.6 --look-ahead
  mltcp-placement evaluate seed-*/policy.npz --seeds 40:90 --loads 0.5 --rules greedy,greedy-look --json

Every policy runs on the same traces. The table has the interquartile mean over traces (and over all checkpoints) of the
mean completion time relative to that of the first rule, with a 95 % stratified bootstrap interval.
"""


def _add_evaluate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = add_command(commands, "evaluate", evaluate, _EVALUATE_EXAMPLES)
    command.add_argument(
        "checkpoints",
        type=Path,
        nargs="*",
        metavar="FILE",
        help="policy.npz of learn (default: the shipped one)",
    )
    command.add_argument(
        "--seeds", default="40:90", metavar="A:B", help="of the traces (default %(default)s)"
    )
    command.add_argument(
        "--rules", default="greedy,greedy-look", metavar="R,...", help="(default %(default)s)"
    )
    command.add_argument(
        "--look-ahead",
        action="store_true",
        help="each policy once more, as the guide of a look-ahead: slower: 0.1 s a trace at 0.6, 3 s at once",
    )
    add_run_arguments(command, "0.6")
    command.add_argument("--json", action="store_true", help="one JSON document instead of the table")


def evaluate(options: argparse.Namespace) -> int:
    """Run the comparison and print it; returns the exit status."""
    named = [(str(path), path) for path in options.checkpoints] or [("learned", SHIPPED)]
    loaded = [(name, Checkpoint.load(path)) for name, path in named]
    stops = {each.header.stops for _, each in loaded}
    if len(stops) != 1:
        raise UsageError("FILE: expected checkpoints that all may stop jobs, or none of them, got both")
    settings = parse_world(options, stops.pop())
    rules = parse_names(options.rules, lambda name: str(NAMES.parse(name)), "--rules")
    steps = len(rules) + len(loaded) * (2 if options.look_ahead else 1)
    with progress_bar(steps, transient=True) as bar:
        seeds = parse_seeds(options.seeds)
        found = compare(loaded, rules, settings, seeds, options.look_ahead, bar.advance)
    entries = [*_entries(found, loaded, settings)]
    if options.json:
        print(json.dumps({"schema": 1, "rule": found.rule, "seeds": list(found.seeds), "policies": entries}))
    else:
        _show(found, entries)
    return 0


def _entries(
    found: LearnedComparison, loaded: list[tuple[str, Checkpoint]], settings: EpisodeSettings
) -> list[dict[str, Any]]:
    checkpoints = dict(loaded)
    entries = []
    for number, name in enumerate(found.policies):
        entry = _entry(name, found, [number])
        if name in checkpoints:
            entry["same_table"] = uses_table_of(checkpoints[name], settings)
        entries.append(entry)
    for ending in ("", LOOKING):
        learned = [
            number
            for number, name in enumerate(found.policies)
            if name.endswith(ending) and name.removesuffix(ending) in checkpoints
        ]
        if len(learned) > 1:
            entries.append(_entry(f"all checkpoints{ending}", found, learned))
    return entries


def _entry(name: str, found: LearnedComparison, rows: list[int]) -> dict[str, Any]:
    ratio = estimate(found.ratios[rows])
    return {
        "policy": name,
        "mean_jct_s": float(found.policies_s[rows].mean()),
        "ratio": ratio.mean,
        "low": ratio.low,
        "high": ratio.high,
        "below_1": ratio.below_1,
        "worst_decile": ratio.worst_decile,
        "worst": float(found.ratios[rows].max()),
    }


def _show(found: LearnedComparison, entries: list[dict[str, Any]]) -> None:
    from placement.experiments.console import open_console, ruled_table

    title = f"mean completion time relative to {found.rule}, {len(found.seeds)} traces"
    columns = ("mean [s]", "ratio", "95 % interval", "better on", "worst decile", "worst")
    rows: list[tuple[str, ...]] = [(found.rule, f"{found.rule_s.mean():,.0f}", "1")]
    for each in entries:
        numbers = (
            f"{each['mean_jct_s']:,.0f}",
            f"{each['ratio']:.3f}",
            f"{each['low']:.3f} to {each['high']:.3f}",
            f"{each['below_1']:.0%}",
            f"{each['worst_decile']:.3f}",
            f"{each['worst']:.3f}",
        )
        rows.append((each["policy"], *numbers))
    open_console().print(ruled_table(title, "policy", columns, rows))


# -- the runs ----------------------------------------------------------------------------------------------------------


_PUBLISHED = "published"
_MOST_LOAD, _MOST_S, _MOST_NODES = 1000, 10**8, 10_000


def add_run_arguments(command: argparse.ArgumentParser, loads: str, many: bool = False) -> None:
    """Add the arguments that describe runs; `loads` is the default of ``--loads``, and of some there may be `many`."""
    more = ",..." if many else ""
    command.add_argument(
        "--loads",
        default=loads,
        metavar="A:B|at-once",
        help="the range from which loads are drawn, or all jobs at time 0 (default %(default)s)",
    )
    command.add_argument(
        "--mixes", default="normal", metavar="M,...", help=f"{', '.join(MIXES)} (default %(default)s)"
    )
    command.add_argument("--jobs", type=int, default=JOBS, help="of a run (default %(default)s)")
    command.add_argument("--restart-cost", default="0", metavar="SECONDS", help="of a restart (default 0)")
    command.add_argument(
        "--table",
        default=_PUBLISHED,
        metavar=f"DIR{more}",
        help="of throughputs and ratios (default published, the shipped one)",
    )
    command.add_argument(
        "--combination",
        default="minimum",
        metavar=f"C{more}",
        help=f"of the ratios beside several neighbours: {', '.join(COMBINATIONS)} (default %(default)s)",
    )
    command.add_argument(
        "--trace",
        type=Path,
        nargs="+" if many else 1,
        metavar="FILE",
        help="parts of it in place of drawn traces: a trace of contention, Philly, PAI or another cluster",
    )
    command.add_argument("--nodes", default=str(NODES), metavar=f"N{more}", help="(default %(default)s)")
    command.add_argument(
        "--gpus", default=str(GPUS), metavar=f"N{more}", help="of a node (default %(default)s)"
    )


def parse_worlds(
    options: argparse.Namespace, stops: bool, at_once: float = 0.0
) -> tuple[EpisodeSettings, ...]:
    """The settings of the runs: each table, combination, size and trace with each other.

    Raises:
        UsageError: an argument is malformed or out of range, or a table lacks a kind of jobs of a trace.
    """
    restart_ns = round(parse_number(options.restart_cost, "--restart-cost", _MOST_S) * NS_PER_S)
    combinations = parse_names(options.combination, _combination, "--combination")
    nodes_in_all = _whole_numbers(options.nodes, "--nodes")
    gpus_of_each = _whole_numbers(options.gpus, "--gpus")
    found = []
    for name in parse_names(options.table, str, "--table"):
        table = published_table() if name == _PUBLISHED else read_table(Path(name))
        read = [read_trace(str(path), table) for path in options.trace or ()]
        tell_left_out(TOOL, *read)
        traces: list[ContentionTrace | None] = [*read] or [None]
        for combination, nodes, gpus, trace in product(combinations, nodes_in_all, gpus_of_each, traces):
            rounds = RoundsSettings(TableModel(table, combination), nodes, gpus, restart_ns=restart_ns)
            settings = EpisodeSettings(
                rounds,
                _parse_loads(options.loads),
                tuple(options.mixes.split(",")),
                options.jobs,
                stops,
                at_once=at_once,
                trace=trace,
            )
            kinds_of(rounds)
            found.append(settings)
    return tuple(found)


def parse_world(options: argparse.Namespace, stops: bool) -> EpisodeSettings:
    """The settings of runs on one cluster.

    Raises:
        UsageError: as `parse_worlds`, or there are several.
    """
    found = parse_worlds(options, stops)
    if len(found) > 1:
        raise UsageError("--table, --combination, --nodes and --gpus: expected one of each, got several")
    return found[0]


def _combination(name: str) -> Combination:
    for known in COMBINATIONS:
        if name == known:
            return known
    raise UsageError(f"--combination: expected {', '.join(COMBINATIONS)}, got {shown(name)}")


def _whole_numbers(text: str, name: str) -> list[int]:
    found = [parse_number(part, name, _MOST_NODES) for part in text.split(",")]
    if not all(each == int(each) >= 1 for each in found):
        raise UsageError(f"{name}: expected whole numbers from 1 on, got {shown(text)}")
    return [int(each) for each in found]


def _parse_loads(given: str) -> tuple[float, float] | None:
    if given == "at-once":
        return None
    parts = given.split(":")
    if len(parts) > 2:
        raise UsageError(f"--loads: expected A:B, A or at-once, got {shown(given)}")
    low, high = (float(parse_number(part, "--loads", _MOST_LOAD)) for part in (parts[0], parts[-1]))
    return low, high
