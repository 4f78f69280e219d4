"""``mltcp-placement learn-published``: trains the policy of the paper, by its own recipe."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

from mltcp.core.errors import UsageError
from mltcp.core.progress import progress_bar
from placement.cli.command import add_command
from placement.cli.learning.arguments import add_run_arguments, parse_runs
from placement.learning.episodes import REWARDS
from placement.learning.settings import BRANCHES, TrainingSettings

_EXAMPLES = """\
examples:
  mltcp-placement learn-published -o branch-b                      W1 = 0.4, all jobs at time 0, as in the paper
  mltcp-placement learn-published -o branch-e --branch E --seed 3
  mltcp-placement learn-published -o poisson --loads 0.4:0.8 --reward completion
  mltcp-placement jobs --workload contention --seeds 40:60 --policies greedy,rl-hybrid:branch-b/policy.npz

Proximal policy optimisation with the defaults of stable-baselines3, on ten traces of which each is run 20 times in a
row, as far as the steps go. The branches A to E weigh contention with W1 = 0.3, 0.4, 0.5, 0.6, 0.7.
"""

_STEPS = 300_000


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``learn-published`` to the commands."""
    command = add_command(commands, "learn-published", execute, _EXAMPLES)
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


def execute(options: argparse.Namespace) -> int:
    """Train, keep and describe a policy; returns the exit status."""
    from placement.learning.published_training import train_published  # torch: slow to import

    if options.steps < 1:
        raise UsageError(f"--steps: expected 1 or more, got {options.steps}")
    runs = parse_runs(options, stops=False)
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
