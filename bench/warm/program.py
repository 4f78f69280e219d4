"""A program of Python in a process that was forked and not executed, with the state that a new interpreter would have.

Signals, standard streams, ``sys.argv``, the command line in /proc, ``__main__``, handlers at exit and the exit status
are as after an ``execve`` of the interpreter. Modules that the forking process has imported stay imported.
"""

from __future__ import annotations

import atexit
import builtins
import ctypes
import gc
import io
import logging
import multiprocessing.process
import multiprocessing.util
import os
import random
import runpy
import signal
import sys
import tempfile
import threading
import traceback
import types
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn, TextIO

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


def _begin(environment: Mapping[str, str]) -> None:
    for number in signal.valid_signals():
        with suppress(OSError, ValueError, TypeError):
            if signal.getsignal(number) not in (signal.SIG_IGN, signal.SIG_DFL):
                signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
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
