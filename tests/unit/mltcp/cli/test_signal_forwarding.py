"""Signals to a process that runs a program: each reaches the program once, and the process outlives it."""

import errno
import os
import pty
import re
import signal
import subprocess
import sys
import textwrap

import pytest

from mltcp.cli.program import SignalForwarding
from mltcp.core.errors import NotAvailableError

WRAPPER = """
import os, sys
from mltcp.cli import program
from mltcp.cli.program import SignalForwarding
program.ONE_AFTER_THE_OTHER_S = 3 if "patient" in sys.argv else 0
with SignalForwarding() as signals:
    if "early" in sys.argv:
        print("early", flush=True); input()
    child = os.fork()
    if not child:
        signals.become_program()
        os.execv(sys.executable, [sys.executable, "-c", sys.argv[1]])
    status = signals.wait(child)
print("ended", os.waitstatus_to_exitcode(status), flush=True)
"""
# It says which signals it gets, in order, and ends with 7 after SIGTERM.
PROGRAM = """
import signal, sys
own = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGCONT, signal.SIGTSTP}
signal.pthread_sigmask(signal.SIG_BLOCK, own)
print("ready", flush=True)
while True:
    got = signal.sigwaitinfo(own).si_signo
    print("got", got, flush=True)
    if got == signal.SIGTERM:
        sys.exit(7)
"""
FORWARDED = sorted(
    signal.valid_signals()
    - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGCONT, signal.SIGTSTP, signal.SIGTERM}
)


class Wrapper:
    """A process that runs PROGRAM, or another, and is ended with all that it has started."""

    def __init__(self, *arguments, program=PROGRAM, **options):
        self.process = subprocess.Popen(
            [sys.executable, "-c", WRAPPER, textwrap.dedent(program), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            **{"process_group": 0, **options},
        )
        self.pid = self.process.pid

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
        self.process.communicate()

    def line(self):
        return self.process.stdout.readline().rstrip("\n")

    def rest(self):
        return self.process.communicate(timeout=60)[0].splitlines()


def state_of(pid):
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0]


def group_of(pid):
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def until_state(pid, *states):
    while state_of(pid) not in states:
        os.sched_yield()


@pytest.mark.parametrize("options", [{}, {"process_group": None, "start_new_session": True}])
def test_every_signal_that_can_be_caught_reaches_the_program_once(options):
    with Wrapper(**options) as wrapper:
        assert wrapper.line() == "ready"
        for number in FORWARDED:
            os.kill(wrapper.pid, number)
            assert wrapper.line() == f"got {number}"
        os.kill(wrapper.pid, signal.SIGTERM)
        assert wrapper.rest() == ["got 15", "ended 7"]


@pytest.mark.parametrize("options", [{}, {"process_group": None, "start_new_session": True}])
def test_every_signal_to_the_group_reaches_the_program_once(options):
    with Wrapper(**options) as wrapper:
        assert wrapper.line() == "ready"
        for number in FORWARDED:
            os.killpg(wrapper.pid, number)
            assert wrapper.line() == f"got {number}"
            # A second one would come before this one, which is for the wrapper alone.
            os.kill(wrapper.pid, signal.SIGRTMIN)
            assert wrapper.line() == f"got {int(signal.SIGRTMIN)}"
        os.killpg(wrapper.pid, signal.SIGTERM)
        assert wrapper.rest() == ["got 15", "ended 7"]


def test_a_signal_to_each_process_of_the_group_reaches_the_program_once():
    with Wrapper("patient") as wrapper:
        assert wrapper.line() == "ready"
        group = [
            int(name) for name in os.listdir("/proc") if name.isdigit() and group_of(int(name)) == wrapper.pid
        ]
        assert len(group) == 3
        for pid in sorted(group):
            os.kill(pid, signal.SIGUSR1)
        os.kill(wrapper.pid, signal.SIGTERM)
        assert wrapper.rest() == [f"got {int(signal.SIGUSR1)}", "got 15", "ended 7"]


def test_a_signal_before_the_program_has_begun_is_forwarded_to_it():
    with Wrapper("early", program="while True: pass") as wrapper:
        assert wrapper.line() == "early"
        os.kill(wrapper.pid, signal.SIGUSR1)
        wrapper.process.stdin.write("\n")
        assert wrapper.rest() == [f"ended {-signal.SIGUSR1}"]


def test_a_signal_that_nobody_has_waited_for_does_not_end_the_wrapper():
    program = "import os, signal; os.kill(os.getppid(), signal.SIGHUP); os._exit(3)"
    for _ in range(5):
        with Wrapper(program=program) as wrapper:
            lines = wrapper.rest()
            # The program may have ended before the signal came back to it.
            assert lines in (["ended 3"], [f"ended {-signal.SIGHUP}"])
            assert wrapper.process.returncode == 0


def test_the_program_has_the_mask_and_the_handlers_that_it_would_have_had():
    program = """
        lines = open("/proc/self/status").read().splitlines()
        print(*[line for line in lines if line.startswith(("SigBlk", "SigPnd"))])
        import signal
        print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
    """
    with Wrapper(program=program) as wrapper:
        assert wrapper.rest() == [f"SigPnd:\t{0:016x} SigBlk:\t{0:016x}", "True", "ended 0"]


def test_orphans_are_reaped():
    code = """
        import os, sys
        reader, writer = os.pipe()
        orphan = os.fork()
        if orphan == 0:
            if os.fork():
                os._exit(0)
            os.close(reader)
            os.write(writer, str(os.getpid()).encode())
            os._exit(0)
        os.waitpid(orphan, 0)
        os.close(writer)
        pid = os.read(reader, 20).decode()
        while os.path.exists(f"/proc/{pid}"):
            os.sched_yield()
        print("reaped")
    """
    subreaper = f"import ctypes; ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\n{WRAPPER}"
    done = subprocess.run(
        [sys.executable, "-c", subreaper, textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    assert done.stdout.splitlines() == ["reaped", "ended 0"]


def test_it_stops_and_goes_on_with_its_program():
    program = "print('ready', __import__('os').getpid(), flush=True); input(); print('read')"
    # In a group of this session, which is not an orphaned one: the kernel lets nobody stop that.
    with Wrapper(program=program) as wrapper:
        child = int(wrapper.line().split()[1])
        for send in (os.kill, os.killpg, os.kill):
            send(wrapper.pid, signal.SIGTSTP)
            until_state(wrapper.pid, "T")
            until_state(child, "T")
            send(wrapper.pid, signal.SIGCONT)
            until_state(wrapper.pid, "S", "R")
            until_state(child, "S", "R")
        # Whoever stops the program alone continues it alone.
        os.kill(child, signal.SIGSTOP)
        until_state(child, "T")
        os.kill(child, signal.SIGCONT)
        wrapper.process.stdin.write("\n")
        assert wrapper.rest() == ["read", "ended 0"]


def test_an_interrupt_from_the_terminal_reaches_the_program_once():
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", WRAPPER, PROGRAM])
    with os.fdopen(terminal, "r+b", buffering=0) as stream:
        output = b""
        while b"ready" not in output:
            output += stream.read(1000)
        for typed, number in ((b"\x03", signal.SIGINT), (b"\x1c", signal.SIGQUIT)):
            stream.write(typed)
            while b"got %d\r" % number not in output:
                output += stream.read(1000)
        os.kill(pid, signal.SIGTERM)
        while b"ended 7" not in output:
            output += stream.read(1000)
    os.waitpid(pid, 0)
    assert re.findall(rb"got (\d+)", output) == [b"2", b"3", b"15"]


def test_where_no_process_can_be_started_it_says_so_and_holds_no_signals(monkeypatch):
    def refuse():
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", refuse)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with pytest.raises(NotAvailableError, match="no process can be started: "), SignalForwarding():
        pass
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
