"""The ``mltcp`` command: probe | load | unload | status | run | daemon | top | restore."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mltcp.cli import daemon as daemon_command
from mltcp.cli import top
from mltcp.cli.run import Command, run, run_in_job_of_daemon
from mltcp.control.aggressiveness import DEFAULT_INTERCEPT, DEFAULT_SLOPE, Aggressiveness, Shape
from mltcp.core.errors import MltcpError, UsageError
from mltcp.daemon.client.client import Client, NoDaemonError, Registration
from mltcp.daemon.client.status import DaemonStatus
from mltcp.ebpf import probe as probing
from mltcp.ebpf.congestion_controls import CONTROLS, DEFAULT_CONTROL, MLTCP_CONTROLS, Controls, require_root
from mltcp.ebpf.jobs import check_name
from mltcp.ebpf.layout import Flow, Job, Start, Tracker

_EXAMPLES = """\
examples:
  mltcp probe                                  can this host run MLTCP in the kernel, and if not, what is missing
  mltcp load                                   register mltcp_reno, mltcp_cubic and mltcp_dctcp
  mltcp run --job bert -- torchrun train.py    every TCP connection of this program becomes a flow of the job bert
  mltcp status                                 controls, jobs, flows, bytes_ratio, what was learned
  mltcp unload                                 leave nothing behind
  mltcp daemon --interface eth0                pace the jobs of this host with tc
  mltcp top                                    watch them
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mltcp",
        description="MLTCP in an unmodified Linux kernel: congestion controls that know training jobs.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    probe = commands.add_parser(
        "probe", help="say for every need whether this host has it; exit status 0 only if all are"
    )
    probe.add_argument("--json", action="store_true", help="one JSON document")
    load = commands.add_parser(
        "load", help="register congestion controls (all of MLTCP's when none is named)"
    )
    load.add_argument("control", nargs="*", help=f"of {', '.join(CONTROLS)}")
    load.add_argument(
        "--allow-users",
        action="store_true",
        help="every user may choose them for his sockets, until mltcp unload",
    )
    unload = commands.add_parser("unload", help="unregister congestion controls (all when none is named)")
    unload.add_argument("control", nargs="*", help=f"of {', '.join(CONTROLS)}")
    unload.add_argument(
        "--force", action="store_true", help="also while flows use them: those keep it until they close"
    )
    status = commands.add_parser("status", help="show controls, jobs and flows")
    status.add_argument("--json", action="store_true", help="one JSON document")
    _add_run(commands.add_parser("run", help="run a program with its TCP connections under MLTCP"))
    daemon_command.add_parsers(commands)
    top.add_parser(commands)
    return parser


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--job", metavar="NAME", help="the job's name (default: the program's name and pid)")
    parser.add_argument(
        "--cc",
        metavar="NAME",
        help=f"congestion control (default {DEFAULT_CONTROL}, or what the daemon has)",
    )
    parser.add_argument(
        "--total-bytes", type=int, metavar="N", help="bytes this host sends per iteration (default: learned)"
    )
    parser.add_argument(
        "--gap", type=float, metavar="S", help="a longer silence ends an iteration (default: learned)"
    )
    parser.add_argument(
        "--function", default="linear", metavar="F", help=f"of {', '.join(s.label for s in Shape)}"
    )
    parser.add_argument("--slope", type=float, default=DEFAULT_SLOPE, help="of F (default 1.75)")
    parser.add_argument("--intercept", type=float, default=DEFAULT_INTERCEPT, help="of F (default 0.25)")
    parser.add_argument(
        "--start",
        default=Job.start.name.lower(),
        metavar="WAY",
        help="an iteration's first bytes: " + _starts(),
    )
    parser.add_argument(
        "--decrease",
        type=float,
        default=Job.decrease,
        metavar="D",
        help="how far F eases the decrease, 0 to 1",
    )
    parser.add_argument("--user", metavar="NAME", help="run the program as this user")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="-- COMMAND ...", help="what to run")


def _starts() -> str:
    return ", ".join(start.name.lower() for start in Start)


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point; returns the exit status (0 well, 1 failure, 2 bad usage; ``run``: the program's own)."""
    options = _parser().parse_args(arguments)
    try:
        return int(_COMMANDS[options.command](options))
    except UsageError as error:
        print(f"mltcp: {error}", file=sys.stderr)
        return 2
    except MltcpError as error:
        print(f"mltcp: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _probe(options: argparse.Namespace) -> int:
    findings = probing.probe()
    good = probing.can_run(findings)
    if options.json:
        print(
            json.dumps(
                {"schema": 1, "can_run": good, "needs": [dataclasses.asdict(one) for one in findings]},
                indent=2,
            )
        )
        return 0 if good else 1
    for finding in findings:
        mark = "ok      " if finding.present else ("MISSING " if finding.required else "absent  ")
        remedy = f"  -> {finding.remedy}" if not finding.present and finding.remedy else ""
        print(f"{mark}{finding.need:28} {finding.detail}{remedy}")
    print(
        "the kernel mode can run here"
        if good
        else "the kernel mode cannot run here: see what is MISSING above"
    )
    return 0 if good else 1


def _load(options: argparse.Namespace) -> int:
    names = options.control or list(MLTCP_CONTROLS)
    controls = Controls()
    fresh = controls.load(names)
    if options.allow_users:
        controls.allow_users(names)
    users = "; every user may choose it" if options.allow_users else ""
    for name in names:
        print(f"{name}: {'loaded' if name in fresh else 'was loaded already'}{users}")
    return 0


def _unload(options: argparse.Namespace) -> int:
    gone = Controls().unload(options.control or None, force=options.force)
    print("\n".join(f"{name}: unloaded" for name in gone) or "nothing was loaded")
    return 0


def _ask_daemon() -> DaemonStatus:
    with Client() as client:
        return client.status()


def _daemon_status() -> DaemonStatus | None:
    try:
        return _ask_daemon()
    except NoDaemonError:
        return None


def _status(options: argparse.Namespace) -> int:
    daemon = _daemon_status()
    if daemon is not None and os.geteuid() != 0:
        # The kernel tells its own side to root only; the daemon tells everybody what is his.
        print(
            json.dumps({"schema": 1, "daemon": daemon.document()}, indent=2)
            if options.json
            else _shown(daemon)
        )
        return 0
    require_root("reading the controls without a daemon")
    controls = Controls()
    states = [controls.registration(name) for name in CONTROLS]
    loaded = any(one.state == "loaded" for one in states)
    jobs = controls.jobs() if loaded else {}
    flows = controls.flows() if loaded else []
    if options.json:
        print(
            json.dumps(
                {
                    **_status_document([dataclasses.asdict(one) for one in states], jobs, flows),
                    "daemon": None if daemon is None else daemon.document(),
                },
                indent=2,
            )
        )
        return 0
    print("daemon: none" if daemon is None else _shown(daemon))
    print("controls: " + ", ".join(f"{one.name} {one.state}" for one in states))
    if jobs:
        _print_jobs(jobs)
    if flows:
        _print_flows(jobs, flows)
    return 0


def _shown(daemon: DaemonStatus) -> str:
    """The daemon's jobs as `mltcp top` has them."""
    console = Console(highlight=False)
    with console.capture() as shown:
        console.print(top.screen(daemon, "job", console.width))
    return shown.get().rstrip()


def _status_document(
    states: list[dict[str, object]], jobs: dict[int, Job], flows: list[Flow]
) -> dict[str, object]:
    return {
        "schema": 1,
        "controls": states,
        "jobs": [_job_document(number, job) for number, job in jobs.items()],
        "flows": [dataclasses.asdict(flow) for flow in flows],
    }


def _job_document(number: int, job: Job) -> dict[str, object]:
    tracker = job.tracker
    return {
        "number": number,
        "job": job.name,
        "flows": job.flows,
        "function": job.aggressiveness.shape.label,
        "slope": job.aggressiveness.slope,
        "intercept": job.aggressiveness.intercept,
        "start": job.start.name.lower(),
        "decrease": job.decrease,
        "recognised": tracker.recognised,
        "iterations": tracker.iteration,
        "bytes_ratio": tracker.bytes_ratio,
        "total_bytes": tracker.total_bytes,
        "gap_s": tracker.gap_ns / 1e9,
    }


def _print_jobs(jobs: dict[int, Job]) -> None:
    table = Table("job", "flows", "F", "iterations", "bytes_ratio", "total_bytes", "gap", box=None)
    for job in jobs.values():
        law, tracker = job.aggressiveness, job.tracker
        known = f"{tracker.total_bytes:,}" if tracker.recognised else "learning"
        shape = f"{law.shape.label} {law.slope:g}, {law.intercept:g}"
        gap = f"{tracker.gap_ns / 1e6:.0f} ms" if tracker.gap_ns else "learning"
        table.add_row(
            escape(job.name),
            str(job.flows),
            shape,
            str(tracker.iteration),
            f"{tracker.bytes_ratio:.2f}",
            known,
            gap,
        )
    Console().print(table)


def _print_flows(jobs: dict[int, Job], flows: list[Flow]) -> None:
    table = Table(
        "flow", "job", "control", "F", "cwnd", "srtt", "retransmits", "iteration", "bytes in it", box=None
    )
    for flow in flows:
        job = escape(jobs[flow.job].name) if flow.job in jobs else "-"
        table.add_row(
            f"{flow.local} > {flow.remote}", job, flow.control, f"{flow.factor:.2f}", str(flow.cwnd),
            f"{flow.srtt_us / 1000:.2f} ms", str(flow.retransmits), str(flow.iteration), f"{flow.bytes:,}",
        )  # fmt: skip
    Console().print(table)


def _run(options: argparse.Namespace) -> int:
    arguments = options.arguments[1:] if options.arguments[:1] == ["--"] else options.arguments
    if not arguments:
        raise UsageError("nothing to run: mltcp run [options] -- COMMAND ...")
    command, job = Command(tuple(arguments), options.user), _job(options, arguments)
    try:
        client = Client()
    except NoDaemonError:
        return run(command, job, options.cc or DEFAULT_CONTROL)
    with client:
        return run_in_job_of_daemon(command, client, _registration(options, job))


def _registration(options: argparse.Namespace, job: Job) -> Registration:
    """The job as the daemon is told of it."""
    if options.start != Job.start.name.lower() or options.decrease != Job.decrease:
        raise UsageError(
            "--start and --decrease: they are for hosts without a daemon (MLTCP_DAEMON=none, as root)"
        )
    law = job.aggressiveness
    return Registration(
        job=check_name(job.name),
        instance=f"run-{os.getpid()}-{time.monotonic_ns()}",
        control=options.cc or "default",
        function=law.shape.label,
        slope=law.slope,
        intercept=law.intercept,
        total_bytes=options.total_bytes or 0,
        gap_s=options.gap or 0.0,
        attach=True,
    )


def _job(options: argparse.Namespace, arguments: Sequence[str]) -> Job:
    if options.total_bytes is not None and options.total_bytes <= 0:
        raise UsageError(f"--total-bytes {options.total_bytes}: a positive number of bytes is allowed")
    if options.gap is not None and not 0 < options.gap < 3600:
        raise UsageError(f"--gap {options.gap}: more than 0 and less than 3600 seconds is allowed")
    if not 0 <= options.decrease <= 1:
        raise UsageError(f"--decrease {options.decrease}: 0 to 1 is allowed")
    if options.start.upper() not in Start.__members__:
        raise UsageError(f"unknown --start {options.start!r}; choose from {_starts()}")
    gap_ns = None if options.gap is None else int(options.gap * 1e9)
    return Job(
        name=options.job or f"{os.path.basename(arguments[0])[:20]}-{os.getpid()}",
        aggressiveness=Aggressiveness(Shape.from_name(options.function), options.slope, options.intercept),
        start=Start[options.start.upper()],
        decrease=options.decrease,
        tracker=Tracker.given_values(options.total_bytes, gap_ns),
    )


_COMMANDS = {
    "probe": _probe,
    "load": _load,
    "unload": _unload,
    "status": _status,
    "run": _run,
    "daemon": daemon_command.execute_daemon,
    "restore": daemon_command.execute_restore,
    "top": lambda options: top.execute(options, _ask_daemon),
}
