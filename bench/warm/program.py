"""A program of Python in a process that was forked and not executed, with the state that a new interpreter would have.

Signals, standard streams, ``sys.argv``, the command line in /proc, ``__main__``, handlers at exit and the exit status
are as after an ``execve`` of the interpreter. Modules that the forking process has imported stay imported.

``subprocess`` and ``multiprocessing`` of a forked process fork where they would execute an interpreter, and only while
the process has a single thread, and only programs whose modules would be imported alike; every other program is
executed as ever. Where such a process would execute a program in its own place it becomes it.
"""

from __future__ import annotations

import _posixsubprocess
import atexit
import builtins
import ctypes
import fcntl
import gc
import io
import logging
import multiprocessing.process
import multiprocessing.util
import os
import random
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
import types
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn, TextIO

_READ_AT_IMPORT = (
    "PYTHON",
    "NUMBA_",
    "LD_",
    "XDG_",
    "MLTCP_WRAP",
    "MLTCP_STRICT",
    "TORCH_DEVICE",
    "TORCH_LOGS",
)
"""How the variables begin that are read while modules are imported."""

_NETWORK = "--net="
_PR_SET_MM, _PR_SET_MM_ARG_END = 35, 9
_READ_AT_THE_START = ("PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE")
_replaced_streams: list[tuple[TextIO | None, ...]] = []
_has_own_place = [True]
"""Not empty while ``sys.path`` begins with the directory of the program, as that of the server of forks does."""


@dataclass(frozen=True)
class Program:
    """The command line of an interpreter: ``-m name`` or ``-c text``, with the arguments.

    Attributes:
        safe: whether ``-P`` keeps the directory that it is started in, or of its script, from ``sys.path``.
        network: the path of the network namespace that ``nsenter`` enters before; None: that of the parent.
    """

    kind: str
    text: str
    arguments: tuple[str, ...]
    network: str | None = None
    safe: bool = False

    @classmethod
    def of(cls, command: Sequence[str | bytes]) -> Program | None:
        """The program of a command line; None if it is not one that can be forked."""
        words, network = [os.fsdecode(word) for word in command], None
        if len(words) > 2 and words[0] == "nsenter" and words[1].startswith(_NETWORK):
            network, words = words[1].removeprefix(_NETWORK), words[2:]
        safe = words[1:2] == ["-P"]
        if safe:
            del words[1]
        if len(words) < 3 or words[0] != sys.executable or words[1] not in ("-m", "-c"):
            return None
        return cls(words[1], words[2], tuple(words[3:]), network, safe)


def read_at_import(environment: Mapping[str, str]) -> dict[str, str]:
    """Those variables of an environment by which modules that are imported in it may differ."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_READ_AT_IMPORT) and name not in _READ_AT_THE_START
    }


_command_line: list[tuple[int, int]] = []
"""Where this process and those that it forks have theirs in memory; first and last address."""


def _show(words: Sequence[str]) -> None:
    """Have ``/proc/PID/cmdline`` show these words, by which programs look for others."""
    if not _command_line:
        with open("/proc/self/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        _command_line.append((int(fields[45]), int(fields[46])))
    first, last = _command_line[0]
    text = b"".join(os.fsencode(word) + b"\0" for word in words)[: last - first]
    ctypes.memmove(first, text.ljust(last - first, b"\0"), last - first)
    # Without CAP_SYS_RESOURCE it ends in a row of zeros.
    ctypes.CDLL(None).prctl(_PR_SET_MM, _PR_SET_MM_ARG_END, ctypes.c_ulong(first + len(text)), 0, 0)


def become(program: Program, environment: Mapping[str, str]) -> NoReturn:
    """Run a program in this process, whose descriptors and directory are the program's already; does not return."""
    status = 1
    try:
        _begin(environment)
        status = _status_of(program)
    finally:
        _end(status)


def _drop_handlers() -> None:
    for number in signal.valid_signals():
        with suppress(OSError, ValueError, TypeError):
            if signal.getsignal(number) not in (signal.SIG_IGN, signal.SIG_DFL):
                signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)


def _begin(environment: Mapping[str, str]) -> None:
    _drop_handlers()
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    random.seed()
    _open_streams("PYTHONUNBUFFERED" in environment)


def forget_the_parent() -> None:
    """Drop what the forking program would do at its exit, and keep the collector from what it left."""
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]
    weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]
    atexit._clear()
    atexit.register(logging.shutdown)
    multiprocessing.util._finalizer_registry.clear()  # type: ignore[attr-defined]
    multiprocessing.process._children.clear()  # type: ignore[attr-defined]
    atexit.register(multiprocessing.util._exit_function)  # type: ignore[attr-defined]
    gc.collect(0)
    gc.freeze()


def _open_streams(unbuffered: bool) -> None:
    old = sys.stdin, sys.stdout, sys.stderr
    # They are kept: closed, they would close the descriptors of the new ones.
    _replaced_streams.append(old)
    sys.stdin, sys.stdout, sys.stderr = (_stream(number, each, unbuffered) for number, each in enumerate(old))
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]


def _stream(number: int, old: TextIO | None, unbuffered: bool) -> io.TextIOWrapper | None:
    """A standard stream with the encoding of an old one; None if its descriptor is closed, as an interpreter has it."""
    try:
        raw = io.FileIO(number, "r" if number == 0 else "w", closefd=False)
    except OSError:
        return None
    raw.name = ("<stdin>", "<stdout>", "<stderr>")[number]
    unbuffered = unbuffered and number > 0
    binary = raw if unbuffered else (io.BufferedWriter(raw) if number else io.BufferedReader(raw))
    stream = io.TextIOWrapper(
        binary,
        encoding=old.encoding if old else "utf-8",
        errors=old.errors if old else "backslashreplace",
        line_buffering=number == 2 or raw.isatty(),
        write_through=unbuffered,
    )
    stream.mode = "w" if number else "r"  # type: ignore[misc]
    return stream


def _status_of(program: Program) -> int:
    """Run it; the exit status that the interpreter would end with."""
    try:
        _run(program)
    except SystemExit as end:
        if end.code is None:
            return 0
        if isinstance(end.code, int):
            return end.code & 0xFF
        print(end.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        traceback.print_exc()
        return -signal.SIGINT
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def _run(program: Program) -> None:
    safe = ["-P"] if program.safe else []
    sys.orig_argv = [sys.executable, *safe, program.kind, program.text, *program.arguments]
    _place_modules(program)
    _show(sys.orig_argv)
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__builtins__ = builtins  # type: ignore[attr-defined]
    if program.kind == "-c":
        sys.argv = ["-c", *program.arguments]
        exec(compile(program.text, "<string>", "exec"), main.__dict__)
        return
    # Imported already, it would be run beside its copy, with a warning.
    sys.modules.pop(program.text, None)
    sys.argv = ["-m", *program.arguments]
    runpy._run_module_as_main(program.text)  # type: ignore[attr-defined]


def _place_modules(program: Program) -> None:
    """Have ``sys.path`` begin with the directory of the program, as an interpreter has it without ``-P``."""
    if _has_own_place:
        del sys.path[0]
    _has_own_place.clear()
    if not program.safe:
        sys.path.insert(0, "" if program.kind == "-c" else os.getcwd())
        _has_own_place.append(True)


def _end(status: int) -> NoReturn:
    """End as an interpreter ends, without tearing down what was forked."""
    try:
        with suppress(BaseException):
            threading._shutdown()  # type: ignore[attr-defined]
        with suppress(BaseException):
            atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with suppress(BaseException):
                stream.flush()
        if status < 0:
            signal.signal(-status, signal.SIG_DFL)
            os.kill(os.getpid(), -status)
    finally:
        os._exit(status & 0xFF)


ForkExec = Callable[..., int]

execute: ForkExec = _posixsubprocess.fork_exec
_execvp = os.execvp

_SERVES_A_STORE = "torch.distributed.run"
"""It may have one more thread, which serves a store and holds nothing that its ranks use."""


@dataclass(frozen=True)
class Start:
    """How a program is started: the arguments of ``_posixsubprocess.fork_exec`` that matter to a fork.

    Attributes:
        program: it.
        close_others: whether descriptors that may be inherited are closed, but for the standard streams and `kept`.
        kept: descriptors that stay open under their numbers.
        directory: the working directory; None: that of the parent.
        environment: all variables.
        streams: the descriptors that become 0, 1 and 2; -1: that of the parent.
        new_session: whether it gets its own session.
        prepare: called in the child before the program begins.
    """

    program: Program
    close_others: bool
    kept: tuple[int, ...]
    directory: str | None
    environment: dict[str, str]
    streams: tuple[int, int, int]
    new_session: bool
    prepare: Callable[[], Any] | None


def start_of(arguments: Sequence[Any]) -> Start | None:
    """The start that the arguments of ``fork_exec`` describe; None if only an execution can do it."""
    if len(arguments) != 23:  # of a Python that is not known here
        return None
    command, _, close_others, kept, directory, variables, stdin, _, _, stdout, _, stderr = arguments[:12]
    error_pipe, _, new_session, group, gid, groups, uid, umask, prepare, _ = arguments[13:]
    program = Program.of(command)
    if program is None or (group, gid, groups, uid, umask) != (-1, None, None, None, -1):
        return None
    return Start(
        program,
        bool(close_others),
        tuple(
            number for number in kept if number != error_pipe
        ),  # its end tells that the program was executed
        None if directory is None else os.fsdecode(directory),
        dict(os.environ) if variables is None else _decoded(variables),
        (stdin, stdout, stderr),
        bool(new_session),
        prepare,
    )


def _decoded(variables: Iterable[bytes]) -> dict[str, str]:
    return dict(os.fsdecode(each).split("=", 1) for each in variables)


def use(fork_exec: ForkExec) -> ForkExec:
    """Have ``subprocess`` and ``multiprocessing`` start programs with this function; returns that before it."""
    before = _posixsubprocess.fork_exec
    _posixsubprocess.fork_exec = subprocess._fork_exec = fork_exec  # type: ignore[attr-defined]
    return before


def fork_or_execute(*arguments: Any) -> int:
    """Like ``fork_exec``, by a fork of this process if that is as good."""
    start = start_of(arguments)
    if start is None or not _may_fork() or read_at_import(start.environment) != read_at_import(os.environ):
        return execute(*arguments)
    # What runs in Python around a fork has no place for the exception of a signal handler: it would be lost.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    pid = os.fork()
    if pid == 0:
        try:
            _drop_handlers()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            forget_the_parent()
            begin(start)
        finally:
            os._exit(255)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return pid


def _may_fork() -> bool:
    threads = len(os.listdir("/proc/self/task"))
    return threads == 1 or (threading.active_count() == 1 and _SERVES_A_STORE in sys.orig_argv[2:4])


def _become_or_execute(file: Any, command: Any) -> NoReturn:
    """Like ``os.execvp``, in place if that is as good."""
    program = Program.of(command)
    if program is None or program.network or len(os.listdir("/proc/self/task")) > 1:
        _execvp(file, command)
    forget_the_parent()
    _close(number for number in _open_descriptors() if not os.get_inheritable(number))
    become(program, dict(os.environ))


def begin(start: Start) -> NoReturn:
    """Arrange descriptors, session and directory of this process, and run the program; does not return."""
    if start.directory is not None:
        os.chdir(start.directory)
    if start.new_session:
        os.setsid()
    _arrange(start.streams)
    if start.prepare is not None:
        start.prepare()
    for number in start.kept:
        os.set_inheritable(number, True)
    _close(
        number
        for number in _open_descriptors()
        if number > 2 and number not in start.kept and (start.close_others or not os.get_inheritable(number))
    )
    if start.program.network is not None:
        _enter(start.program.network)
    use(fork_or_execute)
    os.execvp = _become_or_execute  # type: ignore[assignment]
    become(start.program, start.environment)


def _close(descriptors: Iterable[int]) -> None:
    for each in list(descriptors):
        os.close(each)


def _enter(network: str) -> None:
    """Do as ``nsenter --net=...``."""
    with open(network) as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0):
            print(f"nsenter: {network}: {os.strerror(ctypes.get_errno())}", file=sys.stderr, flush=True)
            os._exit(1)


def _arrange(streams: tuple[int, int, int]) -> None:
    """Make the descriptors 0, 1 and 2 those of `streams`."""
    # Copies above 2 first, of which none is overwritten before it is used.
    copies = [each if each < 0 else _above_two(each) for each in streams]
    for number, each in enumerate(copies):
        if each >= 0:
            os.dup2(each, number, inheritable=True)
            os.close(each)


def _above_two(number: int) -> int:
    return fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 3)


def _open_descriptors() -> list[int]:
    numbers = map(int, os.listdir("/proc/self/fd"))
    return [number for number in numbers if _is_open(number)]


def _is_open(number: int) -> bool:
    try:
        os.get_inheritable(number)
    except OSError:  # that of the listing
        return False
    return True
