"""``mltcp-bench demand``: what a model sends in an iteration, measured alone on a link, as a picture and a profile."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from bench.cli.contest_arguments import add_link, check_counts, job_name, link_of, model_work, progress
from bench.command_line import option
from bench.compare.approach import parse_policy
from bench.compare.contest import Contest
from bench.compare.launch import loaded_controls, run_group
from bench.lab.bottleneck import LinkUse
from bench.lab.lab import Lab
from bench.lab.network import namespaces
from bench.lab.topology import dumbbell
from bench.workloads.job import JobResult
from mltcp.core.atomic_files import write_atomically
from mltcp.core.demand import Demand, demand_from_document
from mltcp.core.errors import MltcpError, UsageError
from mltcp.core.quantities import NS_PER_S
from mltcp.core.subcommands import add_command
from placement.plots.style import JOB_COLOURS, MUTED, framed, write
from placement.plots.style import check_path as check_picture

_EXAMPLES = """\
examples:
  mltcp-bench demand gpt2:pp=2,dp=2 -o gpt2.svg             a pipeline: activations, then the shared embedding
  mltcp-bench demand gpt3:tp=2,pp=2,dp=2 -o gpt3.svg        tensor and data parallel stages
  mltcp-placement network --topology dumbbell:2 --jobs gpt2.json:workers=4   the profile in the network simulator

The profile is beside the picture, as NAME.json: that of rank 0, by the recorder of the backend. The picture has the
bytes that crossed the link, and the phases of the profile.
"""
_SHOWN = 4
_PANEL_IN = 3.2


@dataclass(frozen=True)
class MeasuredDemand:
    """What a job sent alone on a link: its profile, its iterations, and the use of the link."""

    profile: bytes
    result: JobResult
    use: LinkUse

    @property
    def demand(self) -> Demand:
        """The phases of the typical iteration."""
        return demand_from_document(json.loads(self.profile))


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``demand`` to the commands."""
    command = add_command(commands, "demand", execute, _EXAMPLES)
    command.add_argument("job", metavar="MODEL", help="a model, such as gpt2:pp=2,dp=2 (docs/models.md)")
    option(command, "--iterations", 12, "of the job", "N")
    option(command, "--control", "cubic", "congestion control", "NAME")
    option(command, "--fraction", 0.43, "share of an iteration in which it sends", "F")
    command.add_argument("--compute", type=float, metavar="S", help="computing of an iteration")
    add_link(command)
    command.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="picture")


def execute(options: argparse.Namespace) -> int:
    """Measure, and write the picture and the profile; returns the exit status."""
    check_counts(options, "iterations")
    profile = options.output.with_suffix(".json")
    check_picture(options.output)
    if options.output == profile:
        raise UsageError(f"--output: expected a picture, got {options.output}")
    contest = contest_of(options)
    with progress(contest.total_iterations, 1) as step:
        measured = measure(contest, options.control, lambda: step(options.control, 0))
    write_atomically(profile, measured.profile)
    write(lambda: demand_figure(options.job, measured), options.output)
    demand = measured.demand
    sending = [phase for phase in demand.phases if phase.bandwidth_bps]
    print(
        f"{options.output}, {profile}: {demand.iteration_ns / 1e6:.0f} ms an iteration, {len(sending)} phases, "
        f"{demand.bits / 8e6:.2f} MB from rank 0, parameters {measured.result.parameters_sha256}"
    )
    return 0


def contest_of(options: argparse.Namespace) -> Contest:
    """The job alone on the link. Raises UsageError."""
    link = link_of(options)
    work = model_work(options.job, link, options.fraction, options.compute)
    return Contest(((job_name(options.job), work),), (), link, options.iterations)


def measure(contest: Contest, control: str, step: Callable[[], None]) -> MeasuredDemand:
    """Run the contest's only job in a lab.

    Raises:
        NotAvailableError: not root, or the kernel lacks something.
        MltcpError: a rank failed, or the job ended before it had a profile.
    """
    namespaces.require_privileges()
    policy = parse_policy(control, control)
    with (
        loaded_controls([policy]) as controls,
        Lab(dumbbell(1, contest.job_ranks, contest.link)) as lab,
        tempfile.TemporaryDirectory(prefix="mltcp-demand-") as directory,
    ):
        file = Path(directory) / "profile.json"

        def environment(job: str, rank: int) -> tuple[tuple[str, str], ...]:
            return (("MLTCP_PROFILE", str(file)),) if rank == 0 else ()

        results, use = run_group(contest, policy, [0], lab, controls, step, environment=environment)
        try:
            return MeasuredDemand(file.read_bytes(), results[0], use)
        except OSError as error:
            raise MltcpError(f"job {results[0].name}: it left no profile: {error.strerror}") from None


def demand_figure(title: str, measured: MeasuredDemand) -> Figure:
    """The bits a second that crossed the link in the last iterations, left to right, and the profile's phases below."""
    key = [("on the link", JOB_COLOURS[0]), ("the profile's phases (rank 0)", JOB_COLOURS[1])]
    figure = framed(f"Demand of {title}", key, _PANEL_IN, columns=2)
    link, phases = figure.axes
    times_s, rates = _link_rates(measured)
    link.fill_between(times_s, rates, step="post", color=JOB_COLOURS[0], linewidth=0)
    for begin_s in _begins(measured):
        link.axvline(begin_s, color=MUTED, linewidth=0.8, linestyle=(0, (4, 3)))
    edges_s, heights = _steps(measured.demand)
    phases.fill_between(edges_s, heights, step="post", color=JOB_COLOURS[1], linewidth=0)
    for axes, what in ((link, "last iterations"), (phases, "typical iteration")):
        axes.set_xlabel(f"s, {what}")
        axes.set_ylabel("Mbit/s")
        axes.set_ylim(bottom=0)
        axes.margins(x=0)
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
