"""A program of Python in a process that was forked and not executed: the state that a new interpreter would have.

Signals, standard streams, ``sys.argv``, ``__main__``, handlers at exit and the exit status are as after an ``execve`` of
the interpreter. Modules that the forking process has imported stay imported.
"""

import atexit
import builtins
import gc
import io
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
from contextlib import suppress
from dataclasses import dataclass

_READ_AT_IMPORT = ("PYTHON", "TORCH_", "NUMBA_", "LD_", "XDG_", "MLTCP_WRAP", "MLTCP_STRICT")
"""How the variables begin that are read while modules are imported."""

_NETWORK = "--net="
_READ_AT_THE_START = ("PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE")
_replaced_streams: list[tuple] = []


@dataclass(frozen=True)
class Program:
    """The command line of an interpreter: ``-m name`` or ``-c text``, with the arguments.

    Attributes:
        network: the path of the network namespace that ``nsenter`` enters before; None: that of the parent.
    """

    kind: str
    text: str
    arguments: tuple[str, ...]
    network: str | None = None

    @classmethod
    def of(cls, command):
        """The program of a command line; None if it is not one that can be forked."""
        words, network = [os.fsdecode(word) for word in command], None
        if len(words) > 2 and words[0] == "nsenter" and words[1].startswith(_NETWORK):
            network, words = words[1].removeprefix(_NETWORK), words[2:]
        if len(words) < 3 or words[0] != sys.executable or words[1] not in ("-m", "-c"):
            return None
        return cls(words[1], words[2], tuple(words[3:]), network)


def read_at_import(environment):
    """Those variables of an environment by which modules that are imported in it may differ."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_READ_AT_IMPORT) and name not in _READ_AT_THE_START
    }


def become(program, environment):
    """Run a program in this process, whose descriptors and directory are the program's already; does not return."""
    status = 1
    try:
        _begin(environment)
        status = _status_of(program)
    finally:
        _end(status)


def _begin(environment):
    for number in signal.valid_signals():
        with suppress(OSError, ValueError, TypeError):
            if signal.getsignal(number) not in (signal.SIG_IGN, signal.SIG_DFL):
                signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    random.seed()
    _open_streams("PYTHONUNBUFFERED" in environment)


def forget_the_parent():
    """Drop what the forking program would do at its exit, and keep the collector from what it left."""
    atexit._clear()
    weakref.finalize._registry.clear()
    weakref.finalize._registered_with_atexit = False
    gc.collect(0)
    gc.freeze()


def _open_streams(unbuffered):
    # The old ones are kept: closed, they would close the descriptors of the new ones.
    _replaced_streams.append((sys.stdin, sys.stdout, sys.stderr))
    sys.stdin = sys.__stdin__ = _stream(0, "r", "<stdin>")
    sys.stdout = sys.__stdout__ = _stream(1, "w", "<stdout>", unbuffered)
    sys.stderr = sys.__stderr__ = _stream(
        2, "w", "<stderr>", unbuffered, errors="backslashreplace", lines=True
    )


def _stream(descriptor, mode, name, unbuffered=False, errors=None, lines=False):
    try:
        raw = open(descriptor, mode + "b", buffering=0, closefd=False)
    except OSError:
        return None
    binary = raw if unbuffered else (io.BufferedReader(raw) if mode == "r" else io.BufferedWriter(raw))
    stream = io.TextIOWrapper(
        binary,
        encoding="utf-8",
        errors=errors or "strict",
        line_buffering=lines or raw.isatty(),
        write_through=unbuffered,
    )
    stream.mode = mode
    return stream


def _status_of(program):
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


def _run(program):
    sys.orig_argv = [sys.executable, program.kind, program.text, *program.arguments]
    sys.path[0] = "" if program.kind == "-c" else os.getcwd()
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__builtins__ = builtins
    if program.kind == "-c":
        sys.argv = ["-c", *program.arguments]
        exec(compile(program.text, "<string>", "exec"), main.__dict__)
        return
    # Imported already, it would be run beside its copy, with a warning.
    sys.modules.pop(program.text, None)
    sys.argv = ["-m", *program.arguments]
    runpy._run_module_as_main(program.text)


def _end(status):
    """End as an interpreter ends, without tearing down what was forked."""
    try:
        with suppress(BaseException):
            threading._shutdown()
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
