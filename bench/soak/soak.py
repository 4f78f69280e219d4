"""A soak: guests and faults for some minutes, and then whether everything is as it must be."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from bench.soak.faults import FAULTS, drawn_fault
from bench.soak.host_state import differences, host_state
from bench.soak.population import Population
from bench.soak.records import read_records
from bench.soak.resources import Held, held_by
from bench.soak.watch import Watch, until, watch_daemon, watch_service
from bench.soak.world import World, soak_world
from mltcp.core.errors import MltcpError
from mltcp.daemon.client.client import Client as DaemonClient
from placement.client.client import Client as ServiceClient
from placement.service.protocol import placement_pb2 as pb

Step = Callable[[float, str], None]
"""Called every now and then with the seconds that are done, and what is going on."""

_GUEST_EVERY_S = 0.3
_CALM_S = 120.0
_MORE_MEMORY_MIB = {"mltcpd": 32.0, "service": 64.0}
_ENDED = (pb.ENDED, pb.FAILED)


@dataclass(frozen=True)
class SoakPlan:
    """How long a soak takes, the mean time between faults, and the seed of all choices."""

    seconds: float
    fault_every_s: float = 6.0
    seed: int = 0


@dataclass
class SoakResult:
    """The outcome of a soak.

    Attributes:
        breaches: of invariants, a line each; empty: all of them held.
        guests, faults: how many of each kind there were.
        killed: guests that were killed.
        acknowledged: submissions that the service has acknowledged; `ended` and `failed` of them.
        statuses: that were answered, by program; `slowest_s`: the slowest.
        held, fresh: descriptors and memory at the end, and of the same program started afresh.
    """

    breaches: list[str] = field(default_factory=list)
    guests: dict[str, int] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)
    killed: int = 0
    acknowledged: int = 0
    ended: int = 0
    failed: int = 0
    statuses: dict[str, int] = field(default_factory=dict)
    slowest_s: dict[str, float] = field(default_factory=dict)
    held: dict[str, Held] = field(default_factory=dict)
    fresh: dict[str, Held] = field(default_factory=dict)


def soak(plan: SoakPlan, step: Step = lambda done_s, text: None) -> SoakResult:
    """Run a soak; returns its outcome.

    Raises:
        NotAvailableError: the process may not make network namespaces.
        MltcpError: a program does not start at the beginning.
    """
    result = SoakResult()
    with soak_world() as world:
        before = host_state(world.namespace)
        world.daemon.start()
        watches = {"mltcpd": watch_daemon(world), "service": watch_service(world)}
        _disturb(world, plan, watches, result, step)
        step(plan.seconds, "waiting for the jobs to end")
        _check_jobs(world, result)
        _check_daemon(world, result)
        for name, watch in watches.items():
            watch.end()
            result.statuses[name], result.slowest_s[name] = watch.asked, watch.slowest_s
            result.breaches += watch.breaches
        _check_resources(world, result)
        if world.daemon.stop() != 0:
            result.breaches.append(f"mltcpd: did not end by itself: {world.daemon.last_line}")
        world.daemon.restore()
        result.breaches += differences(before, host_state(world.namespace))
        result.breaches += read_records(world.directory, "breaches")
    return result


def _disturb(world: World, plan: SoakPlan, watches: dict[str, Watch], result: SoakResult, step: Step) -> None:
    draw = random.Random(plan.seed)
    population = Population(world, random.Random(draw.random()))
    faults = _Faults(world, random.Random(draw.random()), plan.fault_every_s)
    for watch in watches.values():
        watch.start()
    faults.start()
    try:
        began_s = time.monotonic()
        while (done_s := time.monotonic() - began_s) < plan.seconds:
            population.step()
            step(done_s, faults.last)
            time.sleep(_GUEST_EVERY_S)
    finally:
        faults.end()
        population.end()
    result.guests, result.killed, result.faults = (
        dict(population.started),
        population.killed,
        dict(faults.made),
    )
    result.breaches += faults.breaches


class _Faults(threading.Thread):
    """Makes one fault after the other, on a thread of its own."""

    def __init__(self, world: World, draw: random.Random, every_s: float) -> None:
        super().__init__(name="faults", daemon=True)
        self.made: Counter[str] = Counter()
        self.breaches: list[str] = []
        self.last = "starting"
        self._world, self._draw, self._every_s = world, draw, every_s
        self._ending = threading.Event()

    def run(self) -> None:
        """Make faults until `end`."""
        while not self._ending.wait(self._draw.expovariate(1 / self._every_s)):
            name = drawn_fault(self._draw)
            self.last = name
            self.made[name] += 1
            try:
                FAULTS[name][0](self._world, self._draw)
            except MltcpError as error:
                self.breaches.append(f"after {name}: {error}")

    def end(self) -> None:
        """End the thread after the fault that is under way."""
        self._ending.set()
        self.join()


def _check_jobs(world: World, result: SoakResult) -> None:
    """Let the jobs that run end, release those that wait, and compare all with the acknowledged submissions."""
    acknowledged = set(read_records(world.directory, "acknowledged"))
    with ServiceClient(world.service.address, timeout_s=30) as client:
        client.change_servers([server.server.name for server in client.status().servers], pb.IN_USE)

        for job in client.status(unended=True, cluster=False).jobs:
            if job.state == pb.QUEUED:
                client.release(job.job.id, "the soak ends")

        def all_ended() -> bool:
            return not client.status(unended=True, cluster=False).jobs

        if not until(all_ended, _CALM_S):
            left = client.status(unended=True, cluster=False).jobs
            result.breaches += [
                f"job {job.job.id} is {pb.JobState.Name(job.state)} {_CALM_S:.0f} s later" for job in left
            ]
        jobs = client.status(cluster=False).jobs
    states = Counter(job.state for job in jobs)
    found = Counter(job.job.id for job in jobs)
    result.acknowledged, result.ended, result.failed = len(acknowledged), states[pb.ENDED], states[pb.FAILED]
    result.breaches += [f"job {name} was acknowledged, and is gone" for name in acknowledged - found.keys()]
    result.breaches += [f"job {name} is there {count} times" for name, count in found.items() if count > 1]


def _check_daemon(world: World, result: SoakResult) -> None:
    """No job is left without its processes."""

    def no_jobs() -> bool:
        with DaemonClient(world.daemon.socket) as client:
            status = client.status()
        return not status.jobs and not status.kernel_jobs

    if not until(no_jobs, 30):
        with DaemonClient(world.daemon.socket) as client:
            status = client.status()
        result.breaches.append(
            f"mltcpd: {len(status.jobs)} jobs are left, and {status.kernel_jobs} entries in the kernel"
        )


def _check_resources(world: World, result: SoakResult) -> None:
    """Compare what the programs hold with what they hold when they are started afresh."""
    programs = {"mltcpd": lambda: world.daemon.pid, "service": lambda: world.service.process.pid}
    for name, pid in programs.items():
        result.held[name] = held_by(pid())
    world.daemon.stop()
    world.daemon.start()
    world.service.stop()
    world.service.start()
    for name, pid in programs.items():
        held, fresh = result.held[name], held_by(pid())
        result.fresh[name] = fresh
        if held.descriptors > fresh.descriptors:
            result.breaches.append(
                f"{name}: {held.descriptors} descriptors are left; {fresh.descriptors} when it is started"
            )
        if held.resident_mib > fresh.resident_mib + _MORE_MEMORY_MIB[name]:
            result.breaches.append(
                f"{name}: {held.resident_mib:.0f} MiB are left; {fresh.resident_mib:.0f} when it is started"
            )
