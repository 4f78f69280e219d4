"""Worker processes for independent tasks, which never outlive the process that started them.

`concurrent.futures.ProcessPoolExecutor` promises neither thing that is needed here. Its workers outlive a parent that
is killed with SIGKILL, and Ctrl-C reaches workers in compiled code, which ignore it until they return, while
`shutdown` waits for them; here the kernel kills the workers of a dead parent, and the parent kills them on Ctrl-C.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, Self, TypeVar

from mltcp.core.errors import MltcpError
from mltcp.core.processes import end_with

Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass(frozen=True)
class _Worker:
    process: BaseProcess
    connection: Connection


class Workers(Generic[Task, Result]):
    """Processes that call one function on tasks; a context manager that kills them when it is left.

    SIGINT is blocked in the workers: Ctrl-C interrupts the parent, and the parent kills them.

    Args:
        function: looked up by its module and name in a spawned process.
        count: of processes.
        fork: fork the workers, which is 0.2 s faster than to spawn them, as they need not import anything again. It is
            not done where the process has other threads: a fork copies the locks that they hold.
    """

    def __init__(self, function: Callable[[Task], Result], count: int, *, fork: bool = False) -> None:
        self._function, self._count = function, count
        self._fork = fork and threading.active_count() == 1
        self._workers: list[_Worker] = []

    def __enter__(self) -> Self:
        try:
            with _sigint_blocked(spawn=not self._fork):
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
        """Yield each task with its result, in the order in which they finish; tasks start in their order.

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
        context = multiprocessing.get_context("fork") if self._fork else multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, self._function, os.getpid()), daemon=True)
        # A worker must not finalise what it has inherited: gRPC's channels then wait for threads that it has not.
        gc.freeze()
        try:
            process.start()
        finally:
            gc.unfreeze()
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
def _sigint_blocked(spawn: bool) -> Iterator[None]:
    """Block SIGINT; processes that are started meanwhile keep it blocked."""
    if spawn:
        resource_tracker.ensure_running()  # the first spawn would start it, which unblocks SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(connection: Connection, function: Callable[[Any], Any], parent: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a forked worker has the handler of its parent
    end_with(parent)
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
