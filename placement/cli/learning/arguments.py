"""Arguments that the commands of learned policies share: the runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from mltcp.core.errors import UsageError, shown
from mltcp.core.quantities import NS_PER_S
from placement.cli.simulation.jobs_arguments import parse_number
from placement.learning.episodes import EpisodeSettings
from placement.model.throughput_table import TableModel, published_table, read_table
from placement.simulator.rates.rounds.run import RoundsSettings
from placement.traces.contention import JOBS, MIXES

_MOST_LOAD, _MOST_S = 1000, 10**8


def add_run_arguments(command: argparse.ArgumentParser, loads: str) -> None:
    """Add the arguments that describe runs; `loads` is the default of ``--loads``."""
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
        "--table", type=Path, metavar="DIR", help="of throughputs and ratios (default: the published one)"
    )


def parse_runs(
    options: argparse.Namespace, stops: bool, gains: bool = True, at_once: float = 0.0
) -> EpisodeSettings:
    """The settings of the runs; of some, all jobs come at time 0.

    Raises:
        UsageError: an argument is malformed or out of range.
    """
    table = published_table() if options.table is None else read_table(options.table)
    restart_ns = round(parse_number(options.restart_cost, "--restart-cost", _MOST_S) * NS_PER_S)
    return EpisodeSettings(
        RoundsSettings(TableModel(table), restart_ns=restart_ns),
        _parse_loads(options.loads),
        tuple(options.mixes.split(",")),
        options.jobs,
        stops,
        gains,
        at_once=at_once,
    )


def _parse_loads(given: str) -> tuple[float, float] | None:
    if given == "at-once":
        return None
    parts = given.split(":")
    if len(parts) > 2:
        raise UsageError(f"--loads: expected A:B, A or at-once, got {shown(given)}")
    low, high = (float(parse_number(part, "--loads", _MOST_LOAD)) for part in (parts[0], parts[-1]))
    return low, high
