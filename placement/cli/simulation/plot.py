"""``mltcp-placement plot``: the pictures of a comparison and of a single simulation."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from mltcp.core.errors import UsageError
from mltcp.core.subcommands import add_command
from placement.experiments.ada_srsf import AllReduceJobs, load
from placement.experiments.comparison import PolicyComparison
from placement.experiments.run_journal import read_journal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OF_COMPARISONS = ("cdf", "utilization", "bars", "scaling")
OF_SIMULATIONS = ("gantt", "links")

_EXAMPLES = """\
pictures of what `compare -o DIR` keeps:
  cdf            how the completion times of jobs are distributed (Figures 4a, 5a, 6a of the paper)
  utilization    how the utilization of GPUs is distributed (Figures 4b, 5b, 6b)
  bars           the average JCT, and what it is made of (Figures 4c, 5c, 6c)
  scaling        what simulations take against their jobs and events; of one or more folders
pictures of what `simulate -o FILE` writes:
  gantt          which job had which GPU when
  links          how busy the links were over time; needs simulate --intervals

examples:
  mltcp-placement plot cdf comparison -o jct.svg
  mltcp-placement plot bars comparison --policies lwf-1+srsf-1,lwf-1+ada-srsf -o bars.png
  mltcp-placement plot scaling jobs100 jobs1000 jobs10000 -o scaling.svg
  mltcp-placement simulate --trace trace.csv --intervals 400 -o run.json && mltcp-placement plot links run.json -o l.svg
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``plot`` to the commands."""
    command = add_command(commands, "plot", execute, _EXAMPLES)
    command.add_argument("kind", choices=(*OF_COMPARISONS, *OF_SIMULATIONS), help="of picture, see below")
    command.add_argument(
        "source", type=Path, nargs="+", metavar="SOURCE", help="a folder of compare, or a file"
    )
    command.add_argument(
        "-o", "--output", type=Path, required=True, metavar="PICTURE", help="an SVG, PNG or PDF"
    )
    command.add_argument(
        "--policies", metavar="NAMES", help="only these, in this order (default: all compared)"
    )
    command.add_argument(
        "--baseline", metavar="NAME", help="of bars: that of the differences (default: compare's)"
    )
    command.add_argument("--log", action="store_true", help="of cdf: times on a logarithmic axis")


def execute(options: argparse.Namespace) -> int:
    """Draw the picture; returns the exit status."""
    from placement.plots.style import check_path, write

    _check(options)
    check_path(options.output)
    write(_drawing(options), options.output)
    return 0


def _check(options: argparse.Namespace) -> None:
    if len(options.source) > 1 and options.kind != "scaling":
        raise UsageError(f"{options.kind}: expected one source, got {len(options.source)}")
    kinds = {
        "policies": OF_COMPARISONS,
        "baseline": ("bars",),
        "log": ("cdf",),
    }
    for name, allowed in kinds.items():
        if getattr(options, name) and options.kind not in allowed:
            raise UsageError(f"--{name}: expected only with {', '.join(allowed)}, got it with {options.kind}")


def _drawing(options: argparse.Namespace) -> Callable[[], Figure]:
    """A function that draws the picture; its input files have been read and checked."""
    from placement.plots import comparison as plots
    from placement.plots import timelines

    source = options.source[0]
    if options.kind in OF_SIMULATIONS:
        timeline = timelines.load(source)
        draw = {"gantt": timelines.gantt_figure, "links": timelines.links_figure}[options.kind]
        return lambda: draw(timeline)
    names = [name.strip() for name in (options.policies or "").split(",") if name.strip()]
    if options.kind == "scaling":
        runs = [
            run for folder in options.source for run in read_journal(folder, AllReduceJobs.parse).values()
        ]
        return lambda: plots.scaling_figure([run for run in runs if not names or run.policy in names])
    comparison = _chosen(load(source), names, options.baseline)
    return {
        "cdf": lambda: plots.cdf_figure(comparison, options.log),
        "utilization": lambda: plots.utilization_figure(comparison),
        "bars": lambda: plots.bars_figure(comparison),
    }[options.kind]


def _chosen(comparison: PolicyComparison, names: list[str], baseline: str | None) -> PolicyComparison:
    chosen = comparison.only(names) if names else comparison
    if baseline is None:
        return chosen
    if baseline not in chosen.runs:
        raise UsageError(
            f"--baseline: expected one of the policies shown, {', '.join(chosen.runs)}, got {baseline}"
        )
    return PolicyComparison(baseline, chosen.runs)
