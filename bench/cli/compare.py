"""``mltcp-bench compare``: sets of jobs and traces under congestion controls, schedulers and gates."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from bench.cli import compare_jobs
from bench.cli.contest_arguments import (
    add_hosts,
    add_link,
    add_measurement,
    add_runs,
    add_simulate,
    check_counts,
    job_name,
    link_of,
    model_work,
    progress,
    retry_busy_of,
    runner_of,
)
from bench.command_line import option
from bench.compare.approach import Approach, parse_approaches
from bench.compare.contest import (
    Contest,
    DemandingJob,
    Snapshot,
    contest_of,
    contest_of_models,
    named_jobs,
)
from bench.compare.report.text import COMPARE, print_report
from bench.compare.results.journal import keep_in, read_result
from bench.compare.results.results import CompareResult, compare_document, compare_result
from bench.compare.results.runs import Change
from bench.compare.trace.hosts import LabTraceSource, TraceSource
from bench.compare.trace.trace import TracePlan, compare_trace, first_jobs, total_iterations
from bench.hosts.hosts_file import load_hosts_file
from bench.hosts.trace_hosts import RemoteTraceSource
from bench.lab.link import Link
from bench.lab.two_tier import NIC, TwoTier
from bench.workloads.model_work import ModelWork, is_model
from bench.workloads.phases import parse_change
from bench.workloads.profile import Profile, default_fraction, fit, link_time_s
from bench.workloads.profile import load as load_profile
from mltcp.core.demand import Demand, Phase
from mltcp.core.errors import UsageError
from mltcp.core.quantities import check_number, split_descriptions
from placement.traces import sets
from placement.traces.sets import JobSet

_POLICIES = "isolated,fair,mltcp_cubic,cassini"
_RACKS, _SERVERS, _SLOTS, _FIRST = 4, 3, 2, 12
_KINDS = ("contest", "jobs", "contention")

_EXAMPLES = """\
examples:
  mltcp-bench compare --set fitted-snapshot1                 two jobs that fit together, under four policies
  mltcp-bench compare --set snapshot4,snapshot5 --policies isolated,fair,mltcp_cubic,mltcp_dcqcn,cassini --repeat 3
  mltcp-bench compare --jobs vgg16,vgg16 --policies isolated,fair,mltcp_reno,srsf-1,ada-srsf
  mltcp-bench compare --set fitted-snapshot1 --simulate --policies isolated,fair,mltcp_cubic    in the network simulator
  mltcp-bench compare --set fitted-snapshot1 --change VGG16-1400:40:2   a compute time doubles in mid-run
  mltcp-bench compare --trace poisson --policies isolated,themis,themis+cassini,lwf-1+ada-srsf
  mltcp-bench compare --trace jobs.csv --policies drs,norm,elastic-mh --restart-cost cost.json -o runs
  mltcp-bench compare --trace docs/traces/live-contention.csv --policies greedy,srsf-first-full -o live
  mltcp-bench compare --set fitted-snapshot1 -o report       pictures, report.html and result.json in that directory
  mltcp-bench compare --set fitted-snapshot1 --hosts hosts.json --policies isolated,fair,mltcp_cubic -o report   by ssh
  mltcp-bench compare --trace poisson --hosts hosts.json --rate 10gbit --policies isolated,themis,themis+cassini
  mltcp-bench compare --from report/result.json -o again     the pictures and the report of an earlier run

A --trace that is a table with the columns job_id, arrival_s, workload and alpha or deadline_s (as those of
mltcp-placement jobs) is one of whole jobs: trainings that stop and go on elsewhere, on four hosts of four slots, under
the schedulers of mltcp-placement jobs, beside the prediction of the simulator. -o keeps finished runs, and goes on.
With the columns model and gpus it is one of contention: the placement service decides in rounds. The trace tells the
KIND where it is not named; `compare KIND --help` has the options of each.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``compare`` to the commands, with the kinds of comparisons."""
    command = commands.add_parser(
        "compare", epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = command.add_subparsers(dest="kind", required=True, metavar="KIND")
    contest = kinds.add_parser(
        "contest",
        help="sets of jobs, DNN profiles, or a trace under congestion controls, placements and gates",
    )
    _add_jobs(contest)
    _add_conditions(contest)
    add_link(contest)
    _add_cluster(contest)
    add_measurement(contest)
    add_hosts(contest)
    add_simulate(contest)
    contest.add_argument(
        "-o",
        dest="output",
        type=Path,
        metavar="DIR",
        help="directory for pictures, report.html and result.json, which is rewritten after every run",
    )
    contest.set_defaults(execute=execute)
    compare_jobs.add_parsers(kinds)


def with_kind(arguments: Sequence[str]) -> list[str]:
    """The command line of ``compare`` with the kind of the comparison: the one that it names, or that of its trace."""
    command, *rest = arguments
    if rest[:1] and rest[0] in (*_KINDS, "-h", "--help"):
        return [command, *rest]
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--trace")
    trace = parser.parse_known_args(rest)[0].trace
    if compare_jobs.is_contention(trace):
        return [command, "contention", *rest]
    return [command, "jobs" if compare_jobs.is_whole_jobs(trace) else "contest", *rest]


def _add_jobs(command: argparse.ArgumentParser) -> None:
    which = command.add_mutually_exclusive_group()
    which.add_argument(
        "--set", dest="sets", metavar="NAMES", help="sets of jobs on one link, by name or JSON file"
    )
    which.add_argument(
        "--trace",
        metavar="NAME",
        help="a trace on a two-tier lab, by name or JSON file; or drawn by --seed as by `mltcp-placement network`, "
        "such as poisson:jobs=24,load=0.9,models=VGG16+BERT",
    )
    which.add_argument(
        "--jobs",
        metavar="NAMES",
        help="DNN profiles on one link, by name or JSON file, or models such as bert:dp=2",
    )
    which.add_argument(
        "--from",
        dest="document",
        type=Path,
        metavar="FILE",
        help="report on the result.json of an earlier comparison",
    )


def _add_conditions(command: argparse.ArgumentParser) -> None:
    option(
        command,
        "--policies",
        _POLICIES,
        "isolated, fair, a congestion control, cassini, a scheduler or a gate",
        "NAMES",
    )
    option(command, "--control", "cubic", "congestion control of policies whose name has none", "NAME")
    add_runs(command, iterations=60, repeat=2)
    option(
        command,
        "--starts",
        "together",
        "when jobs of a set start; random times are the same for all policies of a repeat",
        choices=("together", "random"),
    )
    option(command, "--seed", 0, "of random starts, random placement, and a drawn trace")
    option(
        command,
        "--dilate",
        1.0,
        "how many times as long the times of a set or trace are, and as large its bytes, as usual (docs/lab.md)",
        "K",
    )
    option(
        command,
        "--profiles",
        "measured",
        "demand profiles for Cassini: measured in the isolated runs, if there are any, or those of the set",
        choices=("measured", "set"),
    )
    command.add_argument(
        "--change",
        metavar="JOB:N:FACTOR",
        help="multiply the compute time of a job by FACTOR from its iteration N on, and report the time to settle",
    )


def _add_cluster(command: argparse.ArgumentParser) -> None:
    trace = command.add_argument_group("options of --trace")
    trace.add_argument(
        "--first",
        type=int,
        metavar="N",
        help=f"run the first N jobs of the trace (default {_FIRST})",
    )
    option(trace, "--placement", "first-fit", "scheduler of policies whose name has none", "NAME")
    trace.add_argument(
        "--racks", type=int, metavar="N", help=f"racks under one core switch (default {_RACKS})"
    )
    trace.add_argument(
        "--servers",
        type=int,
        metavar="N",
        help=f"servers of a rack (default {_SERVERS})",
    )
    trace.add_argument("--slots", type=int, metavar="N", help=f"slots of a server (default {_SLOTS})")


def execute(options: argparse.Namespace) -> int:
    """Run the comparison and print its result; returns the exit status."""
    if options.hosts is not None:
        _check_hosts(options)
    result = read_result(options.document) if options.document is not None else _run(options)
    written = _written(result, options.output)
    if options.json:
        print(json.dumps({**compare_document(result), "files": written}, allow_nan=False))
    else:
        print_report(result, COMPARE, files=written)
    return 0


def _check_hosts(options: argparse.Namespace) -> None:
    """Raise UsageError for arguments that describe a lab, or that need one."""
    if options.document is not None:
        raise UsageError("--hosts: expected without --from, which runs nothing")
    for name in ("racks", "servers", "slots"):
        if getattr(options, name) is not None:
            raise UsageError(f"--{name}: expected without --hosts, whose file tells the hosts and switches")


def _run(options: argparse.Namespace) -> CompareResult:
    if options.trace is not None and options.simulate:
        raise UsageError(
            "--simulate: expected without --trace, which `mltcp-placement network --trace` simulates"
        )
    if options.trace is not None:
        return _run_trace(options)
    template = template_of(options)
    starts = {"random_starts": options.starts == "random", "seed": options.seed}
    names = split_descriptions([options.jobs or ""])
    if any(map(is_model, names)):
        contests = [contest_of_models(_models(names, template.link), template, **starts)]
    else:
        snapshots = snapshots_of(options, template.link)
        contests = [contest_of(snapshot, template, **starts) for snapshot in snapshots]
    run = runner_of(options, contests)
    keep = keep_in(options.output)
    with progress(sum(contest.total_iterations for contest in contests), template.repeat) as step:
        return compare_result(run(step, keep))


def _models(names: Sequence[str], link: Link) -> list[tuple[str, ModelWork]]:
    for name in names:
        if not is_model(name):
            raise UsageError(f"--jobs: expected models only where there is one, got {name!r}; see contend")
    works = [model_work(name, link, default_fraction(len(names))) for name in names]
    named = named_jobs(works, [job_name(name) for name in names])
    return list(zip((name for name, _ in named), works, strict=True))


def template_of(options: argparse.Namespace) -> Contest:
    """The contest that the arguments describe, without its jobs.

    Raises:
        UsageError: an argument is out of range or unknown.
    """
    check_counts(options, "iterations", "repeat")
    approaches = parse_approaches(options.policies, options.control)
    _check_one_link(approaches)
    isolated = any(approach.isolated for approach in approaches)
    change = None
    if options.change is not None:
        job, compute = parse_change(options.change)
        change = Change(job, compute.iteration, compute.factor)
    return Contest(
        jobs=(),
        approaches=approaches,
        link=link_of(options),
        iterations=options.iterations,
        repeat=options.repeat,
        ranks=options.ranks,
        ecn_by=options.ecn_by,
        # A profile that was measured across a change would describe neither side of it.
        measured_profiles=options.profiles == "measured" and isolated and change is None,
        change=change,
        dilation=dilation_of(options),
    )


def _run_trace(options: argparse.Namespace) -> CompareResult:
    plan, source = trace_plan_of(options), trace_source_of(options)
    trace = trace_of(options, len(source.cluster.gpus))
    keep = keep_in(options.output)
    with progress(total_iterations(trace, plan), plan.repeat) as step:
        return compare_result([compare_trace(trace, plan, source, step, keep)])


def trace_of(options: argparse.Namespace, gpus: int) -> JobSet:
    """The jobs of the trace: drawn for so many GPUs, or the first of a set.

    Raises:
        UsageError: there is none of this name.
    """
    from placement.experiments.cassini import PhasedMix  # slow to import

    drawn = PhasedMix.parse(options.trace, gpus) if ":" in options.trace else None
    if drawn is None:
        return first_jobs(sets.load(options.trace), _given(options.first, _FIRST))
    if options.first is not None:
        raise UsageError("--first: expected without a drawn trace, which has the jobs of its `jobs=`")
    return drawn.trace(options.seed).jobs


def trace_plan_of(options: argparse.Namespace) -> TracePlan:
    """The comparison of a trace that the arguments describe.

    Raises:
        UsageError: an argument is out of range or unknown.
    """
    check_counts(options, "iterations", "repeat")
    if options.first is not None:
        check_counts(options, "first")
    if options.change is not None:
        raise UsageError("--change: expected with --set or --jobs, got it with --trace")
    return TracePlan(
        approaches=parse_approaches(options.policies, options.control),
        iterations=options.iterations,
        repeat=options.repeat,
        placement=options.placement,
        seed=options.seed,
        retry_busy=retry_busy_of(options),
        dilation=dilation_of(options),
    )


def dilation_of(options: argparse.Namespace) -> float:
    """By how much times are longer. Raises UsageError: out of range."""
    return check_number(options.dilate, field="--dilate", lowest=0.01, highest=1000)


def trace_source_of(options: argparse.Namespace) -> TraceSource:
    """The servers that the arguments ask for: a two-tier lab, or real hosts.

    Raises:
        UsageError: the hosts file is malformed, or a value is out of range.
    """
    if options.hosts is not None:
        return RemoteTraceSource(load_hosts_file(options.hosts), link_of(options).rate_bps)
    shape = TwoTier(
        racks=_given(options.racks, _RACKS),
        servers=_given(options.servers, _SERVERS),
        slots=_given(options.slots, _SLOTS),
        nic=link_of(options, NIC),
    )
    return LabTraceSource(shape, options.ecn_by)


def _given(value: int | None, default: int) -> int:
    return default if value is None else value


def _check_one_link(approaches: Sequence[Approach]) -> None:
    for approach in approaches:
        if approach.only_places:
            raise UsageError(
                f"--policies: {approach.name} only places jobs, which makes no difference on one link: "
                "expected it with --trace"
            )


def snapshots_of(options: argparse.Namespace, link: Link) -> list[Snapshot]:
    """The sets of jobs that the arguments name."""
    if options.sets is not None:
        return [_set(name) for name in _names("--set", options.sets)]
    return [_of_profiles(_names("--jobs", options.jobs or "vgg16,vgg16"), link, options.ranks)]


def _names(argument: str, text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    if not names:
        raise UsageError(f"{argument}: expected one or more names, separated by commas, got {text!r}")
    return names


def _set(name: str) -> Snapshot:
    jobs = sets.load(name)
    return Snapshot(
        jobs.name,
        jobs.capacity_bps,
        tuple(DemandingJob(job.name, job.model, job.demand) for job in jobs.jobs),
    )


def _of_profiles(names: Sequence[str], link: Link, ranks: int) -> Snapshot:
    """Profiles fitted to the link as `contend` does: all communication follows the computation."""
    profiles = [load_profile(name).without_overlap() for name in names]
    scale = fit(profiles, link.rate_bps, ranks)
    scaled = [profile.scaled(scale.time, scale.bytes) for profile in profiles]
    named = named_jobs(scaled, [Path(name).stem for name in names])
    jobs = tuple(
        DemandingJob(name, profile.name, _demand(profile, link, ranks))
        for (name, _), profile in zip(named, scaled, strict=True)
    )
    return Snapshot(",".join(name for name, _ in named), link.rate_bps, jobs)


def _demand(profile: Profile, link: Link, ranks: int) -> Demand:
    sends_s = link_time_s(profile.gradient_bytes, link.rate_bps, ranks)
    return Demand((Phase(round(profile.compute_s * 1e9), 0), Phase(round(sends_s * 1e9), link.rate_bps)))


def _written(result: CompareResult, directory: Path | None) -> list[str]:
    if directory is None:
        return []
    from bench.compare.report.html import write_report

    return [str(path) for path in write_report(result, directory)]
