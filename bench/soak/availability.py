"""Whether a program under test is expected to answer, its freezing and its restart."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

from bench.cost.programs import ServiceProcess
from mltcp.core.errors import MltcpError


class Availability:
    """Whether a program is expected to answer now. Faults take it away; whoever asks compares before and after.

    Attributes:
        lock: held by the fault that has taken the program away.
    """

    def __init__(self) -> None:
        self.lock = RLock()
        self._generation = 0
        self._away = 0
        self._back_s = time.monotonic()

    @contextmanager
    def away(self) -> Iterator[None]:
        """The program need not answer in this block."""
        with self.lock:
            self._away += 1
            self._generation += 1
            try:
                yield
            finally:
                self._away -= 1
                self._back_s = time.monotonic()

    @property
    def back_for_s(self) -> float:
        """For how long the program has been back."""
        return time.monotonic() - self._back_s

    @property
    def moment(self) -> int | None:
        """A number that changes whenever the program was away; None while it is."""
        return None if self._away else self._generation


def freeze(pid: int, seconds: float) -> None:
    """SIGSTOP to a program, and SIGCONT after some seconds."""
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        os.kill(pid, signal.SIGCONT)


class ServiceUnderTest:
    """A placement service under test.

    Attributes:
        process: it.
        availability: whether it is expected to answer.
    """

    def __init__(self, process: ServiceProcess) -> None:
        self.process = process
        self.availability = Availability()

    @property
    def address(self) -> str:
        """Its address."""
        return self.process.address

    @property
    def pid(self) -> int:
        """The process number of the one that was started last."""
        return self.process.process.pid

    def restart(self, number: int, pause_s: float) -> None:
        """End it by a signal, and start it after a pause. Raises MltcpError: it does not start."""
        with self.availability.away():
            if number == signal.SIGKILL:
                self.process.kill()
            else:
                self.process.stop()
            time.sleep(pause_s)
            self.process.start()

    def revive(self) -> None:
        """Start it again if it has ended by itself. Raises MltcpError: it had, or does not start."""
        with self.availability.lock:  # not while a fault has ended it
            status = self.process.process.poll()
            if status is None:
                return
            with self.availability.away():
                self.process.start()
        raise MltcpError(f"it had ended by itself with status {status}")
