"""``mltcp-placement evaluate``: learned policies beside rules on traces that none of them has seen."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from mltcp.core.errors import UsageError
from mltcp.core.policy_names import parse_names
from mltcp.core.progress import progress_bar
from placement.cli.command import add_command
from placement.cli.learning.arguments import add_run_arguments, parse_runs
from placement.cli.simulation.arguments import parse_seeds
from placement.experiments.console import open_console, ruled_table
from placement.learning.episodes import EpisodeSettings
from placement.learning.evaluation import LOOKING, Comparison, compare, estimate, uses_table_of
from placement.policies.schedulers.contention.checkpoint import Checkpoint
from placement.policies.schedulers.contention.rule import NAMES

_EXAMPLES = """\
examples:
  mltcp-placement evaluate policy/policy.npz --seeds 40:90 --loads 0.6
  mltcp-placement evaluate policy/policy.npz --seeds 40:90 --loads 0.6 --look-ahead
  mltcp-placement evaluate seed-*/policy.npz --seeds 40:90 --loads 0.5 --rules greedy,greedy-look --json

Every policy runs on the same traces. The table has the interquartile mean over traces (and over all checkpoints) of the
mean completion time relative to that of the first rule, with a 95 % stratified bootstrap interval.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``evaluate`` to the commands."""
    command = add_command(commands, "evaluate", execute, _EXAMPLES)
    command.add_argument("checkpoints", type=Path, nargs="+", metavar="FILE", help="policy.npz of learn")
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


def execute(options: argparse.Namespace) -> int:
    """Run the comparison and print it; returns the exit status."""
    loaded = [(str(path), Checkpoint.load(path)) for path in options.checkpoints]
    shapes = {(each.header.stops, each.header.gains) for _, each in loaded}
    if len(shapes) != 1:
        raise UsageError(
            "FILE: expected checkpoints of one shape, got some that may stop jobs, or lack gains"
        )
    ((stops, gains),) = shapes
    settings = parse_runs(options, stops, gains)
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
    found: Comparison, loaded: list[tuple[str, Checkpoint]], settings: EpisodeSettings
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


def _entry(name: str, found: Comparison, rows: list[int]) -> dict[str, Any]:
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


def _show(found: Comparison, entries: list[dict[str, Any]]) -> None:
    title = f"mean completion time relative to {found.rule}, {len(found.seeds)} traces"
    columns = ("mean [s]", "ratio", "95 % interval", "better on", "worst decile", "worst")
    rows: list[tuple[str, ...]] = [(found.rule, f"{found.rule_s.mean():,.0f}", "1")]
    for each in entries:
        numbers = (
            *(
                f"{each['mean_jct_s']:,.0f}",
                f"{each['ratio']:.3f}",
                f"{each['low']:.3f} to {each['high']:.3f}",
            ),
            *(f"{each['below_1']:.0%}", f"{each['worst_decile']:.3f}", f"{each['worst']:.3f}"),
        )
        rows.append((each["policy"], *numbers))
    open_console().print(ruled_table(title, "policy", columns, rows))
