"""``mltcp-placement learn``: trains a policy for jobs that slow each other down."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from mltcp.core.errors import UsageError
from mltcp.core.progress import progress_bar
from placement.cli.command import add_command
from placement.cli.learning.arguments import add_run_arguments, parse_runs
from placement.learning.settings import TrainingSettings
from placement.policies.schedulers.contention.checkpoint import Checkpoint

_EXAMPLES = """\
examples:
  mltcp-placement learn -o policy                                  imitation of the look-ahead: 10 minutes of a core
  mltcp-placement learn -o policy --steps 2500000                  then 2.5 million steps of its own
  mltcp-placement learn -o policy --steps 2500000 --stops --restart-cost 30
  mltcp-placement learn -o policy --loads at-once --mixes normal,heavy --seed 3
  mltcp-placement learn -o better --guide policy/policy.npz        imitates the look-ahead that this policy guides

The policy starts jobs of the workload contention (see mltcp-placement jobs --help), one start a step. It imitates the
rule greedy-look first, and may then go on by proximal policy optimisation with masks (sb3-contrib). DIR gets
policy.npz, which mltcp-placement evaluate reads, and model.zip of sb3-contrib. A training that was interrupted goes on
if the command is given again.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``learn`` to the commands."""
    command = add_command(commands, "learn", execute, _EXAMPLES)
    command.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="for the policy")
    add_run_arguments(command, "0.4:0.8")
    command.add_argument(
        "--at-once",
        type=float,
        default=0.1,
        metavar="SHARE",
        help="of the runs, in which all jobs come at time 0 (default %(default)s)",
    )
    command.add_argument("--stops", action="store_true", help="the policy may stop running jobs")
    command.add_argument("--no-gains", action="store_true", help="without the gains of greedy as an input")
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
        help="runs in which the look-ahead is imitated (default %(default)s)",
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
        help="a policy.npz that guides the look-ahead that is imitated (default: that of the rule)",
    )
    command.add_argument("--tensorboard", type=Path, metavar="DIR", help="for a log of the training")
    command.add_argument("--json", action="store_true", help="what was trained, as one JSON document")


def execute(options: argparse.Namespace) -> int:
    """Train, keep and describe a policy; returns the exit status."""
    from placement.learning.training import train  # torch: slow to import

    episodes = parse_runs(options, options.stops, not options.no_gains, options.at_once)
    settings = TrainingSettings(seed=options.seed, imitated=options.imitate, steps=options.steps)
    if not (options.imitate or options.steps):
        raise UsageError("--imitate and --steps: expected one of them above 0, got 0 and 0")
    with progress_bar(1000) as bar:

        def tell(what: str, done: int, most: int, score: float | None) -> None:
            text = what if score is None else f"{what}: {score:,.0f} s"
            bar.remaining(text, 1000 - 1000 * done // most)

        guide = None if options.guide is None else Checkpoint.load(options.guide)
        checkpoint = train(episodes, settings, options.output, tell, options.tensorboard, guide)
    told = dict(checkpoint.header.training)
    if options.json:
        print(json.dumps({"schema": 1, "policy": str(options.output / "policy.npz"), **told}))
    else:
        print(
            f"{options.output / 'policy.npz'}: {told['all_s']} s, of which imitation {told['imitation_s']} s"
        )
        print(f"mltcp-placement evaluate {options.output / 'policy.npz'} --seeds 40:90", file=sys.stderr)
    return 0
