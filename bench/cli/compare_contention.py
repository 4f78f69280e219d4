"""``mltcp-bench compare --trace FILE`` for traces of jobs that slow each other down: live in rounds on the lab."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from bench.cli.compare_jobs import IGNORED_BY_JOBS, refuse_ignored
from bench.lab.two_tier import TwoTier
from mltcp.core.errors import UsageError
from mltcp.core.policy_names import parse_names
from mltcp.core.progress import progress_bar
from mltcp.core.quantities import parse_number
from placement.model.throughput_table import COMBINATIONS

if TYPE_CHECKING:
    from bench.compare.contention_jobs.comparison import ContentionComparison

POLICIES = "srsf-first-full,srsf-packed-full"
ROUND_S = 15.0
_COLUMNS = frozenset({"job_id", "arrival_s", "model", "gpus"})
_RACKS, _SLOTS = 4, 4
_IGNORED = (*IGNORED_BY_JOBS, "speed", "servers")


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments that only such traces have."""
    jobs = command.add_argument_group("options of a --trace of jobs with the columns model and gpus")
    jobs.add_argument(
        "--table",
        type=Path,
        metavar="DIR",
        help="of the lab's models, as a run with -o writes it (default: measured first)",
    )
    jobs.add_argument("--round", metavar="S", help=f"the length of a round (default {ROUND_S:g})")
    jobs.add_argument(
        "--combination",
        choices=COMBINATIONS,
        default="sum",
        help="of a job's ratios beside several neighbours, as policies and the simulator see them (default sum)",
    )
    jobs.add_argument("--shadow", default="", metavar="NAME", help="ask this policy about every decision too")


def is_contention(trace: str | None) -> bool:
    """Whether the argument of --trace is a table of jobs with models and GPUs."""
    if trace is None:
        return False
    try:
        with open(trace, encoding="utf-8-sig") as file:
            columns = {name.strip() for name in file.readline(10_000).split(",")}
    except (OSError, ValueError):
        return False
    return columns.issuperset(_COLUMNS)


def execute(options: argparse.Namespace) -> int:
    """Run the comparison and print it; returns the exit status: 1 if a sample was lost or seen twice."""
    from bench.compare.contention_jobs.comparison import ContentionPlan, compare_contention
    from bench.compare.contention_jobs.lab_models import nominal_table
    from bench.compare.contention_jobs.measure import points
    from bench.lab.network import namespaces
    from mltcp.core.atomic_files import write_atomically
    from placement.model.throughput_table import read_table
    from placement.policies.schedulers.registry import NAMES
    from placement.traces.contention import read_trace
    from placement.traces.trace import tell_left_out

    refuse_ignored(options, _IGNORED, "models and GPUs")
    policies = parse_names(options.policies, lambda name: str(NAMES.parse(name)))
    table = None if options.table is None else read_table(options.table)
    trace = read_trace(options.trace, table or nominal_table())
    tell_left_out("mltcp-bench", trace)
    trace.check_rows(nominal_table())
    if options.first is not None:
        if options.first < 1:
            raise UsageError(f"--first: expected 1 or more, got {options.first}")
        trace = replace(trace, jobs=trace.jobs[: options.first], places=trace.places[: options.first])
    round_s = ROUND_S if options.round is None else parse_number(options.round, field="--round", lowest=0.5)
    cost = options.restart_cost
    restart_s = None if cost == "0" else parse_number(cost, field="--restart-cost", lowest=0)
    shape = TwoTier(
        racks=options.racks or _RACKS, servers=1, slots=options.slots or _SLOTS, oversubscription=Fraction(1)
    )
    plan = ContentionPlan(trace, policies, shape, round_s, restart_s, options.shadow, options.combination)
    if shape.racks < 4 or shape.slots < 2:
        raise UsageError(f"--racks, --slots: expected 4 and 2 or more, got {shape.racks} and {shape.slots}")
    namespaces.require_privileges()
    steps = len(policies) * len(trace.jobs) + (points() if table is None else 0)
    with progress_bar(steps) as bar:
        results, _ = compare_contention(plan, table, options.output, bar.advance)
    text = json.dumps(
        {"round_s": round_s, "policies": [each.document() for each in results]}, allow_nan=False
    )
    if options.output is not None:
        write_atomically(options.output / "contention.json", text.encode() + b"\n")
    if options.json:
        print(text)
    else:
        _print(results)
    return 1 if any(each.live.faults for each in results) else 0


def _print(results: list[ContentionComparison]) -> None:
    for result in results:
        found = result.document()
        print(
            f"{result.policy}: {found['same_starts']} of {found['predicted_starts']} starts as simulated"
            f"{', in the same order' if found['same_order'] else ', in another order'}; completion time "
            f"{found['median_jct_ratio']:.3f} of the simulated one in the median, off by "
            f"{found['median_jct_difference']:.1%}; a start costs {result.start_s:.1f} s; {found['stops']} stops, "
            f"{len(found['faults'])} faults in the samples"
        )
        for fault in found["faults"]:
            print(f"  {fault}")
