"""``mltcp-bench compare jobs`` and ``compare contention``: traces of trainings, live on the lab under schedulers."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from bench.command_line import option
from bench.lab.link import MAX_RATE_BPS, MIN_RATE_BPS
from bench.lab.two_tier import TwoTier
from bench.live_jobs.lab_scale import SPEED, LabScale
from mltcp.core.errors import UsageError
from mltcp.core.policy_names import parse_names
from mltcp.core.progress import progress_bar
from mltcp.core.quantities import parse_number, parse_rate_bps
from placement.model.throughput_table import COMBINATIONS
from placement.traces.contention import ContentionTrace
from placement.traces.deadlines import DeadlineTrace

if TYPE_CHECKING:
    from bench.live_jobs.contention import ContentionComparison

_WORKLOAD = "drs"
_COLUMNS = frozenset({"job_id", "arrival_s", "model", "gpus"})
_RACKS, _SLOTS = 4, 4

_Trace = TypeVar("_Trace", ContentionTrace, DeadlineTrace)


def add_parsers(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``jobs`` and ``contention`` to the kinds of comparisons."""
    jobs = kinds.add_parser("jobs", help="a trace (CSV) of whole jobs with deadlines, under schedulers")
    _add_shared(
        jobs,
        "drs,norm,edf-late-last-node,elastic-mh",
        "what a start costs, for the prediction and the schedulers: seconds, the file of "
        "mltcp-bench cost restart -o, or jobs.json of an earlier run, with what its steps took",
        "S|FILE",
    )
    option(jobs, "--speed", str(SPEED), "seconds of the trace in a second of the lab", "X")
    jobs.add_argument(
        "--service",
        action="store_true",
        help="a placement service decides, which is told the speeds of the jobs (default: the simulator's loop)",
    )
    jobs.add_argument(
        "--inside",
        metavar="RATE",
        help="of each rank to the next one of a ring that has all slots of a host (default: as the processors copy)",
    )
    jobs.set_defaults(execute=_execute_jobs)
    contention = kinds.add_parser(
        "contention", help="a trace (CSV) of jobs with models, which slow each other down, in rounds"
    )
    _add_shared(
        contention,
        "srsf-first-full,srsf-packed-full",
        "seconds that a start costs, for the prediction and the policies; 0: as measured",
        "S",
    )
    contention.add_argument(
        "--table",
        type=Path,
        metavar="DIR",
        help="of the lab's models, as a run with -o writes it (default: measured first)",
    )
    option(contention, "--round", "15", "the length of a round", "S")
    option(
        contention,
        "--combination",
        "sum",
        "of a job's ratios beside several neighbours, as policies and the simulator see them",
        choices=COMBINATIONS,
    )
    contention.add_argument(
        "--shadow", default="", metavar="NAME", help="ask this policy about every decision too"
    )
    contention.set_defaults(execute=_execute_contention)


def _add_shared(command: argparse.ArgumentParser, policies: str, restart_cost: str, metavar: str) -> None:
    command.add_argument("--trace", required=True, metavar="FILE", help="the table of jobs")
    option(command, "--policies", policies, "schedulers", "NAMES")
    command.add_argument("--first", type=int, metavar="N", help="run the first N jobs only (default: all)")
    option(command, "--racks", _RACKS, "hosts, each under a switch of its own", "N")
    option(command, "--slots", _SLOTS, "slots of a host", "N")
    option(command, "--restart-cost", "0", restart_cost, metavar)
    command.add_argument("--json", action="store_true", help="one JSON document instead of the table")
    command.add_argument(
        "-o", dest="output", type=Path, metavar="DIR", help="keep results there, and pictures of whole jobs"
    )


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


def is_whole_jobs(trace: str | None) -> bool:
    """Whether the argument of --trace is a table of whole jobs with deadlines."""
    from placement.traces.deadlines import is_table

    return trace is not None and is_table(Path(trace))


def _execute_jobs(options: argparse.Namespace) -> int:
    """Run the comparison and print it; returns the exit status."""
    from bench.live_jobs.comparison import write_results
    from bench.live_jobs.start_cost import parse_costs
    from bench.live_jobs.whole_jobs import (
        JobsPlan,
        LiveRun,
        compare_jobs,
        document,
        outcomes,
        print_table,
    )
    from placement.experiments.run_journal import kept_runs
    from placement.policies.schedulers.registry import NAMES
    from placement.traces.deadlines import WORKLOADS, DrsMix, read
    from placement.traces.trace import check_gpus, left_out_document, tell_left_out

    policies = parse_names(options.policies, lambda name: str(NAMES.parse(name)))
    trace = read(Path(options.trace), WORKLOADS, DrsMix())
    tell_left_out("mltcp-bench", trace)
    trace = _first(options, trace)
    scale = scale_of(options)
    check_gpus(trace, scale.shape.racks * scale.shape.slots)
    plan = JobsPlan(scale.trace(trace), policies, scale, parse_costs(options.restart_cost), options.service)
    total = len(plan.policies) * len(plan.trace.jobs)
    with kept_runs(options.output, LiveRun.from_line) as journal, progress_bar(total) as bar:
        results = compare_jobs(plan, journal, lambda policy, job: bar.advance(f"{policy}, job {job}"))
    found, files = document(_WORKLOAD, plan, results), []
    if options.output is not None:
        file, shape = options.output / "jobs.json", scale.shape
        files = write_results(file, found, shape.racks, shape.slots, outcomes(results))
    if options.json:
        left_out = left_out_document([trace])
        print(json.dumps({**found, "left_out": left_out, "files": files}, allow_nan=False))
    else:
        print_table(plan, results)
        for path in files:
            print(f"wrote {path}")
    return 0


def _execute_contention(options: argparse.Namespace) -> int:
    """Run the comparison and print it; returns the exit status: 1 if a sample was lost or seen twice."""
    from bench.lab.network import namespaces
    from bench.live_jobs.contention import RoundsPlan, compare_contention
    from bench.live_jobs.contention_table import nominal_table, points
    from mltcp.core.atomic_files import write_atomically
    from placement.model.throughput_table import read_table
    from placement.policies.schedulers.registry import NAMES
    from placement.traces.contention import read_trace
    from placement.traces.trace import tell_left_out

    policies = parse_names(options.policies, lambda name: str(NAMES.parse(name)))
    table = None if options.table is None else read_table(options.table)
    trace = read_trace(options.trace, table or nominal_table())
    tell_left_out("mltcp-bench", trace)
    trace.check_rows(nominal_table())
    trace = _first(options, trace)
    if options.first is not None:
        trace = replace(trace, places=trace.places[: options.first])
    round_s = parse_number(options.round, field="--round", lowest=0.5)
    cost = options.restart_cost
    restart_s = None if cost == "0" else parse_number(cost, field="--restart-cost", lowest=0)
    shape = _shape_of(options)
    plan = RoundsPlan(trace, policies, shape, round_s, restart_s, options.shadow, options.combination)
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
            f"{result.policy}: mean completion time {found['mean_jct_s']:.1f} s, simulated "
            f"{found['predicted_mean_jct_s']:.1f}; {found['same_starts']} of {found['predicted_starts']} starts as "
            f"simulated{', in the same order' if found['same_order'] else ', in another order'}; completion time "
            f"{found['median_jct_ratio']:.3f} of the simulated one in the median, off by "
            f"{found['median_jct_difference']:.1%}; a start costs {result.start_s:.1f} s; {found['stops']} stops, "
            f"{len(found['faults'])} faults in the samples"
        )
        for fault in found["faults"]:
            print(f"  {fault}")


def _first(options: argparse.Namespace, trace: _Trace) -> _Trace:
    """The trace with only its first jobs, if that is asked for."""
    if options.first is None:
        return trace
    if options.first < 1:
        raise UsageError(f"--first: expected 1 or more, got {options.first}")
    return replace(trace, jobs=trace.jobs[: options.first])


def _shape_of(options: argparse.Namespace) -> TwoTier:
    """The lab: a rack has one server, which is a node."""
    return TwoTier(racks=options.racks, servers=1, slots=options.slots, oversubscription=Fraction(1))


def scale_of(options: argparse.Namespace) -> LabScale:
    """The lab that the arguments describe. Raises UsageError: one is out of range."""
    shape = _shape_of(options)
    if options.inside is not None:
        most = MAX_RATE_BPS // shape.slots
        inside_bps = parse_rate_bps(options.inside, field="--inside", lowest=MIN_RATE_BPS, highest=most)
        shape = replace(shape, inside_bps=inside_bps)
    return LabScale(shape, Fraction(parse_number(options.speed, field="--speed")))
