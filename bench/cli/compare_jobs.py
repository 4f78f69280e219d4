"""``mltcp-bench compare --trace FILE`` for traces of whole jobs with deadlines: schedulers live on the lab."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

from bench.compare.jobs.lab_trace import SPEED, LabScale
from bench.lab.two_tier import TwoTier
from mltcp.core.errors import UsageError
from mltcp.core.policy_names import parse_names
from mltcp.core.progress import progress_bar
from mltcp.core.quantities import parse_number

POLICIES = "drs,norm,edf-late-last-node,elastic-mh"
_WORKLOAD = "drs"
_RACKS, _SERVERS, _SLOTS = 4, 1, 4
IGNORED_BY_JOBS = (
    *("control", "iterations", "repeat", "starts", "seed", "profiles", "change", "placement"),
    *("ecn_by", "retry_busy", "rate", "queue", "ecn", "mtu", "ranks"),
)
"""The arguments that make no difference to jobs that are trained live, whatever their columns."""

IGNORED_BY_WHOLE_JOBS = (*IGNORED_BY_JOBS, "table", "combination", "round", "shadow")
"""Those, and the arguments of jobs with models and GPUs."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments that only such traces have."""
    jobs = command.add_argument_group("options of a --trace of whole jobs")
    jobs.add_argument(
        "--speed",
        default=str(SPEED),
        metavar="X",
        help=f"seconds of the trace in a second of the lab (default {SPEED})",
    )
    jobs.add_argument(
        "--restart-cost",
        default="0",
        metavar="S|FILE",
        help="what a start costs, for the prediction and the schedulers: seconds, or the file of "
        "mltcp-bench cost restart -o (default 0)",
    )


def refuse_ignored(options: argparse.Namespace, names: Iterable[str], trace: str) -> None:
    """Refuse arguments that make no difference to a kind of trace, by their defaults in ``options.defaults``.

    Raises:
        UsageError: one of them is given.
    """
    for name in names:
        if (value := getattr(options, name)) != options.defaults[name]:
            raise UsageError(
                f"--{name.replace('_', '-')}: expected without a --trace of {trace}, got {value}"
            )


def is_whole_jobs(trace: str | None) -> bool:
    """Whether the argument of --trace is a table of whole jobs with deadlines."""
    from placement.traces.deadlines import is_table

    return trace is not None and is_table(Path(trace))


def execute(options: argparse.Namespace) -> int:
    """Run the comparison and print it; returns the exit status."""
    from bench.compare.jobs.comparison import JobsPlan, compare_jobs
    from bench.compare.jobs.live_run import LiveRun
    from bench.compare.jobs.measured_cost import parse_start_cost
    from bench.compare.jobs.report import document, print_table, write_results
    from placement.experiments.jobs.kept import kept_runs
    from placement.policies.schedulers.registry import NAMES
    from placement.traces.deadlines import WORKLOADS, DrsMix, read
    from placement.traces.trace import check_gpus, left_out_document, tell_left_out

    refuse_ignored(options, IGNORED_BY_WHOLE_JOBS, "whole jobs")
    policies = parse_names(options.policies, lambda name: str(NAMES.parse(name)))
    trace = read(Path(options.trace), WORKLOADS, DrsMix())
    tell_left_out("mltcp-bench", trace)
    if options.first is not None:
        if options.first < 1:
            raise UsageError(f"--first: expected 1 or more, got {options.first}")
        trace = replace(trace, jobs=trace.jobs[: options.first])
    scale = scale_of(options)
    check_gpus(trace, scale.shape.racks * scale.shape.slots)
    plan = JobsPlan(scale.trace(trace), policies, scale, parse_start_cost(options.restart_cost))
    total = len(plan.policies) * len(plan.trace.jobs)
    with kept_runs(options.output, LiveRun.from_line) as journal, progress_bar(total) as bar:
        results = compare_jobs(plan, journal, lambda policy, job: bar.advance(f"{policy}, job {job}"))
    files = [] if options.output is None else write_results(options.output, _WORKLOAD, plan, results)
    if options.json:
        left_out = left_out_document([trace])
        found = {**document(_WORKLOAD, plan, results), "left_out": left_out, "files": files}
        print(json.dumps(found, allow_nan=False))
    else:
        print_table(plan, results)
        for file in files:
            print(f"wrote {file}")
    return 0


def scale_of(options: argparse.Namespace) -> LabScale:
    """The lab that the arguments describe. Raises UsageError: one is out of range."""
    sizes = {"racks": _RACKS, "servers": _SERVERS, "slots": _SLOTS}
    given = {name: getattr(options, name) for name in sizes if getattr(options, name) is not None}
    shape = TwoTier(**{**sizes, **given}, oversubscription=Fraction(1))
    return LabScale(shape, Fraction(parse_number(options.speed, field="--speed")))
