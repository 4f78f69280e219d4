"""Handling of the signals that end a process, in commands and in servers."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""What is sent to end a process: by a supervisor, by a person, by a terminal that closes."""

_NOT_ENDING = {signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH}
_NOT_ENDING |= {signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGSTOP}
_FAULTS = {
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGTRAP,
    signal.SIGSYS,
    signal.SIGABRT,
}
ENDING_SIGNALS = tuple(sorted(signal.valid_signals() - _NOT_ENDING - _FAULTS - {signal.SIGKILL}))
"""All that end a process which does not handle them, but those of faults of its own and SIGKILL."""


def exit_on_sigterm() -> None:
    """Make SIGTERM end this process by ``SystemExit``, so that it cleans up as after an interrupt."""

    def leave(number: int, _: FrameType | None) -> None:
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, leave)


@contextmanager
def stop_signals(stop: Callable[[int], None], loop: AbstractEventLoop | None = None) -> Iterator[None]:
    """Call ``stop`` on each of the signals that stop a process, as often as they come, while the context lasts.

    Those that this process ignores, such as SIGHUP under nohup, stay ignored, except SIGTERM and SIGINT.

    Args:
        stop: called with the signal; in a server with an event loop, on the loop.
        loop: of the server; None: ``stop`` is called in the signal handler.
    """
    former = _handlers(STOP_SIGNALS)
    for number in former:
        if loop is None:
            signal.signal(number, lambda got, _: stop(got))
        else:
            loop.add_signal_handler(number, stop, number)
    try:
        yield
    finally:
        for number, handler in former.items():
            if loop is not None:
                loop.remove_signal_handler(number)
            signal.signal(number, handler)


def _handlers(signals: Iterable[int]) -> dict[int, Any]:
    """The handlers of the signals that may get another one."""
    present = {number: signal.getsignal(number) for number in signals}
    always = (signal.SIGTERM, signal.SIGINT)
    return {n: handler for n, handler in present.items() if n in always or handler is not signal.SIG_IGN}


def stop_until_the_end(stop: Callable[[int], None], signals: Iterable[int]) -> None:
    """Call ``stop`` on each of the signals until this process ends; those that it ignores stay ignored.

    For a process that has nothing else to do then: a late signal must not make its end another one.
    """
    for number in _handlers(signals):
        signal.signal(number, lambda got, _: stop(got))


@contextmanager
def signals_held() -> Iterator[None]:
    """Hold the signals that stop a process back while the context lasts, for a step that must not be left half done.

    Those that came are raised again at its end. Only the main thread handles signals: on others nothing is held.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    former = _handlers(STOP_SIGNALS)
    for number in former:
        signal.signal(number, lambda got, _: came.append(got))
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
        for got in came:
            signal.raise_signal(got)
