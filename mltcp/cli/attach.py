"""``mltcp attach`` and ``mltcp detach``: register an existing cgroup at the daemon as a job, and end that."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from mltcp.cli.job_options import add_job_options, check_iteration_options
from mltcp.core.cgroups import cgroup_of, name_of_cgroup
from mltcp.core.errors import UsageError
from mltcp.core.subcommands import add_command
from mltcp.core.trusted_directory import account_number
from mltcp.daemon.client.client import CgroupRegistration, Client
from mltcp.ebpf.jobs import check_name

_ATTACH_EXAMPLES = """\
The cgroup stays as it is: nothing is moved, and its limits hold. The job ends with the last process in its cgroups, and
goes on when the daemon is restarted. Connections that are open already are not the job's.

examples:
  mltcp attach --cgroup /sys/fs/cgroup/machine.slice/trainer.scope --job bert
  mltcp attach --pid 4711 --job bert --user alice          the cgroup of a process, such as that of a container
  mltcp attach --cgroup /sys/fs/cgroup/batch/step_0 --job batch-17 --label train.sh --cc mltcp_reno
"""
_DETACH_EXAMPLES = """\
examples:
  mltcp detach --cgroup /sys/fs/cgroup/machine.slice/trainer.scope
  mltcp detach --pid 4711
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``attach`` and ``detach`` to the commands."""
    attach = add_command(commands, "attach", execute_attach, _ATTACH_EXAMPLES)
    _add_cgroup_options(attach)
    attach.add_argument("--job", required=True, metavar="NAME", help="name of the job")
    attach.add_argument("--label", default="", metavar="TEXT", help="shown beside the job's name")
    attach.add_argument("--user", default="0", metavar="USER", help="owner of the job (default: root)")
    add_job_options(attach)
    attach.add_argument("--json", action="store_true", help="one JSON document")
    detach = add_command(commands, "detach", execute_detach, _DETACH_EXAMPLES)
    _add_cgroup_options(detach)


def _add_cgroup_options(command: argparse.ArgumentParser) -> None:
    cgroup = command.add_mutually_exclusive_group(required=True)
    cgroup.add_argument("--cgroup", type=Path, metavar="DIRECTORY", help="of the cgroup")
    cgroup.add_argument("--pid", type=int, metavar="N", help="a process in the cgroup")


def execute_attach(options: argparse.Namespace) -> int:
    """Register the cgroup; returns the exit status.

    Raises:
        UsageError: an option is malformed, or there is no such cgroup.
        DeniedError: not root.
        NoDaemonError: no daemon answers.
    """
    check_iteration_options(options)
    name = _cgroup_name(options)
    registration = CgroupRegistration(
        cgroup=name,
        job=check_name(options.job),
        label=options.label,
        uid=account_number(options.user, "--user"),
        control=options.cc or "default",
        function=options.function,
        slope=options.slope,
        intercept=options.intercept,
        total_bytes=options.total_bytes or 0,
        gap_s=options.gap or 0.0,
    )
    with Client() as client:
        made = client.attach(registration)
    if options.json:
        print(json.dumps({"schema": 1, "cgroup": name, "job": options.job, **asdict(made)}, indent=2))
    else:
        under = f"under {made.control}" if made.how == "kernel" else f"by {made.how}"
        print(f"{name}: new connections are flows of job {options.job}, {under}")
    return 0


def execute_detach(options: argparse.Namespace) -> int:
    """End the registration of the cgroup; returns the exit status.

    Raises:
        DeniedError: it is not registered, or for another user's job.
        NoDaemonError: no daemon answers.
    """
    name = _cgroup_name(options)
    with Client() as client:
        client.detach(name)
    print(f"{name}: new connections are of no job")
    return 0


def _cgroup_name(options: argparse.Namespace) -> str:
    if options.pid is None:
        return name_of_cgroup(options.cgroup)
    if options.pid <= 0:
        raise UsageError(f"--pid: expected the number of a process, got {options.pid}")
    return name_of_cgroup(cgroup_of(options.pid))
