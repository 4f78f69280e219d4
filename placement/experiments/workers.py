"""Processes that work off independent tasks, and that never outlive the one that started them."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, Generic, Self, TypeVar

from mltcp.core.errors import MltcpError

Task = TypeVar("Task")
Result = TypeVar("Result")

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class _Worker:
    process: SpawnProcess
    connection: Connection


class Workers(Generic[Task, Result]):
    """Processes that call one function; a context manager, at whose end they are gone.

    They are started afresh rather than forked: a fork would copy whatever threads hold at that moment. SIGINT does not
    reach them: whoever is at the terminal interrupts the process that started them, and that one ends them.
    """

    def __init__(self, function: Callable[[Task], Result], count: int) -> None:
        """`function` is one that a module names: it is looked up by name in every process."""
        self._function, self._count = function, count
        self._workers: list[_Worker] = []

    def __enter__(self) -> Self:
        try:
            with _interrupts_held():
                for _ in range(self._count):
                    self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.join()
            worker.connection.close()
        self._workers.clear()

    def results(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, Result]]:
        """The result of every task with the task, as soon as it is there; tasks are begun in their order.

        Raises:
            MltcpError: a process ended before its task.
            Exception: what the function raised in the other process, with its traceback there as a note.
        """
        waiting = iter(tasks)
        busy: dict[Connection, tuple[_Worker, Task]] = {}
        for worker in self._workers:
            self._hand_out(worker, waiting, busy)
        while busy:
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                worker, task = busy.pop(ready)
                result = _receive(worker)
                self._hand_out(worker, waiting, busy)
                yield task, result

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, self._function, os.getpid()), daemon=True)
        process.start()
        theirs.close()
        self._workers.append(_Worker(process, ours))

    def _hand_out(
        self, worker: _Worker, waiting: Iterator[Task], busy: dict[Connection, tuple[_Worker, Task]]
    ) -> None:
        for task in waiting:
            try:
                worker.connection.send(task)
            except BrokenPipeError:
                raise _ended(worker) from None
            busy[worker.connection] = (worker, task)
            return


def _receive(worker: _Worker) -> Any:
    try:
        well, result = worker.connection.recv()
    except (EOFError, ConnectionResetError):
        raise _ended(worker) from None
    if not well:
        raise result
    return result


def _ended(worker: _Worker) -> MltcpError:
    worker.process.join()
    code = worker.process.exitcode or 0
    why = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
    return MltcpError(f"a process that simulates {why}" + (": is there enough memory?" if code == -9 else ""))


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Keep SIGINT back here, and for good in processes that are started meanwhile."""
    resource_tracker.ensure_running()  # it would let signals through again as a side effect of being started
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(connection: Connection, function: Callable[[Any], Any], parent: int) -> None:
    _end_with(parent)
    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        try:
            reply = (True, function(task))
        except Exception as error:
            error.add_note(traceback.format_exc())
            reply = (False, error)
        connection.send(reply)


def _end_with(parent: int) -> None:
    """Have the kernel end this process when its parent is gone, also if that was killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
