"""The ``mltcp-bench`` command."""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from bench.contend import Contest, Work, contend, named_jobs
from bench.lab.aqm import MARKERS, VIRTUAL_QUEUE
from bench.lab.link import Link, parse_rate
from bench.policy import parse_policy
from bench.report import print_report
from bench.results import ContendResult, contend_result, to_document
from bench.workloads.job import TrainingOptions
from bench.workloads.perturbation import parse_perturbation
from bench.workloads.profile import Profile, Scale, fit, load
from mltcp.errors import MltcpError, UsageError

_POLICIES = "isolated,reno,mltcp_reno,cubic,mltcp_cubic,dctcp,mltcp_dctcp"
_SIZE = re.compile(r"(\d+(?:\.\d+)?)(b|kb|mb)?")
_SIZE_UNITS = {None: 1, "b": 1, "kb": 1000, "mb": 1_000_000}
_TRAINING = "train"

_EXAMPLES = """\
examples:
  mltcp-bench contend --jobs vgg16,vgg16                     two jobs on one link, each policy against the job alone
  mltcp-bench contend --jobs vgg16,resnet50 --policies isolated,cubic,mltcp_cubic --plot plots
  mltcp-bench contend --jobs vgg16,vgg16 --perturb 20:0.15   every 20 iterations one job is held back
  mltcp-bench contend --jobs my-model.json,train --json      a profile of your own beside a small real training
  mltcp-bench contend --policies isolated,mltcp_reno,mltcp_reno@quadratic,mltcp_reno@falling_linear
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mltcp-bench", description="Benchmarks of congestion controls for training jobs, in a lab on this machine."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    command = commands.add_parser(
        "contend",
        help="run jobs on one bottleneck under several policies and compare them with each job alone",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_what(command)
    _add_link(command)
    command.add_argument("--plot", type=Path, metavar="DIR", help="write pictures (PNG) there")
    command.add_argument("--json", action="store_true", help="one JSON document instead of the tables")
    return parser


def _add_what(command: argparse.ArgumentParser) -> None:
    command.add_argument("--jobs", default="vgg16,vgg16", help="DNN profiles by name or JSON file, or `train`")
    command.add_argument("--policies", default=_POLICIES, help="congestion controls, and `isolated`, the yardstick")
    command.add_argument("--iterations", type=int, default=80, metavar="N", help="of every job (default 80)")
    command.add_argument("--repeat", type=int, default=3, metavar="N", help="how often everything runs (default 3)")
    command.add_argument("--ranks", type=int, default=2, metavar="N", help="processes of a job, each on a host (default 2)")
    command.add_argument("--scale", default="auto", metavar="B:T", help="factors for bytes and times (default: fit the link)")
    command.add_argument("--fraction", type=float, help="link share of the largest job's iteration (default 0.86 / jobs)")
    command.add_argument("--compute", type=float, default=0.22, metavar="S", help="longest compute phase (default 0.22 s)")
    command.add_argument(
        "--overlap", action=argparse.BooleanOptionalAction, default=True, help="send buckets during the backward phase"
    )
    command.add_argument("--stagger", type=float, default=0.0, metavar="S", help="start each job this much later")
    command.add_argument("--perturb", metavar="N:S", help="every N iterations hold a job back by up to S seconds")
    command.add_argument("--seed", type=int, default=0, help="of the perturbation (default 0)")
    command.add_argument("--isolated-cc", default="cubic", metavar="NAME", help="control of isolated jobs (default cubic)")


def _add_link(command: argparse.ArgumentParser) -> None:
    command.add_argument("--rate", default="300mbit", help="of the bottleneck (default 300mbit)")
    command.add_argument("--queue", default="300kb", help="the bottleneck's buffer (default 300kb)")
    command.add_argument("--ecn", default="40kb", help="queue above which it marks, or `none` (default 40kb)")
    command.add_argument("--ecn-by", default=VIRTUAL_QUEUE, choices=MARKERS, help="what marks (default virtual_queue)")
    command.add_argument("--mtu", type=int, default=1500, help="(default 1500)")


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point; returns the exit status (0 well, 1 failure, 2 bad usage, 130 interrupted)."""
    options = _parser().parse_args(arguments)
    # SIGTERM unwinds like Ctrl-C does, so that the lab is taken down
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        return _contend(options)
    except UsageError as error:
        print(f"mltcp-bench: {error}", file=sys.stderr)
        return 2
    except MltcpError as error:
        print(f"mltcp-bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("mltcp-bench: interrupted; the lab is gone", file=sys.stderr)
        return 130


def _contend(options: argparse.Namespace) -> int:
    contest, scale = _contest(options)
    with _progress(contest) as step:
        runs = contend(contest, step)
    result = contend_result(_link_document(options, contest, scale), runs)
    plots = _plots(result, options.plot)
    if options.json:
        print(json.dumps({**to_document(result), "plots": plots}, allow_nan=False))
    else:
        print_report(result)
        print("".join(f"\npicture: {path}" for path in plots).lstrip("\n") if plots else "", end="\n" if plots else "")
    return 0


def _contest(options: argparse.Namespace) -> tuple[Contest, Scale]:
    link = Link(parse_rate(options.rate), _size("queue", options.queue), _ecn(options.ecn), options.mtu)
    for field in ("iterations", "repeat"):
        if getattr(options, field) < 1:
            raise UsageError(f"--{field} {getattr(options, field)}: at least 1 is allowed")
    if not 0 <= options.stagger < 3600:
        raise UsageError(f"--stagger {options.stagger}: 0 to 3600 seconds are allowed")
    names = [name for name in options.jobs.split(",") if name]
    works, scale = _works(names, link, options)
    contest = Contest(
        jobs=named_jobs(works, [Path(name).stem for name in names]),
        policies=tuple(parse_policy(name, options.isolated_cc) for name in options.policies.split(",") if name),
        link=link,
        iterations=options.iterations,
        repeat=options.repeat,
        ranks=options.ranks,
        stagger_s=options.stagger,
        perturbation=parse_perturbation(options.perturb, options.seed) if options.perturb else None,
        ecn_by=options.ecn_by,
    )
    if not contest.jobs or not contest.policies:
        raise UsageError("at least one job and one policy are needed: --jobs vgg16,vgg16 --policies isolated,cubic")
    return contest, scale


def _works(names: Sequence[str], link: Link, options: argparse.Namespace) -> tuple[list[Work], Scale]:
    profiles = {name: load(name) for name in names if name != _TRAINING}
    if not options.overlap:
        profiles = {name: profile.without_overlap() for name, profile in profiles.items()}
    scale = _scale([profiles[name] for name in names if name in profiles], link, options)
    scaled = {name: profile.scaled(scale.time, scale.bytes) for name, profile in profiles.items()}
    training = TrainingOptions(compute_s=options.compute)
    return [scaled.get(name, training) for name in names], scale


def _scale(profiles: Sequence[Profile], link: Link, options: argparse.Namespace) -> Scale:
    if not profiles:
        return Scale(1.0, 1.0)
    if options.scale == "auto":
        return fit(profiles, link.rate_bps, options.ranks, options.fraction, options.compute)
    size, colon, time = options.scale.partition(":")
    try:
        return Scale(time=float(time) if colon else 1.0, bytes=float(size))
    except ValueError:
        raise UsageError(f"--scale {options.scale!r}: `auto` or B:T, two positive numbers, is allowed") from None


def _size(field: str, text: str) -> int:
    found = _SIZE.fullmatch(text.lower())
    if found is None:
        raise UsageError(f"--{field} {text!r}: a number of bytes, such as 40000, 40kb or 1mb, is allowed")
    return int(float(found[1]) * _SIZE_UNITS[found[2]])


def _ecn(text: str) -> int | None:
    return None if text == "none" else _size("ecn", text)


def _link_document(options: argparse.Namespace, contest: Contest, scale: Scale) -> dict[str, str | int | float | bool | None]:
    return {
        "rate_bps": contest.link.rate_bps,
        "queue_bytes": contest.link.queue_bytes,
        "ecn_threshold_bytes": contest.link.ecn_threshold_bytes,
        "ecn_by": contest.ecn_by,
        "mtu": contest.link.mtu,
        "ranks": contest.ranks,
        "iterations": contest.iterations,
        "stagger_s": contest.stagger_s,
        "perturb": options.perturb,
        "seed": options.seed,
        "overlap": options.overlap,
        "bytes_scale": scale.bytes,
        "time_scale": scale.time,
        "isolated_cc": options.isolated_cc,
    }


@contextmanager
def _progress(contest: Contest) -> Iterator[_Step]:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # Redrawing takes a core's time from what is being measured: twice a second is enough.
    with Progress(*columns, console=console, disable=not console.is_terminal, refresh_per_second=2) as bar:
        yield _Step(bar, contest)


class _Step:
    """Moves the bar on by one iteration and names the policy and the repeat."""

    def __init__(self, bar: Progress, contest: Contest) -> None:
        self._bar, self._contest = bar, contest
        self._task = bar.add_task("starting", total=contest.total_iterations)

    def __call__(self, policy: str, repeat: int) -> None:
        where = f"{policy}, repeat {repeat + 1} of {self._contest.repeat}"
        self._bar.update(self._task, advance=1, description=where)


def _plots(result: ContendResult, directory: Path | None) -> list[str]:
    if directory is None:
        return []
    from bench.plots import write_plots  # matplotlib takes a second to import

    return [str(path) for path in write_plots(result, directory)]


if __name__ == "__main__":
    sys.exit(main())
