"""Arguments that several commands share: jobs, runs, the link, and the contest that they describe."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from bench.command_line import option
from bench.compare.approach import Approach, parse_policies
from bench.compare.contest import Contest, named_jobs
from bench.compare.engine import run_contests
from bench.compare.launch import LabSource
from bench.compare.provider import Progress, ProviderSource
from bench.compare.results.journal import Keep
from bench.compare.results.runs import Measured, Scalar
from bench.hosts.hosts_file import load_hosts_file
from bench.hosts.provider import RemoteSource
from bench.lab.bottleneck import MARKERS, VIRTUAL_QUEUE
from bench.lab.link import MAX_QUEUE_BYTES, MAX_RATE_BPS, MIN_RATE_BPS, Link
from bench.workloads.job import TrainingOptions, Work, parse_perturbation
from bench.workloads.launched_rank import preload_models
from bench.workloads.model_work import ModelWork, is_model, parse_model
from bench.workloads.profile import Profile, Scale, default_fraction, fit, load
from mltcp.core.errors import NotAvailableError, UsageError, shown
from mltcp.core.policy_names import parse_names
from mltcp.core.progress import progress_bar
from mltcp.core.quantities import (
    format_rate,
    format_size,
    parse_rate_bps,
    parse_size_bytes,
    split_descriptions,
)
from placement.simulator.network.topology import Marking

Runner = Callable[[Progress, Keep], list[Measured]]
"""Measures contests; the arguments are those of `run_contests`."""

_TRAINING = "train"
DEFAULT_LINK = Link(300_000_000, 300_000, 40_000)
# Communication time of an isolated iteration by default: F needs several windows to act, and runs should be short.
_LINK_S = 0.166


def add_jobs(command: argparse.ArgumentParser, policies: str, iterations: int, repeat: int) -> None:
    """Add the arguments for the jobs, their policies, and the number of runs."""
    command.add_argument(
        "--jobs",
        default="vgg16,vgg16",
        help="DNN profiles by name or JSON file, models such as bert:dp=2 (docs/models.md), or `train`",
    )
    option(
        command, "--policies", policies, "congestion controls, and `isolated`, with which they are compared"
    )
    add_runs(command, iterations, repeat)
    command.add_argument(
        "--scale", default="auto", metavar="B:T", help="factors for bytes and times (default: fit the link)"
    )
    command.add_argument(
        "--fraction", type=float, help="link share of the largest job's iteration (default 0.86 / jobs)"
    )
    command.add_argument(
        "--compute", type=float, metavar="S", help="longest compute phase (default: 0.22 s for two jobs)"
    )
    command.add_argument(
        "--overlap",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="send buckets during the backward phase (default: after it, see docs/lab.md)",
    )


def add_runs(command: argparse.ArgumentParser, iterations: int, repeat: int) -> None:
    """Add the arguments for the length and the number of runs."""
    option(command, "--iterations", iterations, "iterations of the slowest job; others run as long", "N")
    option(command, "--repeat", repeat, "how often each policy runs, interleaved", "N")
    option(command, "--ranks", 2, "processes of a job, each on a host", "N")


def add_link(command: argparse.ArgumentParser, default: Link = DEFAULT_LINK) -> None:
    """Add the arguments that describe the bottleneck; what they leave out is that of the default."""
    marks = "none" if default.ecn_threshold_bytes is None else format_size(default.ecn_threshold_bytes)
    command.add_argument("--rate", help=f"rate of the bottleneck (default {format_rate(default.rate_bps)})")
    command.add_argument("--queue", help=f"its queue limit (default {format_size(default.queue_bytes)})")
    command.add_argument(
        "--ecn",
        help="queue above which packets are marked; a ramp LOWEST-HIGHEST-PROBABILITY, such as 20kb-80kb-0.1; or "
        f"`none` (default {marks})",
    )
    command.add_argument("--mtu", type=int, help=f"in bytes (default {default.mtu})")
    command.set_defaults(default_link=default)
    option(
        command,
        "--classes",
        1,
        "queues of the bottleneck, strict priorities by the class selector of DSCP; 1 ignores it",
        "N",
    )


def add_measurement(command: argparse.ArgumentParser) -> None:
    """Add the arguments of every comparison: marking, disturbed runs, and the form of the result."""
    command.add_argument(
        "--ecn-by",
        default=VIRTUAL_QUEUE,
        choices=MARKERS,
        help="the mechanism that marks (default virtual_queue)",
    )
    option(
        command,
        "--retry-busy",
        0,
        "repeat a run up to N times while other programs use more than 5 %% of the processors",
        "N",
    )
    command.add_argument("--json", action="store_true", help="one JSON document instead of the tables")


def add_simulate(command: argparse.ArgumentParser) -> None:
    """Add ``--simulate``."""
    command.add_argument(
        "--simulate",
        action="store_true",
        help="in the network simulator instead of a lab: neither root nor an idle machine (docs/network-simulator.md)",
    )


def add_hosts(command: argparse.ArgumentParser) -> None:
    """Add ``--hosts``."""
    command.add_argument(
        "--hosts",
        type=Path,
        metavar="FILE",
        help="run on the hosts of this file, over ssh, instead of a lab (docs/hosts.md)",
    )


def source_of(options: argparse.Namespace, contests: Sequence[Contest]) -> ProviderSource:
    """The provider of hosts that the arguments ask for: a lab, or real hosts, which must suffice for the contests.

    Raises:
        UsageError: the hosts file is malformed, or the contests cannot run on its hosts.
    """
    if options.hosts is None:
        return LabSource()
    source = RemoteSource(load_hosts_file(options.hosts))
    source.check(contests)
    return source


def runner_of(options: argparse.Namespace, contests: Sequence[Contest]) -> Runner:
    """What measures the contests: a lab, real hosts, or the network simulator.

    Raises:
        UsageError: the contests cannot run there.
    """
    retry_busy = retry_busy_of(options)
    if not options.simulate:
        source = source_of(options, contests)
        return lambda step, keep: run_contests(contests, step, keep, retry_busy, source)
    from bench.compare.simulated import check_simulated, simulate_contests  # compiled: slow to import

    for name, given in (("--hosts", options.hosts is not None), ("--retry-busy", retry_busy > 0)):
        if given:
            raise UsageError(f"{name}: expected without --simulate, which uses no hosts")
    for contest in contests:
        check_simulated(contest)
    return lambda step, keep: simulate_contests(contests, step, keep)


def check_device(device: str) -> None:
    """Raise NotAvailableError if there is no CUDA device here and one is asked for."""
    if device != "cuda":
        return  # torch takes seconds to import
    import torch

    if not torch.cuda.is_available():
        raise NotAvailableError("--device cuda: expected a CUDA device, and torch finds none on this host")


def retry_busy_of(options: argparse.Namespace) -> int:
    """How often a disturbed run is repeated; UsageError if that is negative."""
    if options.retry_busy < 0:
        raise UsageError(f"--retry-busy: expected 0 or more, got {options.retry_busy}")
    return int(options.retry_busy)


def contest_of(options: argparse.Namespace) -> Contest:
    """The contest that the arguments describe.

    Raises:
        UsageError: an argument is out of range or unknown.
    """
    link = link_of(options)
    check_counts(options, "iterations", "repeat")
    if not 0 <= options.stagger < 3600:
        raise UsageError(f"--stagger: expected 0 to 3600 seconds, got {options.stagger}")
    names = split_descriptions([options.jobs])
    if not names:
        raise UsageError("--jobs: expected one or more profiles, such as vgg16,vgg16, got none")
    works, scale = _works(names, link, options)
    perturbation = parse_perturbation(options.perturb, options.seed) if options.perturb else None
    return Contest(
        jobs=named_jobs(works, [job_name(name) for name in names]),
        approaches=parse_names(
            options.policies, lambda name: Approach(name, parse_policies(name, options.isolated_cc))
        ),
        link=link,
        iterations=options.iterations,
        repeat=options.repeat,
        ranks=options.ranks,
        starts_s=(tuple(options.stagger * index for index in range(len(names))),) * options.repeat,
        perturbation=perturbation,
        ecn_by=options.ecn_by,
        setting=_setting(options, scale),
        device=options.device,
    )


def check_counts(options: argparse.Namespace, *fields: str) -> None:
    """Raise UsageError unless each of these options is at least 1."""
    for field in fields:
        if getattr(options, field) < 1:
            raise UsageError(f"--{field}: expected 1 or more, got {getattr(options, field)}")


def link_of(options: argparse.Namespace, default: Link | None = None) -> Link:
    """The bottleneck that the arguments describe; what they leave out is that of the default, or of the command's."""
    given: dict[str, int | float | None] = {}
    if options.rate is not None:
        given["rate_bps"] = parse_rate_bps(
            options.rate, field="--rate", lowest=MIN_RATE_BPS, highest=MAX_RATE_BPS
        )
    if options.queue is not None:
        given["queue_bytes"] = parse_size_bytes(options.queue, field="--queue", highest=MAX_QUEUE_BYTES)
    if options.ecn is not None:
        given |= _marks(options.ecn)
    if options.mtu is not None:
        given["mtu"] = options.mtu
    return replace(default or options.default_link, **given, classes=options.classes)


def _marks(text: str) -> dict[str, int | float | None]:
    if text == "none":
        return {"ecn_threshold_bytes": None}
    marking = Marking.parse(text, "--ecn", MAX_QUEUE_BYTES)
    threshold, highest = int(marking.lowest_bytes), int(marking.highest_bytes)
    if highest == threshold:
        return {"ecn_threshold_bytes": threshold}
    return {
        "ecn_threshold_bytes": threshold,
        "ecn_highest_bytes": highest,
        "ecn_probability": marking.probability,
    }


def whole_numbers(text: str, field: str) -> list[int]:
    """Numbers separated by commas. Raises UsageError: one is none."""
    try:
        return [int(part) for part in text.split(",") if part]
    except ValueError:
        raise UsageError(f"{field}: expected whole numbers such as 2,4, got {shown(text)}") from None


def _works(names: Sequence[str], link: Link, options: argparse.Namespace) -> tuple[list[Work], Scale]:
    fraction = _fraction(options, len(names))
    models = {name: model_work(name, link, fraction, options.compute) for name in names if is_model(name)}
    profiles = {name: load(name) for name in names if name != _TRAINING and name not in models}
    if not options.overlap:
        profiles = {name: profile.without_overlap() for name, profile in profiles.items()}
    scale = _scale([profiles[name] for name in names if name in profiles], link, options, len(names))
    scaled = {name: profile.scaled(scale.time, scale.bytes) for name, profile in profiles.items()}
    training = TrainingOptions(compute_s=_compute_s(options, len(names)))
    works: dict[str, Work] = {**scaled, **models}
    return [works.get(name, training) for name in names], scale


def job_name(text: str) -> str:
    """The name of a job that is described like this."""
    return text.partition(":")[0].lower() if is_model(text) else Path(text).stem


def model_work(text: str, link: Link, fraction: float, compute_s: float | None = None) -> ModelWork:
    """The model that a description stands for; without a time of its own it computes for `compute_s`.

    None: for so long that sending takes the `fraction` of an iteration.
    """
    work = parse_model(text)
    preload_models()
    from bench.workloads.models.training import sized  # torch takes seconds to import

    work = sized(work)
    if work.compute_s:
        return work
    if compute_s is None:
        if not 0 < fraction < 1:
            raise UsageError(f"--fraction: expected above 0 and below 1, got {fraction}")
        compute_s = work.sent_bytes * 8 / link.rate_bps * (1 - fraction) / fraction
    return replace(work, compute_s=compute_s)


def _fraction(options: argparse.Namespace, jobs: int) -> float:
    return default_fraction(jobs) if options.fraction is None else float(options.fraction)


def _compute_s(options: argparse.Namespace, jobs: int) -> float:
    if options.compute is not None:
        return float(options.compute)
    fraction = _fraction(options, jobs)
    return _LINK_S * (1 - fraction) / fraction if 0 < fraction < 1 else _LINK_S


def _scale(profiles: Sequence[Profile], link: Link, options: argparse.Namespace, jobs: int) -> Scale:
    if not profiles:
        return Scale(1.0, 1.0)
    if options.scale == "auto":
        return fit(
            profiles, link.rate_bps, options.ranks, _fraction(options, jobs), _compute_s(options, jobs)
        )
    size, colon, time = options.scale.partition(":")
    try:
        return Scale(time=float(time) if colon else 1.0, bytes=float(size))
    except ValueError:
        raise UsageError(
            f"--scale: expected `auto` or B:T, two positive numbers, got {options.scale!r}"
        ) from None


def _setting(options: argparse.Namespace, scale: Scale) -> dict[str, Scalar]:
    return {
        "stagger_s": options.stagger,
        "perturb": options.perturb,
        "seed": options.seed,
        "overlap": options.overlap,
        "bytes_scale": scale.bytes,
        "time_scale": scale.time,
        "isolated_cc": options.isolated_cc,
    }


# -- progress ----------------------------------------------------------------------------------------------------------

Step = Callable[[str, int], None]
"""Called after each step with the policy and the repeat (from 0) to which it belongs."""


@contextmanager
def progress(total: int, repeat: int) -> Iterator[Step]:
    """Show a bar of ``total`` steps; the function advances it by one."""
    with progress_bar(total) as bar:
        yield lambda policy, number: bar.advance(f"{policy}, repeat {number + 1} of {repeat}")
