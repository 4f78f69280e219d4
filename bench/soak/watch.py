"""The programs under test, and threads that ask them for their status all the time."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import RLock

from bench.lab.programs import ServiceProcess
from mltcp.core.errors import MltcpError
from mltcp.core.quantities import NS_PER_S
from placement.client.client import Client as ServiceClient

# -- programs under test -----------------------------------------------------------------------------------------------


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


# -- watches -----------------------------------------------------------------------------------------------------------

LONGEST_S = 1.0
"""A status must be answered within this time."""


class Watch(threading.Thread):
    """Asks again and again while the program is expected to answer.

    Attributes:
        breaches: what was wrong, in the order found.
        asked: statuses that were answered.
        slowest_s: the longest of them.

    Args:
        name: of the program.
        availability: of the program.
        ask: asks once; returns what is wrong with the answer. It raises MltcpError if there is none.
        every_s: seconds between two questions.
        longest_s: an answer must come within this time; None: `LONGEST_S`.
        pid: of the program now, whose waiting for a processor is told of a slow answer; None: nobody's is.
    """

    def __init__(
        self,
        name: str,
        availability: Availability,
        ask: Callable[[], list[str]],
        every_s: float = 0.1,
        longest_s: float | None = None,
        pid: Callable[[], int] | None = None,
    ) -> None:
        super().__init__(name=f"watch-{name}", daemon=True)
        self.breaches: list[str] = []
        self.asked = 0
        self.slowest_s = 0.0
        self._program = name
        self._availability = availability
        self._ask = ask
        self._every_s = every_s
        self._longest_s = LONGEST_S if longest_s is None else longest_s
        self._pid = pid
        self._ending = threading.Event()

    def run(self) -> None:
        """Ask until `end`."""
        while not self._ending.wait(self._every_s):
            self.step()

    def step(self) -> None:
        """Ask once, if an answer can be expected."""
        before = self._availability.moment
        if before is None:
            return
        waited_s = self._cpu_wait_s()
        began_s = time.monotonic()
        wrong: list[str] = []
        try:
            wrong = self._ask()
        except MltcpError as error:
            wrong = [f"{self._program}: no status: {error}"]
        took_s = time.monotonic() - began_s
        if self._availability.moment != before:
            return
        self.asked += 1
        self.slowest_s = max(self.slowest_s, took_s)
        self.breaches += wrong
        if took_s > self._longest_s:
            back_s = self._availability.back_for_s - took_s
            self.breaches.append(
                f"{self._program}: a status took {took_s:.1f} s, {back_s:.1f} s after its return; "
                f"meanwhile its threads waited {self._cpu_wait_s() - waited_s:.1f} s for a processor"
            )

    def _cpu_wait_s(self) -> float:
        """For how long the program's threads have waited for a processor, by /proc/PID/task/TID/schedstat."""
        if self._pid is None:
            return 0.0
        total_ns = 0
        for path in Path(f"/proc/{self._pid()}/task").glob("*/schedstat"):
            with suppress(OSError):  # the thread has ended
                total_ns += int(path.read_text().split()[1])
        return total_ns / NS_PER_S

    def end(self) -> None:
        """End the thread after the question that is under way."""
        self._ending.set()
        if self.is_alive():
            self.join()


def slots_given_twice(client: ServiceClient) -> list[str]:
    """The slots that have several jobs, a line each; asks the service.

    Twice, if there are any: a job may end, and another take its slot, between two pages of an answer.
    """
    shared = _shared_slots(client)
    if shared:
        shared &= _shared_slots(client)
    return [f"{server}: slot {slot} has jobs {', '.join(jobs)}" for server, slot, jobs in sorted(shared)]


def _shared_slots(client: ServiceClient) -> set[tuple[str, int, tuple[str, ...]]]:
    jobs_on: dict[tuple[str, int], list[str]] = defaultdict(list)
    for job in client.status(unended=True, cluster=False).jobs:
        for place in job.places:
            for slot in place.slots:
                jobs_on[place.server, slot].append(job.id)
    return {(*slot, tuple(sorted(jobs))) for slot, jobs in jobs_on.items() if len(jobs) > 1}


def until(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait until a condition holds, for at most so long; returns whether it holds. No answer counts as not yet."""
    deadline_s = time.monotonic() + seconds
    while True:
        with suppress(MltcpError):
            if condition():
                return True
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.1)
