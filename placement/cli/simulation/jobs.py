"""``mltcp-placement jobs``: schedulers of whole jobs, at the rates of a throughput model.

This module has the jobs with deadlines of the DRS workload; `async_jobs` those without,
and `contention` those that slow each other down.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean

from mltcp.core.atomic_files import write_atomically
from mltcp.core.errors import UsageError, shown
from mltcp.core.policy_names import parse_names
from mltcp.core.progress import progress_bar
from mltcp.core.quantities import NS_PER_S
from placement.cli.simulation import async_jobs, contention
from placement.cli.simulation.arguments import TOOL
from placement.cli.simulation.jobs_arguments import given_or, parse_number, parse_processes, parse_seeds
from placement.cli.simulation.jobs_pictures import draw
from placement.experiments.jobs.bound import TraceBound, bound_of
from placement.experiments.jobs.differences import RateDifference, rate_difference
from placement.experiments.jobs.figures import SWEEPS, Sweep, sweep_cells
from placement.experiments.jobs.kept import kept_runs
from placement.experiments.jobs.report import print_bounds, print_differences, print_jobs
from placement.experiments.jobs.results import PolicyResult, document, text
from placement.experiments.jobs.runs import (
    Cell,
    Drawn,
    Given,
    JobsRun,
    JobsTask,
    Results,
    Traces,
    result_of,
    run_tasks,
    tasks_of,
)
from placement.experiments.run_journal import RunJournal
from placement.model.throughput import BETWEEN_BYTES_PER_S, INSIDE_BYTES_PER_S, RingAllReduce
from placement.policies.schedulers.registry import NAMES
from placement.simulator.rates.timed_job import GPUS, NODES, RatesSettings
from placement.traces.deadlines import WORKLOADS, DrsMix, read
from placement.traces.trace import check_gpus, left_out_document, tell_left_out

_DEFAULT = "drs,norm,edf,fifo,themis-batch"
_DRS = "drs"
_MOST_S = 10**8
_DRAWN = ("rate", "hours", "fat", "urgent")
_OPTIONS = (*_DRAWN, "gpus", "bandwidth", "restart_cost", "figures", "baseline", "bound")
"""The options of the DRS workload alone; None or False where they are not given."""
_SHARED = ("gpus", "restart_cost", "load")
"""The options that jobs of contention have, too."""

_EXAMPLES = f"""\
examples:
  mltcp-placement jobs --workload drs --seeds 0:100 --rate 4
  mltcp-placement jobs --workload drs --seeds 0:10 --policies drs,norm,edf-late-last-node --json
  mltcp-placement jobs --workload drs --seeds 0:100 --policies drs,themis-leases --bandwidth 5e9,3e9 --restart-cost 60
  mltcp-placement jobs --workload drs --trace mine.csv --policies drs,edf-late-last-node
  mltcp-placement jobs --trace cluster_job_log.json --nodes 50 --gpus 8 --urgent 0.2 --policies drs,norm
  mltcp-placement jobs --seeds 0:100 -o results          Figures 7 to 12; may be interrupted, and goes on from there
  mltcp-placement jobs --seeds 0:100 --policies edf-late-last-node,edf-efficient --baseline edf-late-last-node --bound
  mltcp-placement jobs --seeds 0:100 --figures 7,10 -o results    only some of them
{contention.EXAMPLES}
A trace is a table (CSV) with the columns job_id, arrival_s, workload (one of those of the DRS evaluation) and alpha or
deadline_s (on the clock of arrival_s), or a recorded trace of Philly (JSON) or PAI (its folder or a table), whose
priorities are drawn by the paper's rule. All means are over traces. -o keeps finished runs in DIR, whatever ends the
command, writes jobs.json and figures.json, and draws Figures 5 and 7 to 12 and the jobs on each GPU on the first trace.

policies: {NAMES.allowed}

{contention.DESCRIPTION}
{async_jobs.EXAMPLES}
policies: {async_jobs.NAMES.allowed}
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``jobs`` to the commands."""
    command = commands.add_parser(
        "jobs",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    traces = command.add_argument_group("traces")
    traces.add_argument(
        "--workload",
        choices=(_DRS, async_jobs.WORKLOAD, contention.WORKLOAD),
        default=_DRS,
        help="the workload (default drs)",
    )
    which = traces.add_mutually_exclusive_group()
    which.add_argument(
        "--trace",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="read them: a table with deadlines, Philly or PAI; of contention, a table or a shipped trace's name",
    )
    which.add_argument(
        "--seeds",
        metavar="A:B",
        help="draw a trace for each seed from A up to B (default 0:10; async-sgd 1:4)",
    )
    traces.add_argument("--rate", type=float, metavar="X", help="jobs an hour (default 4)")
    traces.add_argument("--hours", type=float, metavar="X", help="for which jobs arrive (default 24)")
    traces.add_argument("--fat", type=float, metavar="X", help="the share of fat models (default 0.2)")
    traces.add_argument("--urgent", type=float, metavar="X", help="the share of urgent jobs (default 0.1)")
    command.add_argument(
        "--policies",
        metavar="NAMES",
        help=f"(default {_DEFAULT}; async-sgd {async_jobs.DEFAULT_POLICIES}; "
        f"contention {contention.DEFAULT})",
    )
    cluster = command.add_argument_group("cluster")
    cluster.add_argument(
        "--nodes", type=int, metavar="N", help=f"(default {NODES}; async-sgd {async_jobs.NODES})"
    )
    cluster.add_argument("--gpus", type=int, metavar="N", help=f"of a node (default {GPUS}; contention 8)")
    cluster.add_argument(
        "--bandwidth",
        metavar="IN,OUT",
        help="byte/s inside a node and between nodes (default 10e9,6e9)",
    )
    cluster.add_argument("--restart-cost", metavar="S", help="seconds that a restart holds GPUs (default 0)")
    command.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="DIR",
        help="for results and pictures; jobs with deadlines go on from the runs kept there",
    )
    command.add_argument(
        "--figures",
        metavar="LIST",
        help=f"of -o: the experiments to run besides, of {', '.join(map(str, SWEEPS))} (default: all of seeds)",
    )
    command.add_argument(
        "--baseline",
        metavar="NAME",
        help="one of the policies: show the paired difference of each other from it",
    )
    command.add_argument(
        "--bound", action="store_true", help="show how many deadlines any schedule can meet at most"
    )
    command.add_argument("--json", action="store_true", help="one JSON document instead of the table")
    command.add_argument(
        "--processes", type=int, metavar="N", help="that run at a time (default: one a core)"
    )
    async_jobs.add_arguments(command)
    contention.add_arguments(command)
    command.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Run the comparison and print it; returns the exit status."""
    if options.workload == contention.WORKLOAD:
        _refuse(options, [name for name in _OPTIONS if name not in _SHARED], _DRS)
        _refuse(options, [name for name in async_jobs.OPTIONS if name not in _SHARED], async_jobs.WORKLOAD)
        return contention.execute(options)
    _refuse(options, contention.OPTIONS, contention.WORKLOAD)
    if options.workload == async_jobs.WORKLOAD:
        _refuse(options, _OPTIONS, _DRS)
        return async_jobs.execute(options)
    _refuse(options, async_jobs.OPTIONS, async_jobs.WORKLOAD)
    policies = parse_names(given_or(options.policies, _DEFAULT), lambda name: str(NAMES.parse(name)))
    baseline = _baseline(options.baseline, policies)
    base, sweeps = Cell(_traces(options), settings_of(options)), _sweeps(options)
    for trace in base.traces.given if isinstance(base.traces, Given) else ():
        check_gpus(trace, base.settings.nodes * base.settings.gpus)
    cells = [base]
    if sweeps:
        assert isinstance(base.traces, Drawn), "_sweeps allows none with --trace"
        cells += sweep_cells(sweeps, base.traces, base.settings)
    tasks = tasks_of(cells, policies)
    with kept_runs(options.output, JobsRun.from_line) as journal:
        runs = _run(tasks, parse_processes(options.processes), journal, options.output)
        results = [result_of(base, policy, runs) for policy in policies]
        if options.output is not None:
            write_atomically(options.output / "jobs.json", text(options.workload, results).encode() + b"\n")
            _write_figures(options.output, base, policies, sweeps, runs)
            draw(options.output, base, policies, sweeps, runs)
    differences = {} if baseline is None else _differences(results, baseline)
    bounds = [bound_of(trace, base.settings) for trace in base.traces.traces()] if options.bound else []
    if options.json:
        print(_text(options.workload, results, differences, bounds, base.traces))
        return 0
    print_jobs(_title(options, base), results)
    print_differences(differences)
    if bounds:
        print_bounds(bounds)
    return 0


def _baseline(given: str | None, policies: Sequence[str]) -> str | None:
    """The policy that the others are compared with; None if there is none."""
    if given is None:
        return None
    name = str(NAMES.parse(given))
    if name not in policies:
        raise UsageError(f"--baseline: expected one of {', '.join(policies)}, got {shown(given)}")
    return name


def _differences(results: Sequence[PolicyResult], baseline: str) -> dict[str, RateDifference]:
    base = next(result for result in results if result.policy == baseline)
    return {result.policy: rate_difference(result, base) for result in results if result.policy != baseline}


def _text(
    workload: str,
    results: Sequence[PolicyResult],
    differences: Mapping[str, RateDifference],
    bounds: Sequence[TraceBound],
    traces: Traces,
) -> str:
    """The JSON document; what was not asked for is not in it."""
    found = document(workload, results)
    if isinstance(traces, Given):
        found["left_out"] = left_out_document(traces.given)
    for policy in found["policies"]:
        if policy["policy"] in differences:
            policy["difference"] = differences[policy["policy"]].document()
    if bounds:
        rate = fmean(each.guarantee_rate for each in bounds)
        found["bound"] = {"guarantee_rate": rate, "traces": [asdict(each) for each in bounds]}
    return json.dumps(found, allow_nan=False)


def _refuse(options: argparse.Namespace, names: Sequence[str], workload: str) -> None:
    for name in names:
        given = getattr(options, name)
        if given is not None and given is not False:  # 0 is given, too
            raise UsageError(
                f"--{name.replace('_', '-')}: expected only with --workload {workload}, got {shown(given)}"
            )


def _run(
    tasks: Sequence[JobsTask], processes: int, journal: RunJournal[JobsRun] | None, folder: Path | None
) -> Mapping[JobsTask, Results]:
    """Run the tasks, with a bar."""
    if len(tasks) == 1:  # over in no time: a bar would take longer
        return run_tasks(tasks, 1, journal)
    try:
        with progress_bar(len(tasks), transient=True) as bar:
            return run_tasks(tasks, processes, journal, bar.advance)
    except KeyboardInterrupt:
        kept = "nothing is kept without -o"
        if journal is not None:
            count = sum(task.key in journal.runs for task in tasks)
            kept = f"{count} of {len(tasks)} parts are kept in {folder}: the same command goes on from there"
        raise KeyboardInterrupt(f"interrupted; {kept}") from None


def _write_figures(
    folder: Path,
    base: Cell,
    policies: Sequence[str],
    sweeps: Sequence[Sweep],
    runs: Mapping[JobsTask, Results],
) -> None:
    """Write figures.json: the means of each policy at each value of each experiment."""
    found = [
        {
            "figure": sweep.figure,
            "field": sweep.field,
            "values": list(sweep.values),
            "policies": {
                policy: [
                    result_of(cell, policy, runs).means() for cell in sweep.cells(base.traces, base.settings)
                ]
                for policy in policies
            },
        }
        for sweep in sweeps
        if isinstance(base.traces, Drawn)
    ]
    write_atomically(folder / "figures.json", json.dumps(found, allow_nan=False).encode() + b"\n")


def settings_of(options: argparse.Namespace) -> RatesSettings:
    """Build the cluster and the throughput model from the arguments.

    Raises:
        UsageError: an invalid argument.
    """
    inside, between = INSIDE_BYTES_PER_S, BETWEEN_BYTES_PER_S
    if options.bandwidth is not None:
        inside, between = _bandwidths(options.bandwidth)
    restart_ns = round(
        parse_number(given_or(options.restart_cost, "0"), "--restart-cost", _MOST_S) * NS_PER_S
    )
    nodes = NODES if options.nodes is None else options.nodes
    gpus = GPUS if options.gpus is None else options.gpus
    return RatesSettings(RingAllReduce(inside, between), nodes, gpus, restart_ns)


def _traces(options: argparse.Namespace) -> Traces:
    given = {name: getattr(options, name) for name in _DRAWN if getattr(options, name) is not None}
    mix = DrsMix(**given)
    if options.trace is None:
        return Drawn(mix, parse_seeds(given_or(options.seeds, "0:10")))
    for name in given:
        if name != "urgent":
            raise UsageError(f"--{name}: expected only without --trace, got {given[name]:g}")
    traces = tuple(read(path, WORKLOADS, mix) for path in options.trace)
    tell_left_out(TOOL, *traces)
    return Given(traces)


def _sweeps(options: argparse.Namespace) -> tuple[Sweep, ...]:
    if options.figures is None:
        return tuple(SWEEPS.values()) if options.output is not None and options.trace is None else ()
    if options.output is None or options.trace is not None:
        raise UsageError(
            f"--figures: expected only with -o and without --trace, got {shown(options.figures)}"
        )
    known = {str(figure): sweep for figure, sweep in SWEEPS.items()}
    names = [name.strip() for name in options.figures.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise UsageError(f"--figures: expected some of {', '.join(known)}, got {shown(name)}")
    return tuple(known[name] for name in dict.fromkeys(names))


def _title(options: argparse.Namespace, base: Cell) -> str:
    traces = base.traces
    if isinstance(traces, Given):
        what = ", ".join(trace.name for trace in traces.given)
    else:
        what = f"{options.workload}, {traces.mix.rate:g} jobs an hour, {len(traces.seeds)} traces"
    return f"{what}; {base.settings.nodes} nodes of {base.settings.gpus} GPUs"


def _bandwidths(given: str) -> tuple[int, int]:
    parts = given.split(",")
    if len(parts) != 2:
        raise UsageError(f"--bandwidth: expected two numbers such as 10e9,6e9, got {shown(given)}")
    inside, between = (int(parse_number(part, "--bandwidth", 10**18)) for part in parts)
    return inside, between
