"""Measures the points of a sweep in a lab; those that a folder has are not measured again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from bench.async_sgd.lab import SWITCH, captured, server_name, star, worker_name
from bench.async_sgd.run import (
    AsyncRun,
    KernelIterations,
    bins_between,
    direction_share,
    excerpt,
    run_from_line,
)
from bench.async_sgd.sweep import AsyncSweep, Ratio, SweepPoint
from bench.compare.launch import loaded_controls
from bench.lab.bottleneck import LinkUse
from bench.lab.lab import Lab
from bench.lab.processors import OtherPrograms
from bench.lab.topology import INTERFACE
from bench.workloads.parameter_server.launch import AsyncResult, ConnectionJobs, PlacedAsyncJob, run_async_job
from bench.workloads.parameter_server.log import cycle_times, losses, mean_staleness, steady, throughput
from bench.workloads.place import RankPlace
from mltcp.core.errors import MltcpError
from mltcp.ebpf.congestion_controls import Controls
from mltcp.ebpf.jobs import attached, entered
from mltcp.ebpf.layout import KernelJob
from placement.experiments.run_journal import kept_runs

if TYPE_CHECKING:
    from bench.workloads.parameter_server.session import ServerResult, WorkerRankResult


# Only controls that need ECN get it: the others are to drop, as on the links of the paper.
_SYSCTLS: dict[str, str | int] = {"net.ipv4.tcp_ecn": 0}


@contextmanager
def sweep_lab(sweep: AsyncSweep) -> Iterator[SweepLab]:
    """The lab of a sweep, with the congestion controls that it needs; removed at the end.

    Raises:
        NotAvailableError: not root, or the kernel lacks something.
    """
    topology = star(max(sweep.workers), len(sweep.shares), sweep.link)
    with (
        loaded_controls([variant.policy for variant in sweep.variants]) as controls,
        Lab(topology, ecn_by=sweep.ecn_by, sysctls=_SYSCTLS) as lab,
    ):
        yield SweepLab(sweep, lab, controls)


@dataclass
class _Entries:
    """The numbers of the kernel's jobs of a run, at the workers and at the servers."""

    worker: list[int] = field(default_factory=list)
    server: list[int] = field(default_factory=list)

    def clear(self) -> None:
        self.worker.clear()
        self.server.clear()

    def found(self, controls: Controls) -> dict[str, KernelIterations]:
        """The iterations of these jobs; none where connections belong to no job."""
        if not any((*self.worker, *self.server)):
            return {}
        jobs = controls.jobs()
        sides = (("worker", self.worker), ("server", self.server))
        return {side: _iterations([jobs[number] for number in numbers]) for side, numbers in sides}


def _iterations(jobs: Sequence[KernelJob]) -> KernelIterations:
    trackers = [job.tracker for job in jobs]
    recognised = [tracker for tracker in trackers if tracker.recognised]
    return KernelIterations(
        jobs=len(jobs),
        recognised=len(recognised),
        total_bytes=round(median(tracker.total_bytes for tracker in recognised)) if recognised else 0,
        gap_s=median(tracker.gap_ns for tracker in recognised) / 1e9 if recognised else 0.0,
        iterations=round(median(tracker.iteration for tracker in trackers)),
    )


class SweepLab:
    """A lab in which the points of a sweep run one after the other; made by `sweep_lab`."""

    def __init__(self, sweep: AsyncSweep, lab: Lab, controls: Controls) -> None:
        self._sweep, self._lab, self._controls = sweep, lab, controls

    def run(self, point: SweepPoint, step: Callable[[], None], capture: Path | None = None) -> AsyncRun:
        """Run a point; `step` is called after every update.

        Args:
            point: which run.
            step: called after every update.
            capture: a file for the packets at the leading server.

        Raises:
            RankError: a rank failed.
            MltcpError: a worker died, or connections used another congestion control.
        """
        others = OtherPrograms()
        offsets_s = self._sweep.offsets_s(point, self._sweep.alone_s())
        packets = nullcontext() if capture is None else captured(self._lab.namespace(server_name(0)), capture)
        with ExitStack() as stack:
            entries = _Entries()
            placed = self._placed(point, entries, stack)
            with packets:
                self._lab.start_measuring()
                result = run_async_job(placed, offsets_s, lambda _: step())
                use = self._lab.measurement()
            kernel = entries.found(self._controls)
        self._check(point, result)
        return replace(self._measured(point, result, use), other_load=others.share(), kernel=kernel)

    def _placed(self, point: SweepPoint, entries: _Entries, stack: ExitStack) -> PlacedAsyncJob:
        servers = [server.name for server in self._lab.topology.servers]
        workers = [worker_name(number) for number in range(point.workers)]
        places = (
            *(self._place(point, name, entries.server, stack) for name in servers),
            *(self._place(point, name, entries.worker, stack) for name in workers),
        )
        connection_jobs = self._connection_jobs(point, places, entries, stack)
        job = self._sweep.job(point.workers, point.variant.in_turn)
        return PlacedAsyncJob(job, places, connection_jobs)

    def _place(self, point: SweepPoint, name: str, entries: list[int], stack: ExitStack) -> RankPlace:
        """A host with its own entry of a job, as separate machines have."""
        policy = point.variant.policy
        host = stack.enter_context(
            attached(policy.job(f"{self._sweep.name}@{name}"), policy.control, self._controls)
        )
        entries.append(host.number)
        machine = next(each for each in self._lab.topology.machines if each.name == name)
        return RankPlace(self._lab.namespace(name), INTERFACE, machine.address, host.cgroup)

    def _connection_jobs(
        self, point: SweepPoint, places: Sequence[RankPlace], entries: _Entries, stack: ExitStack
    ) -> tuple[ConnectionJobs, ...]:
        """The kernel's jobs of connections that are not those of their host's cgroup."""
        variant, control = point.variant, point.variant.policy.control
        if not variant.of_mltcp or variant.ratio is Ratio.JOB:
            return ()
        if variant.ratio is Ratio.FLOW:
            entries.clear()
            return (ConnectionJobs(control, tuple((place.address, 0) for place in places)),) * len(places)
        found = []
        servers = len(places) - point.workers
        entries.server.clear()
        for server in range(servers):
            names = [f"{worker_name(worker)}@{server_name(server)}" for worker in range(point.workers)]
            numbers = [
                stack.enter_context(entered(variant.policy.job(name), self._controls)) for name in names
            ]
            entries.server.extend(numbers)
            addresses = [place.address for place in places[servers:]]
            found.append(ConnectionJobs(control, tuple(zip(addresses, numbers, strict=True))))
        return tuple(found)

    def _check(self, point: SweepPoint, result: AsyncResult) -> None:
        control = point.variant.policy.control
        if result.lost:
            worker, cause = next(iter(result.lost.items()))
            raise MltcpError(f"worker {worker}: {cause}")
        if result.congestion_controls != {control}:
            used = ", ".join(sorted(result.congestion_controls)) or "none"
            raise MltcpError(f"{self._sweep.name}: its connections used {used} instead of {control}")

    def _measured(self, point: SweepPoint, result: AsyncResult, use: LinkUse) -> AsyncRun:
        updates = result.updates[: self._sweep.updates]
        kept = steady(updates)
        up, down = use.direction(SWITCH, server_name(0)), use.direction(server_name(0), SWITCH)
        bins = bins_between(use, kept[0].applied_s, kept[-1].applied_s)
        ranks: list[ServerResult | WorkerRankResult] = list(result.servers)
        ranks += [worker for worker in result.workers if worker is not None]
        server_addresses = {server.address for server in self._lab.topology.servers}
        return AsyncRun(
            key=self._sweep.key(point),
            workers=point.workers,
            control=point.variant.name,
            repeat=point.repeat,
            updates=len(updates),
            throughput=throughput(updates),
            staleness=mean_staleness(updates),
            times=cycle_times(updates),
            retransmits=sum(
                flow.retransmits
                for rank in ranks
                for flow in rank.flows
                if server_addresses & {flow.local[0], flow.peer[0]}
            ),
            up=direction_share(up, point.workers, bins, use.bin_ns),
            down=direction_share(down, point.workers, bins, use.bin_ns),
            excerpt=excerpt(use, up, down, point.workers, kept[-1].applied_s),
            losses=losses(updates),
            overruns=sum(update.worker_overran + update.server_overran for update in updates),
            cpu_s=sum(rank.cpu_s for rank in ranks),
        )


Step = Callable[[SweepPoint], None]


def measured(
    sweep: AsyncSweep, folder: Path | None, step: Step, capture: Path | None = None
) -> list[AsyncRun]:
    """All runs of a sweep, in its order.

    Args:
        sweep: what is measured.
        folder: where each run is kept as soon as it is done, and from which runs are taken; None: nowhere.
        step: called after every update.
        capture: a file for the packets of the first run with one worker.

    Raises:
        NotAvailableError: not root, or the kernel lacks something; not if the folder has all runs.
        MltcpError: a run failed; those before it are kept.
    """
    with kept_runs(folder, run_from_line) as journal:
        found = dict(journal.runs) if journal is not None else {}
        missing = [point for point in sweep.points() if sweep.key(point) not in found]
        if missing:
            with sweep_lab(sweep) as place:
                for point in missing:
                    wanted = capture if point.workers == 1 else None
                    run = place.run(point, lambda point=point: step(point), wanted)  # type: ignore[misc]
                    capture = None if wanted is not None else capture
                    found[run.key] = run
                    if journal is not None:
                        journal.add(run)
    return [found[sweep.key(point)] for point in sweep.points()]


def updates_missing(sweep: AsyncSweep, folder: Path | None) -> int:
    """The updates that are still to be measured: the length of the progress bar."""
    with kept_runs(folder, run_from_line) as journal:
        found = set(journal.runs) if journal is not None else set()
    return sum(sweep.updates for point in sweep.points() if sweep.key(point) not in found)
