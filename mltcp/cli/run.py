"""``mltcp run``: run a program with its TCP connections under MLTCP, as one job."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence

from mltcp.cli.job_options import add_job_options, check_iteration_options
from mltcp.cli.program import Program, run, run_in_job_of_daemon
from mltcp.control.aggressiveness import LARGEST_FACTOR, Aggressiveness, Start
from mltcp.core.errors import UsageError
from mltcp.core.policy_names import DEFAULT_CONTROL
from mltcp.core.quantities import check_number
from mltcp.core.subcommands import add_command
from mltcp.core.wrapped_backends import WRAP, parse_wrapped
from mltcp.daemon.client.client import Client, NoDaemonError, Registration
from mltcp.ebpf.jobs import check_name
from mltcp.ebpf.layout import LARGEST_REFERENCE_S, Action, KernelJob, Tracker

_STARTS = ", ".join(start.name.lower() for start in Start)
_EXAMPLES = """\
examples:
  mltcp run -- iperf3 -c 10.0.0.2
  mltcp run --job bert --total-bytes 440000000 -- ./train
  mltcp run --wrap gloo,nccl -- torchrun --nproc-per-node 8 train.py
  mltcp run --wrap nccl -- accelerate launch train.py
"""
_ONLY_WITHOUT_DAEMON = ("start", "decrease", "increase", "reference", "fair")


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``run`` to the commands."""
    command = add_command(commands, "run", execute, _EXAMPLES)
    command.add_argument(
        "--job", metavar="NAME", help="name of the job (default: the program's name and pid)"
    )
    add_job_options(command)
    command.add_argument(
        "--start",
        metavar="WAY",
        help=f"window of an iteration's first bytes: {_STARTS} (default avoid; of remaining probe)",
    )
    command.add_argument(
        "--decrease",
        type=float,
        metavar="D",
        help="how far F above 1 eases the decrease, 0 to 1 (default 0; of remaining 1)",
    )
    command.add_argument(
        "--increase",
        type=float,
        metavar="F",
        help="the largest F on the increase, 0: no limit (default 0; of remaining 4)",
    )
    command.add_argument(
        "--reference",
        type=float,
        metavar="S",
        help="scale F by the root of S over the time that an iteration sends for (default 0: no; of remaining 0.1)",
    )
    command.add_argument(
        "--fair",
        action="store_true",
        default=None,
        help="let the program's connections grow together like one (of mltcpd: fair = true)",
    )
    command.add_argument(
        "--wrap",
        metavar="BACKENDS",
        help="gloo, nccl or both: torch builds groups of these by the mltcp backend, so that scripts and trainers need "
        "no edit (default: as $MLTCP_WRAP says)",
    )
    command.add_argument("--user", metavar="NAME", help="run the program as this user")
    command.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="-- COMMAND ...", help="the program to run"
    )


def execute(options: argparse.Namespace) -> int:
    """Run the program, in a job of the daemon if there is one; returns the program's exit status."""
    arguments = options.arguments[1:] if options.arguments[:1] == ["--"] else options.arguments
    if not arguments:
        raise UsageError("nothing to run: expected mltcp run [options] -- COMMAND ...")
    program, job = Program(tuple(arguments), options.user), _job(options, arguments)
    if options.wrap is not None:
        os.environ[WRAP] = ",".join(sorted(parse_wrapped(options.wrap, "--wrap")))
    try:
        Client().close()
    except NoDaemonError:
        return run(program, job, options.cc or DEFAULT_CONTROL)
    return run_in_job_of_daemon(program, _registration(options, job))


def _registration(options: argparse.Namespace, job: KernelJob) -> Registration:
    """The job as the daemon registers it."""
    if any(getattr(options, field) is not None for field in _ONLY_WITHOUT_DAEMON):
        raise UsageError(
            "--start, --decrease, --increase, --reference and --fair: only without a daemon (MLTCP_DAEMON=none, as "
            "root), not in a job of the daemon"
        )
    return Registration(
        job=check_name(job.name),
        instance=f"run-{os.getpid()}-{time.monotonic_ns()}",
        control=options.cc or "default",
        function=options.function,
        slope=options.slope,
        intercept=options.intercept,
        total_bytes=options.total_bytes or 0,
        gap_s=options.gap or 0.0,
        attach=True,
    )


def _job(options: argparse.Namespace, arguments: Sequence[str]) -> KernelJob:
    check_iteration_options(options)
    aggressiveness = Aggressiveness.from_name(options.function or "linear", options.slope, options.intercept)
    gap_ns = None if options.gap is None else int(options.gap * 1e9)
    return KernelJob(
        name=options.job or f"{os.path.basename(arguments[0])[:20]}-{os.getpid()}",
        aggressiveness=aggressiveness,
        action=_action(options, Action.of_shape(aggressiveness.shape)),
        tracker=Tracker.given_values(options.total_bytes, gap_ns),
    )


def _action(options: argparse.Namespace, default: Action) -> Action:
    for field, highest in (
        ("decrease", 1.0),
        ("increase", LARGEST_FACTOR),
        ("reference", LARGEST_REFERENCE_S),
    ):
        if getattr(options, field) is not None:
            check_number(getattr(options, field), field=f"--{field}", lowest=0, highest=highest)
    if options.start is not None and options.start.upper() not in Start.__members__:
        raise UsageError(f"--start: expected one of {_STARTS}, got {options.start!r}")
    return Action(
        start=default.start if options.start is None else Start[options.start.upper()],
        decrease=default.decrease if options.decrease is None else options.decrease,
        increase=default.increase if options.increase is None else options.increase,
        reference_s=default.reference_s if options.reference is None else options.reference,
        fair=bool(options.fair),
    )
