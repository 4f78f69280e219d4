"""Runs any program so that its TCP connections are flows of one job."""

from __future__ import annotations

import os
import pwd
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

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
    require_root("without mltcpd (as root: mltcp daemon), mltcp run")
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


# -- signals ------------------------------------------------------------------------------------
#
# Forwards the signals of a process to the program that it runs, and waits for that program.
#
# The program stays in the process group of its wrapper, so that a terminal, a shell and a batch
# system reach it and its children as they would without a wrapper. A signal for the whole group is
# therefore the program's already, and only one for the wrapper alone is forwarded. What tells them
# apart is a witness: a process of the group that keeps all its signals pending, and is asked which
# ones it has got.


_ALL = frozenset(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}
_STOPS = frozenset({signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
_ANSWER_MS = 2000

ONE_AFTER_THE_OTHER_S = 0.05
"""How long a signal is waited for that the group gets, too, but not at once."""


class SignalForwarding:
    """Holds back all signals to this process while the context lasts, for `wait` to forward.

    Those that come after the end of the program have no effect.

    Raises:
        NotAvailableError: this user or cgroup may have no more processes.
    """

    def __enter__(self) -> SignalForwarding:
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, _ALL)
        # Children of a process that ignores it cannot be waited for.
        self._on_child = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        try:
            self._witness = _Witness()
        except OSError as error:
            self._restore()
            raise NotAvailableError(f"no process can be started: {error.strerror}") from None
        self._asked_to_stop = self._program_is_stopped = False
        return self

    def __exit__(self, *_: object) -> None:
        self._witness.close()
        self._restore()

    def _restore(self) -> None:
        while signal.sigtimedwait(_ALL, 0) is not None:
            pass
        signal.signal(signal.SIGCHLD, self._on_child)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def become_program(self) -> None:
        """Give the calling process, forked in the context, the signal mask and handlers of a program."""
        for number in _IGNORED_BY_PYTHON:
            signal.signal(number, signal.SIG_DFL)
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, self._on_child)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def wait(self, program: int) -> int:
        """Wait for the program, a child; returns its wait status. Other children, such as orphans, are reaped."""
        while True:
            number = signal.sigwaitinfo(_ALL).si_signo
            if number != signal.SIGCHLD:
                self._forward(number, program)
                self._stop_with_program()
                continue
            status = self._reap(program)
            if status is not None:
                return status

    def _forward(self, number: int, program: int) -> None:
        if number in _STOPS or number == signal.SIGCONT:
            self._asked_to_stop = number != signal.SIGCONT
        if self._witness.has_got(number):
            return
        # Slurm's proctrack/linuxproc signals all processes of a task, too, but one after the other.
        time.sleep(ONE_AFTER_THE_OTHER_S)
        if not self._witness.has_got(number):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(program, number)

    def _reap(self, program: int) -> int | None:
        """Take the changes of state of all children; returns the wait status of the program if it has ended."""
        ended = None
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
                if pid == 0:
                    break
                if pid != program:
                    continue
                if os.WIFSTOPPED(status) or os.WIFCONTINUED(status):
                    self._program_is_stopped = os.WIFSTOPPED(status)
                    self._stop_with_program()
                else:
                    ended = status
        return ended

    def _stop_with_program(self) -> None:
        # Only when this process was asked to stop, too: whoever stops the program alone continues it alone.
        if self._asked_to_stop and self._program_is_stopped:
            self._asked_to_stop = False
            os.kill(os.getpid(), signal.SIGSTOP)


class _Witness:
    """A process of this process group that gets the signals for the group, and none of those for this process alone."""

    def __init__(self) -> None:
        self._came: set[int] = set()
        self._socket, remote = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                self._socket.close()
                for descriptor in {0, 1, 2} - {remote.fileno()}:
                    with suppress(OSError):
                        os.close(descriptor)
                _answer(remote)
            finally:
                os._exit(0)
        remote.close()

    def has_got(self, number: int) -> bool:
        """Whether a signal that this process has got was one for the group."""
        # The kernel walks through the group under a lock that this call takes too: after it the witness has got a
        # signal that any other process of the group has.
        with suppress(OSError):
            os.setpgid(0, os.getpgrp())
        with suppress(OSError):
            self._socket.send(b"?")
            readable = select.poll()
            readable.register(self._socket, select.POLLIN)
            if readable.poll(_ANSWER_MS):
                self._came.update(_ALL.intersection(self._socket.recv(4096)))
        is_for_group = number in self._came
        # What this process has not got yet is for later; what it will not get any more (SIGCONT and the signals that
        # stop cancel each other) is forgotten.
        self._came = (self._came - {number}) & signal.sigpending()
        return is_for_group

    def close(self) -> None:
        """End the witness, which also ends when this process is killed."""
        self._socket.close()
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _answer(remote: socket.socket) -> None:
    """Answer each byte by the numbers of the signals that have come since the last one, until the other end closes."""
    while remote.recv(1):
        came = bytearray(1)  # zero is no signal
        while (got := signal.sigtimedwait(_ALL, 0)) is not None:
            came.append(got.si_signo)
        remote.send(came)
