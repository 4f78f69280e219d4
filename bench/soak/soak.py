"""A soak: guests and faults for some minutes, and then whether everything is as it must be."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from bench.lab.slurm_cluster import missing
from bench.soak import slurm_checks
from bench.soak.guests import GUESTS, SLURM_GUESTS, Population
from bench.soak.host_state import Held, differences, held_by, host_state, left_of_jobs
from bench.soak.records import ACKNOWLEDGED, BREACHES, TWICE, read_records
from bench.soak.slurm_site import SLURM_FAULTS, SlurmSite
from bench.soak.watch import Watch, until
from bench.soak.world import FAULTS, MARK, World, soak_world, watch_daemon, watch_service
from mltcp.core.errors import MltcpError
from mltcp.daemon.client.client import Client as DaemonClient
from placement.client.client import Client as ServiceClient
from placement.service.protocol import placement_pb2 as pb

T = TypeVar("T")

Step = Callable[[float, str], None]
"""Called every now and then with the seconds that are done, and what is going on."""

_GUEST_EVERY_S = 0.3
_CALM_S = 120.0
_MORE_MEMORY_MIB = {"mltcpd": 32.0, "service": 64.0, "slurm service": 64.0}
_GUESTS, _SLURM_GUESTS = 8, 4
"""At a time."""

_LEFT_S = 20.0
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
        slurm_missing: programs of Slurm that are not installed; if there are any, the part with Slurm was left out.
        slurm_jobs: how many there were, by what became of them.
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
    slurm_missing: list[str] = field(default_factory=list)
    slurm_jobs: dict[str, int] = field(default_factory=dict)


def soak(plan: SoakPlan, step: Step = lambda done_s, text: None) -> SoakResult:
    """Run a soak; returns its outcome.

    Raises:
        NotAvailableError: the process may not make network namespaces.
        MltcpError: a program does not start at the beginning.
    """
    result = SoakResult(slurm_missing=missing())
    with soak_world() as world:
        before = host_state(world.namespace)
        world.daemon.start()
        watches = {"mltcpd": watch_daemon(world), "service": watch_service(world)}
        of_slurm: list[Watch] = []
        if world.slurm is not None:
            watches["slurm service"] = slurm_checks.watch_slurm_service(world.slurm)
            of_slurm = [
                slurm_checks.HeldJobs(world.slurm, world.directory),
                slurm_checks.watch_nodes(world.slurm),
            ]
        all_watches = [*watches.values(), *of_slurm]
        _disturb(world, plan, all_watches, result, step)
        result.breaches += _revived(world)
        step(plan.seconds, "waiting for the jobs to end")
        _check(result, "jobs", lambda: _check_jobs(world, result))
        if (site := world.slurm) is not None:
            _check(result, "jobs of Slurm", lambda: _check_slurm(site, world, result))
        _check(result, "mltcpd", lambda: _check_daemon(world, result))
        _check(result, "processes", lambda: _check_processes(world, result))
        for watch in all_watches:
            watch.end()
            result.breaches += watch.breaches
        for name, watch in watches.items():
            result.statuses[name], result.slowest_s[name] = watch.asked, watch.slowest_s
        _check(result, "what is held", lambda: _check_resources(world, result))
        if world.daemon.stop() != 0:
            result.breaches.append(f"mltcpd: did not end by itself: {world.daemon.last_line}")
        world.daemon.restore()
        result.breaches += differences(before, host_state(world.namespace))
        result.breaches += read_records(world.directory, BREACHES)
        result.breaches += [
            f"GPU {gpu} was given to {job} while {holder or 'a job'} had it"
            for gpu, job, holder, _ in read_records(world.directory, TWICE)
            if "." not in gpu  # those of Slurm's nodes are judged by what slurmctld forgot
        ]
    times = Counter(result.breaches)
    result.breaches = [f"{text} ({count} times)" if count > 1 else text for text, count in times.items()]
    return result


def _check(result: SoakResult, what: str, check: Callable[[], None]) -> None:
    """Make one check; a program that no longer answers is a breach, and no reason to leave the other checks out."""
    try:
        check()
    except (MltcpError, OSError) as error:
        result.breaches.append(f"{what}: not checked to the end: {error}")


def _disturb(world: World, plan: SoakPlan, watches: Sequence[Watch], result: SoakResult, step: Step) -> None:
    draw = random.Random(plan.seed)
    populations = [Population(world, random.Random(draw.random()), list(GUESTS), _GUESTS)]
    faults: list[_Faults[Any]] = [_Faults(FAULTS, world, random.Random(draw.random()), plan.fault_every_s)]
    if world.slurm is not None:
        populations.append(Population(world, random.Random(draw.random()), list(SLURM_GUESTS), _SLURM_GUESTS))
        faults.append(_Faults(SLURM_FAULTS, world.slurm, random.Random(draw.random()), plan.fault_every_s))
    threads: list[threading.Thread] = [*watches, *faults]
    for thread in threads:
        thread.start()
    try:
        began_s = time.monotonic()
        while (done_s := time.monotonic() - began_s) < plan.seconds:
            for population in populations:
                population.step()
            result.breaches += _revived(world)
            step(done_s, faults[-1].last)
            time.sleep(_GUEST_EVERY_S)
    finally:
        for each in faults:
            each.end()
        for population in populations:
            population.end()
    for population in populations:
        result.guests |= population.started
        result.killed += population.killed
    for each in faults:
        result.faults |= each.made
        result.breaches += each.breaches


def _revived(world: World) -> list[str]:
    """Start services that have ended by themselves, so that the rest of the soak is worth something; says so."""
    services = {"service": world.service}
    if world.slurm is not None:
        services["slurm service"] = world.slurm.service
        world.slurm.cluster.revive()  # slurmd ends where munged is away as it starts: that is Slurm's own
    revived = []
    for name, service in services.items():
        try:
            service.revive()
        except MltcpError as error:
            revived.append(f"{name}: {error}")
    return revived


class _Faults(threading.Thread, Generic[T]):
    """Makes one fault after the other, on a thread of its own.

    Args:
        faults: with their weights, by name.
        world: what they are made in.
        draw: by which they are chosen.
        every_s: the mean time between two.
    """

    def __init__(
        self,
        faults: Mapping[str, tuple[Callable[[T, random.Random], None], int]],
        world: T,
        draw: random.Random,
        every_s: float,
    ) -> None:
        super().__init__(name="faults", daemon=True)
        self.made: Counter[str] = Counter()
        self.breaches: list[str] = []
        self.last = "starting"
        self._faults, self._world, self._draw, self._every_s = faults, world, draw, every_s
        self._ending = threading.Event()

    def run(self) -> None:
        """Make faults until `end`."""
        names, weights = list(self._faults), [weight for _, weight in self._faults.values()]
        while not self._ending.wait(self._draw.expovariate(1 / self._every_s)):
            self.last = self._draw.choices(names, weights)[0]
            self.made[self.last] += 1
            try:
                self._faults[self.last][0](self._world, self._draw)
            except (MltcpError, OSError) as error:
                self.breaches.append(f"after {self.last}: {error}")

    def end(self) -> None:
        """End the thread after the fault that is under way."""
        self._ending.set()
        self.join()


def _check_jobs(world: World, result: SoakResult) -> None:
    """Let the jobs that run end, release those that wait, and compare all with the acknowledged submissions."""
    acknowledged = set(read_records(world.directory, ACKNOWLEDGED))
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


def _check_slurm(site: SlurmSite, world: World, result: SoakResult) -> None:
    """Let all jobs of Slurm end, and compare them with what their users know of them."""
    result.breaches += slurm_checks.finish(site, world.directory)
    result.breaches += slurm_checks.breaches(site, world.directory)
    result.slurm_jobs = slurm_checks.counts(site, world.directory)


def _check_processes(world: World, result: SoakResult) -> None:
    """No process of a job is left when all jobs have ended."""
    mark = f"{MARK}={world.directory}".encode()
    if not until(lambda: not left_of_jobs(mark), _LEFT_S):
        result.breaches += [f"a process of a job is left: {each}" for each in left_of_jobs(mark)]


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
    programs: dict[str, Callable[[], int]] = {
        "mltcpd": lambda: world.daemon.pid,
        "service": lambda: world.service.pid,
    }
    services = [world.service]
    if world.slurm is not None:
        services.append(slurm_service := world.slurm.service)
        programs["slurm service"] = lambda: slurm_service.pid
    result.held = held_by({name: pid() for name, pid in programs.items()})
    world.daemon.stop()
    world.daemon.start()
    for service in services:
        service.restart(signal.SIGTERM, 0)
    result.fresh = held_by({name: pid() for name, pid in programs.items()})
    for name, fresh in result.fresh.items():
        held = result.held[name]
        if held.descriptors > fresh.descriptors:
            result.breaches.append(
                f"{name}: {held.descriptors} descriptors are left ({held.kinds}); {fresh.descriptors} at a start"
            )
        if held.resident_mib > fresh.resident_mib + _MORE_MEMORY_MIB[name]:
            result.breaches.append(
                f"{name}: {held.resident_mib:.0f} MiB are left; {fresh.resident_mib:.0f} when it is started"
            )
