"""Watches of a soak: threads that ask a program for its status all the time, and check what it says."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress

from bench.soak.availability import Availability
from bench.soak.world import World
from mltcp.core.errors import MltcpError
from mltcp.daemon.client.client import Client as DaemonClient
from placement.client.client import Client as ServiceClient

LONGEST_S = 1.0
"""A status must be answered within this time."""

_TIMEOUT_S = 30.0


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
    """

    def __init__(
        self,
        name: str,
        availability: Availability,
        ask: Callable[[], list[str]],
        every_s: float = 0.1,
        longest_s: float | None = None,
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
                f"{self._program}: a status took {took_s:.1f} s, {back_s:.1f} s after its return"
            )

    def end(self) -> None:
        """End the thread after the question that is under way."""
        self._ending.set()
        if self.is_alive():
            self.join()


def watch_daemon(world: World) -> Watch:
    """A watch of the daemon's status."""

    def ask() -> list[str]:
        with DaemonClient(world.daemon.socket, _TIMEOUT_S) as client:
            client.status()
        return []

    return Watch("mltcpd", world.daemon_availability, ask)


def watch_service(world: World) -> Watch:
    """A watch of the service's status: no slot may have two jobs."""

    def ask() -> list[str]:
        with ServiceClient(world.service.address, timeout_s=_TIMEOUT_S) as client:
            return slots_given_twice(client)

    return Watch("service", world.service.availability, ask)


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
