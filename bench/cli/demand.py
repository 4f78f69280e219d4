"""``mltcp-bench demand``: what a model sends in an iteration, measured alone on a link, as a picture and a profile.

With ``--count``, whether its iterations are found: by its process, and by the kernel with and without being told.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from matplotlib.figure import Figure

from bench.alone.own_controls import OwnControls, own_controls
from bench.cli.contest_arguments import add_link, check_counts, job_name, link_of, model_work, progress
from bench.command_line import option
from bench.compare.approach import parse_policy
from bench.compare.contest import Contest
from bench.compare.launch import run_group
from bench.lab.bottleneck import LinkUse
from bench.lab.lab import Lab
from bench.lab.network import namespaces
from bench.lab.topology import dumbbell
from bench.tables import Column, console, table_of
from bench.workloads.job import JobResult
from mltcp.core.atomic_files import write_atomically
from mltcp.core.demand import Demand, demand_from_document
from mltcp.core.errors import MltcpError, UsageError
from mltcp.core.policy_names import DEFAULT_CONTROL, control_name
from mltcp.core.quantities import NS_PER_S
from mltcp.core.subcommands import add_command
from mltcp.ebpf.congestion_controls import CONTROLS, MLTCP_CONTROLS
from mltcp.ebpf.layout import Record
from mltcp.ebpf.libbpf import RingBuffer
from placement.plots.circles import draw_demand, polar_in_place_of
from placement.plots.style import JOB_COLOURS, MUTED, framed, write
from placement.plots.style import check_path as check_picture

_EXAMPLES = """\
examples:
  mltcp-bench demand gpt2:pp=2,dp=2 -o gpt2.svg             a pipeline: activations, then the shared embedding
  mltcp-bench demand gpt3:tp=2,pp=2,dp=2 -o gpt3.svg        tensor and data parallel stages
  mltcp-bench demand gpt3:tp=2,pp=2,dp=2 llama:fsdp=2 --count                 iterations found, of each model
  mltcp-placement network --topology dumbbell:2 --jobs gpt2.json:workers=4   the profile in the network simulator

The profile is beside the picture, as NAME.json: that of rank 0, by the recorder of the backend. The picture has the
bytes that crossed the link, the phases of the profile, and its circle (Figures 4.1 and 4.6 of the thesis).
"""
_SHOWN = 4
_PANEL_IN = 2.6
_LEARNED = 4
"""Iterations after which those of a job are to be found."""


@dataclass(frozen=True)
class MeasuredDemand:
    """What a job sent alone on a link: its profile, its iterations, the use of the link, and what the kernel found."""

    profile: bytes
    result: JobResult
    use: LinkUse
    records: tuple[Record, ...] = ()

    @property
    def demand(self) -> Demand:
        """The phases of the typical iteration."""
        return demand_from_document(json.loads(self.profile))


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``demand`` to the commands."""
    command = add_command(commands, "demand", execute, _EXAMPLES)
    models = "a model, such as gpt2:pp=2,dp=2 (docs/models.md); several with --count"
    command.add_argument("jobs", nargs="+", metavar="MODEL", help=models)
    option(command, "--iterations", 12, "of the job", "N")
    command.add_argument(
        "--control",
        type=control_name,
        metavar="NAME",
        help="congestion control (default cubic; with --count mltcp_cubic)",
    )
    command.add_argument("--count", action="store_true", help="a table of the iterations that are found")
    option(command, "--fraction", 0.43, "share of an iteration in which it sends", "F")
    command.add_argument("--compute", type=float, metavar="S", help="computing of an iteration")
    add_link(command)
    command.add_argument("-o", "--output", type=Path, metavar="FILE", help="picture")


def execute(options: argparse.Namespace) -> int:
    """Measure, and write the picture and the profile, or print the table; returns the exit status."""
    check_counts(options, "iterations")
    if options.count:
        return _count_all(options)
    if options.output is None or len(options.jobs) > 1:
        raise UsageError("demand: expected one model and -o FILE, or --count")
    (job,), control = options.jobs, options.control or "cubic"
    profile = options.output.with_suffix(".json")
    check_picture(options.output)
    if options.output == profile:
        raise UsageError(f"--output: expected a picture, got {options.output}")
    contest = contest_of(job, options)
    with progress(contest.total_iterations, 1) as step:
        measured = measure(contest, control, lambda: step(control, 0))
    write_atomically(profile, measured.profile)
    write(lambda: demand_figure(job, measured), options.output)
    demand = measured.demand
    sending = [phase for phase in demand.phases if phase.bandwidth_bps]
    print(
        f"{options.output}, {profile}: {demand.iteration_ns / 1e6:.0f} ms an iteration, {len(sending)} phases, "
        f"{demand.bits / 8e6:.2f} MB from rank 0, parameters {measured.result.parameters_sha256}"
    )
    return 0


def contest_of(job: str, options: argparse.Namespace) -> Contest:
    """The job alone on the link. Raises UsageError."""
    link = link_of(options)
    work = model_work(job, link, options.fraction, options.compute)
    return Contest(((job_name(job), work),), (), link, options.iterations)


def measure(
    contest: Contest, control: str, step: Callable[[], None], reports_iterations: bool = True
) -> MeasuredDemand:
    """Run the contest's only job in a lab; controls of ours run under names of their own.

    Raises:
        NotAvailableError: not root, or the kernel lacks something.
        MltcpError: a rank failed, or the job ended before it had a profile.
    """
    namespaces.require_privileges()
    policy = parse_policy(control, control)
    with (
        own_controls([policy.control]) as own,
        Lab(dumbbell(1, contest.job_ranks, contest.link)) as lab,
        tempfile.TemporaryDirectory(prefix="mltcp-demand-") as directory,
    ):
        file = Path(directory) / "profile.json"

        def environment(job: str, rank: int) -> tuple[tuple[str, str], ...]:
            reports = ("MLTCP_REPORT_ITERATIONS", str(int(reports_iterations)))
            return (reports, ("MLTCP_PROFILE", str(file))) if rank == 0 else (reports,)

        with _records(own, policy.control) as records:
            policy = replace(policy, control=own.name(policy.control))
            results, use = run_group(contest, policy, [0], lab, own.controls, step, environment=environment)
        try:
            return MeasuredDemand(file.read_bytes(), results[0], use, tuple(records))
        except OSError as error:
            raise MltcpError(f"job {results[0].name}: it left no profile: {error.strerror}") from None


@contextmanager
def _records(own: OwnControls, control: str) -> Iterator[list[Record]]:
    """The iterations that the kernel finds meanwhile; complete when the context has ended."""
    found: list[Record] = []
    if control not in CONTROLS:
        yield found
        return
    with own.controls.shared_map("mltcp_records") as shared:
        ring = RingBuffer(shared, lambda raw: found.append(Record.unpack(raw)))
        try:
            yield found
            ring.consume()
        finally:
            ring.close()


# -- iterations that are found -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FoundIterations:
    """Iterations of a job that were found.

    Attributes:
        job: its description.
        bursts: of an iteration, on rank 0.
        true: the iterations.
        by_process: that the backend of each rank has counted.
        expected: those in which the kernel is to have found one: all but the first ones and the last two.
        told, alone: that the kernel has found meanwhile on each host, told by the process and by pauses alone.
    """

    job: str
    bursts: int
    true: int
    by_process: tuple[int, ...]
    expected: int
    told: tuple[int, ...]
    alone: tuple[int, ...]


_FOUND_COLUMNS = (
    Column[FoundIterations]("job", lambda each: each.job, left=True),
    Column[FoundIterations]("hosts", lambda each: str(len(each.told))),
    Column[FoundIterations]("bursts", lambda each: str(each.bursts)),
    Column[FoundIterations]("process", lambda each: f"{_range(each.by_process)} / {each.true}"),
    Column[FoundIterations]("kernel, told", lambda each: f"{_range(each.told)} / {each.expected}"),
    Column[FoundIterations]("kernel alone", lambda each: f"{_range(each.alone)} / {each.expected}"),
)


def _count_all(options: argparse.Namespace) -> int:
    """Print the table; returns 1 if the process, or the kernel that was told, has missed an iteration of a job."""
    control = options.control or DEFAULT_CONTROL
    if control.partition("@")[0] not in MLTCP_CONTROLS or options.output is not None:
        raise UsageError(f"--count: expected one of {', '.join(MLTCP_CONTROLS)}, and no -o, got {control}")
    if options.iterations < _LEARNED + 4:
        raise UsageError(f"--iterations: expected {_LEARNED + 4} or more, got {options.iterations}")
    contests = [contest_of(job, options) for job in options.jobs]
    with progress(2 * sum(each.total_iterations for each in contests), 1) as step:
        rows = [
            found_iterations(job, contest, control, lambda job=job: step(job, 0))  # type: ignore[misc]
            for job, contest in zip(options.jobs, contests, strict=True)
        ]
    console().print(table_of(rows, _FOUND_COLUMNS))
    exact = all({*each.by_process} == {each.true} and {*each.told} == {each.expected} for each in rows)
    return 0 if exact else 1


def found_iterations(job: str, contest: Contest, control: str, step: Callable[[], None]) -> FoundIterations:
    """Run the job twice, with and without telling the kernel; raises as `measure`."""
    told, alone = (measure(contest, control, step, tells) for tells in (True, False))
    trained = [rank.training for rank in told.result.ranks]
    return FoundIterations(
        job,
        sum(1 for phase in told.demand.phases if phase.bandwidth_bps),
        contest.iterations,
        tuple(sorted(each.iterations for each in trained if each is not None)),
        contest.iterations - _LEARNED - 2,
        _found_by_kernel(told, contest.job_ranks[0]),
        _found_by_kernel(alone, contest.job_ranks[0]),
    )


def _found_by_kernel(measured: MeasuredDemand, hosts: int) -> tuple[int, ...]:
    """How many iterations each host's kernel saw begin after the middle of one, and before that of a later one.

    Ranks do not begin an iteration at the same time, and what the last one sends is not always counted (docs/ebpf.md).
    """
    iterations = measured.result.iterations
    first_ns, last_ns = (
        (each.start_s + each.end_s) / 2 * NS_PER_S for each in (iterations[_LEARNED - 1], iterations[-3])
    )
    found = Counter(each.job for each in measured.records if first_ns < each.start_ns < last_ns)
    counts = sorted(found.values())
    return (*(0,) * (hosts - len(counts)), *counts)


def _range(counts: Sequence[int]) -> str:
    return str(counts[0]) if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"


# -- the picture -------------------------------------------------------------------------------------------------------


def demand_figure(title: str, measured: MeasuredDemand) -> Figure:
    """The bits a second that crossed the link in the last iterations, the profile's phases, and its circle."""
    key = [("on the link", JOB_COLOURS[0]), ("the profile's phases (rank 0)", JOB_COLOURS[1])]
    figure = framed(f"Demand of {title}", key, _PANEL_IN, columns=3)
    link, phases, circle = figure.axes
    times_s, rates = _link_rates(measured)
    link.fill_between(times_s, rates, step="post", color=JOB_COLOURS[0], linewidth=0)
    for begin_s in _begins(measured):
        link.axvline(begin_s, color=MUTED, linewidth=0.8, linestyle=(0, (4, 3)))
    edges_s, heights = _steps(measured.demand)
    phases.fill_between(edges_s, heights, step="post", color=JOB_COLOURS[1], linewidth=0)
    for axes, what in ((link, "last iterations"), (phases, "typical iteration")):
        axes.set_xlabel(f"s, {what}")
        axes.set_ylabel("Mbit/s" if axes is link else "")
        axes.set_ylim(bottom=0)
        axes.margins(x=0)
    draw_demand(polar_in_place_of(circle), measured.demand, JOB_COLOURS[1])
    return figure


def _begins(measured: MeasuredDemand) -> list[float]:
    """The beginnings of the iterations that are shown, from the first of them."""
    shown = measured.result.iterations[-_SHOWN:]
    return [each.start_s - shown[0].start_s for each in shown]


def _link_rates(measured: MeasuredDemand) -> tuple[list[float], list[float]]:
    """Times and Mbit/s of the bins of the iterations that are shown, in the direction that carried more."""
    use, shown = measured.use, measured.result.iterations[-_SHOWN:]
    direction = max(use.directions, key=lambda each: each.bytes)
    first, last = (
        max(0, int((at_s * NS_PER_S - use.epoch_ns) // use.bin_ns))
        for at_s in (shown[0].start_s, shown[-1].end_s)
    )
    bins: Sequence[int] = direction.bytes_by_job[0][first : last + 1]
    bin_s = use.bin_ns / NS_PER_S
    return [number * bin_s for number in range(len(bins))], [count * 8 / bin_s / 1e6 for count in bins]


def _steps(demand: Demand) -> tuple[list[float], list[float]]:
    edges_s = [0.0, *(end_ns / NS_PER_S for end_ns in demand.ends_ns)]
    heights = [phase.bandwidth_bps / 1e6 for phase in demand.phases]
    return edges_s, [*heights, heights[-1]]
