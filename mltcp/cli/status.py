"""``mltcp status``: the congestion controls, jobs and flows of this host, from the kernel and the daemon."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mltcp.cli.top import read_status, screen
from mltcp.core.one_line import one_line
from mltcp.daemon.client.client import NoDaemonError
from mltcp.daemon.client.status import DaemonStatus
from mltcp.ebpf.congestion_controls import Controls, RegisteredControl, require_root
from mltcp.ebpf.layout import Flow, KernelJob
from mltcp.ebpf.registrations import KernelControl


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``status`` to the commands."""
    command = commands.add_parser("status")
    command.add_argument("--json", action="store_true", help="one JSON document")
    command.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Print the status; returns the exit status. Without a daemon it needs root.

    Raises:
        NotAvailableError: no daemon answers, and this user is not root.
    """
    daemon = _daemon_status()
    if daemon is not None and os.geteuid() != 0:
        # The maps of the kernel are root's; the daemon tells all users of their own jobs.
        if options.json:
            print(json.dumps({"schema": 1, "daemon": daemon.document()}, indent=2))
        else:
            print(_daemon_text(daemon))
        return 0
    require_root("reading the controls without a daemon")
    controls = Controls()
    states = controls.registrations()
    ending = [control for control in controls.in_kernel() if not control.registered]
    loaded = any(one.state == "loaded" for one in states)
    jobs = controls.jobs() if loaded else {}
    flows = controls.flows() if loaded else []
    if options.json:
        document = {
            "schema": 1,
            "controls": [dataclasses.asdict(one) for one in states],
            "ending": [_ending_document(control) for control in ending],
            "jobs": [_job_document(number, job) for number, job in jobs.items()],
            "flows": [dataclasses.asdict(flow) for flow in flows],
            "daemon": None if daemon is None else daemon.document(),
        }
        print(json.dumps(document, indent=2))
        return 0
    print("daemon: none" if daemon is None else _daemon_text(daemon))
    print("controls: " + ", ".join(_state_text(one) for one in states))
    for control in ending:
        print(f"unloaded: {control.name}, build {control.build or 'unknown'}: {control.users} flows keep it")
    if jobs:
        _print_jobs(jobs)
    if flows:
        _print_flows(jobs, flows)
    return 0


def _state_text(control: RegisteredControl) -> str:
    if control.state == "older":
        return f"{control.name} loaded, an older build ({control.users} flows)"
    return f"{control.name} {control.state}"


def _ending_document(control: KernelControl) -> dict[str, object]:
    return {"name": control.name, "map_id": control.map_id, "build": control.build, "users": control.users}


def _daemon_status() -> DaemonStatus | None:
    try:
        return read_status()
    except NoDaemonError:
        return None


def _daemon_text(daemon: DaemonStatus) -> str:
    """The daemon's jobs, as `mltcp top` shows them."""
    console = Console(highlight=False)
    with console.capture() as captured:
        console.print(screen(daemon, "job", console.width))
    return captured.get().rstrip()


def _job_document(number: int, job: KernelJob) -> dict[str, object]:
    tracker = job.tracker
    return {
        "number": number,
        "job": job.name,
        "flows": job.flows,
        "function": job.aggressiveness.shape.label,
        "slope": job.aggressiveness.slope,
        "intercept": job.aggressiveness.intercept,
        "start": job.acts.start.name.lower(),
        "decrease": job.acts.decrease,
        "recognised": tracker.recognised,
        "iterations": tracker.iteration,
        "bytes_ratio": tracker.bytes_ratio,
        "total_bytes": tracker.total_bytes,
        "gap_s": tracker.gap_ns / 1e9,
    }


def _print_jobs(jobs: dict[int, KernelJob]) -> None:
    table = Table("job", "flows", "F", "iterations", "bytes_ratio", "total_bytes", "gap", box=None)
    for job in jobs.values():
        law, tracker = job.aggressiveness, job.tracker
        table.add_row(
            Text(one_line(job.name)),
            str(job.flows),
            f"{law.shape.label} {law.slope:g}, {law.intercept:g}",
            str(tracker.iteration),
            f"{tracker.bytes_ratio:.2f}",
            f"{tracker.total_bytes:,}" if tracker.recognised else "learning",
            f"{tracker.gap_ns / 1e6:.0f} ms" if tracker.gap_ns else "learning",
        )
    Console().print(table)


def _print_flows(jobs: dict[int, KernelJob], flows: list[Flow]) -> None:
    table = Table(
        "flow", "job", "control", "F", "cwnd", "srtt", "retransmits", "iteration", "bytes in it", box=None
    )
    for flow in flows:
        table.add_row(
            f"{flow.local} > {flow.remote}",
            Text(one_line(jobs[flow.job].name)) if flow.job in jobs else "-",
            flow.control,
            f"{flow.factor:.2f}",
            str(flow.cwnd),
            f"{flow.srtt_us / 1000:.2f} ms",
            str(flow.retransmits),
            str(flow.iteration),
            f"{flow.bytes:,}",
        )
    Console().print(table)
