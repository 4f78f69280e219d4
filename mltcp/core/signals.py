"""Handling of the signals that end a process, in commands and in servers."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def exit_on_sigterm() -> None:
    """Make SIGTERM end this process by ``SystemExit``, so that it cleans up as after an interrupt."""

    def leave(number: int, _: FrameType | None) -> None:
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, leave)


@contextmanager
def stop_signals(
    stop: Callable[[signal.Signals], None], loop: AbstractEventLoop | None = None
) -> Iterator[None]:
    """Call ``stop`` on SIGTERM and SIGINT while the context lasts.

    Args:
        stop: called with the signal; in a server with an event loop, on the loop.
        loop: of the server; None: ``stop`` is called in the signal handler.
    """
    former = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    for number in STOP_SIGNALS:
        if loop is None:
            signal.signal(number, lambda got, _: stop(signal.Signals(got)))
        else:
            loop.add_signal_handler(number, stop, number)
    try:
        yield
    finally:
        for number, handler in former.items():
            if loop is not None:
                loop.remove_signal_handler(number)
            signal.signal(number, handler)


@contextmanager
def signals_held() -> Iterator[None]:
    """Hold SIGTERM and SIGINT back while the context lasts, for a step that must not be left half done.

    Those that came are raised again at its end. Only the main thread handles signals: on others nothing is held.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    former = {number: signal.signal(number, lambda got, _: came.append(got)) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
        for got in came:
            signal.raise_signal(got)
