"""A server in a process of its own, which reports when it is ready."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from mltcp.core.errors import MltcpError
from mltcp.core.signals import signals_held

_START_S = 120.0


@contextmanager
def server_process(
    what: str, main: Callable[..., None], *arguments: Any, stop_s: float = 0.0
) -> Iterator[None]:
    """Run `main` with a connection and the arguments in a process, for as long as the block lasts.

    Over the connection, `main` sends "" when it is ready, or the reason for which it failed to start.

    Args:
        what: the name of the server in error messages.
        main: the main function of the process.
        arguments: further arguments of `main`.
        stop_s: how long it may take to end after SIGTERM before it is killed; with 0 it is killed at once.

    Raises:
        MltcpError: it did not start.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=main, args=(theirs, *arguments), name=what, daemon=True)
    with signals_held():  # interrupted half way, it would leave a process that ends in a traceback
        process.start()
    theirs.close()
    try:
        _await_start(what, ours)
        yield
    finally:
        if stop_s:
            process.terminate()
            process.join(stop_s)
        process.kill()
        process.join()
        ours.close()


def _await_start(what: str, connection: Connection) -> None:
    if not connection.poll(_START_S):
        raise MltcpError(f"{what} did not start within {_START_S:.0f} s")
    try:
        said = connection.recv()
    except EOFError:
        said = "its process has ended"
    if said:
        raise MltcpError(f"{what} did not start: {said}")
