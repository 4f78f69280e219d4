"""Runs any program so that its TCP connections are flows of one job."""

from __future__ import annotations

import os
import pwd
import sys
from dataclasses import dataclass
from pathlib import Path

from mltcp.cli.signal_forwarding import SignalForwarding
from mltcp.core.errors import NotAvailableError, UsageError
from mltcp.daemon.client.client import INSTANCE, NoDaemonError, Registration
from mltcp.daemon.client.membership import Membership
from mltcp.ebpf.cgroups import entered_cgroup, job_cgroup_name, try_cgroup
from mltcp.ebpf.congestion_controls import CONTROLS, Controls, require_root
from mltcp.ebpf.jobs import attached, check_name
from mltcp.ebpf.layout import KernelJob

_NOT_FOUND, _NOT_EXECUTABLE = 127, 126


@dataclass(frozen=True)
class Program:
    """The program to run and its arguments, and the user to run it as (None: the caller)."""

    arguments: tuple[str, ...]
    user: str | None = None


def run(program: Program, job: KernelJob, control: str, controls: Controls | None = None) -> int:
    """Run a program in a cgroup of its own until it ends; returns its exit status (128 + N after signal N).

    Raises:
        NotAvailableError: not root, or the kernel mode cannot run here.
        UsageError: an unknown control, user or a bad job name.
    """
    controls = controls or Controls()
    require_root("mltcp run")
    check_name(job.name)
    account = _account(program.user)
    try_cgroup()
    if control in CONTROLS and controls.load([control]):
        print(f"mltcp: loaded {control}", file=sys.stderr)
    with SignalForwarding() as signals, attached(job, control, controls) as place:
        child = _start(program.arguments, control, place.cgroup, account, signals)
        return _exit_status(signals.wait(child))


def run_in_job_of_daemon(program: Program, registration: Registration) -> int:
    """Run a program in a job of the daemon, which needs no privilege; returns its exit status.

    This process is a member of the job while the program runs, also after a restart of the daemon. Both are in the
    job's cgroup, which is below the one that this process was in.

    Raises:
        UsageError, NotAvailableError: the daemon rejects the job.
    """
    account = _account(program.user)
    cgroup = job_cgroup_name(os.geteuid(), registration.job, registration.instance)
    with SignalForwarding() as signals, entered_cgroup(cgroup):
        membership = Membership(registration, watched=False)
        try:
            made = membership.registered
            if made is None:
                raise NoDaemonError("mltcpd is gone")
            os.environ["MLTCP_JOB"], os.environ[INSTANCE] = registration.job, registration.instance
            child = _start(program.arguments, made.control, None, account, signals)
            membership.watch()
            return _exit_status(signals.wait(child))
        finally:
            membership.close()


def _account(user: str | None) -> pwd.struct_passwd | None:
    if user is None:
        return None
    try:
        return pwd.getpwnam(user)
    except KeyError:
        raise UsageError(f"unknown user {user!r}") from None


def _start(
    arguments: tuple[str, ...],
    control: str,
    cgroup: Path | None,
    account: pwd.struct_passwd | None,
    signals: SignalForwarding,
) -> int:
    """Start the program, in `cgroup` unless it inherits that of this process; returns its pid."""
    try:
        child = os.fork()
    except OSError as error:
        raise NotAvailableError(f"the program cannot be started: {error.strerror}") from None
    if child:
        return child
    try:
        # Joined before exec, so that the program opens no socket outside the cgroup.
        if cgroup is not None:
            _join(cgroup)
        if account is not None:
            os.initgroups(account.pw_name, account.pw_gid)
            os.setgid(account.pw_gid)
            os.setuid(account.pw_uid)
        # The torch backend would set its own default otherwise.
        os.environ["MLTCP_CC"] = control
        signals.become_program()
        os.execvp(arguments[0], arguments)
    except FileNotFoundError:
        print(f"mltcp: {arguments[0]}: command not found", file=sys.stderr)
        os._exit(_NOT_FOUND)
    except OSError as error:
        print(f"mltcp: {arguments[0]}: {error.strerror}", file=sys.stderr)
        os._exit(_NOT_EXECUTABLE)


def _join(cgroup: Path) -> None:
    try:
        (cgroup / "cgroup.procs").write_text(str(os.getpid()))
    except OSError as error:
        print(f"mltcp: the program cannot be put into {cgroup}: {error.strerror}", file=sys.stderr)
        os._exit(1)


def _exit_status(status: int) -> int:
    return os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
