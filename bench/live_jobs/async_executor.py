"""The executor that runs jobs of asynchronous SGD for real, and changes their workers while they run."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from bench.workloads.launched_rank import LaunchedRank, kill_ranks
from bench.workloads.parameter_server.job import AsyncJob
from bench.workloads.parameter_server.malleable_job import (
    MalleableJob,
    MalleableWorker,
    collect_all,
    waiting_worker,
)
from bench.workloads.place import RankPlace
from mltcp.core.errors import MltcpError
from placement.policies.schedulers.scheduling_policy import Decision
from placement.simulator.cluster_run import JobEnd, Start
from placement.simulator.rates.outcome import Span
from placement.simulator.rates.timed_job import TimedJob


@dataclass(frozen=True)
class SlotChange:
    """The difference between the workers that are there and those that a decision wants.

    Attributes:
        leaves: the GPUs whose worker has to leave, ascending.
        joins: the GPUs that get a worker of a job, ascending; some of them have to be left first.
    """

    leaves: tuple[int, ...]
    joins: tuple[tuple[int, str], ...]


def slot_change(present: Mapping[int, str], wanted: Mapping[int, str]) -> SlotChange:
    """Only workers on GPUs that were taken from their job leave, and only GPUs that are new to a job get one.

    Args:
        present: the job of the worker on each GPU that has one.
        wanted: the job that each GPU is given to.
    """
    return SlotChange(
        tuple(sorted(gpu for gpu, job in present.items() if wanted.get(gpu) != job)),
        tuple(sorted((gpu, job) for gpu, job in wanted.items() if present.get(gpu) != job)),
    )


def worker_moves(spans: Iterable[Span]) -> tuple[int, int]:
    """The workers that join and that are told to leave in a simulated run; those of a job that ends do neither."""
    of_job: dict[str, list[Span]] = {}
    for span in sorted(spans, key=lambda each: each.start_ns):
        of_job.setdefault(span.job, []).append(span)
    joins = leaves = 0
    for mine in of_job.values():
        joins += len(mine[0].gpus)
        for former, later in itertools.pairwise(mine):
            stays = former.end_ns == later.start_ns
            kept = len({*former.gpus} & {*later.gpus}) if stays else 0
            joins += len(later.gpus) - kept
            leaves += len(former.gpus) - kept
    return joins, leaves


_BETWEEN_S = 0.03
"""Between two starts, which take half of that on one core: workers that have just joined come first."""


class WaitingWorkers:
    """At most one process that waits for each GPU.

    Args:
        place: gives the place of the worker on a GPU.
        gpus: of the cluster.
        directory: temporary.
    """

    def __init__(self, place: Callable[[int], RankPlace], gpus: int, directory: Path) -> None:
        self._place, self._gpus, self._directory = place, gpus, directory
        self._waiting: dict[int, LaunchedRank] = {}
        self._next_s = 0.0

    @property
    def complete(self) -> bool:
        """Whether every GPU has one."""
        return len(self._waiting) == self._gpus

    def take(self, gpu: int) -> LaunchedRank | None:
        """The process that waits for this GPU; None if there is none."""
        self._next_s = time.monotonic() + _BETWEEN_S
        return self._waiting.pop(gpu, None)

    def refill(self) -> None:
        """Start one process where there is none, unless one was started or taken a moment ago."""
        if self.complete or time.monotonic() < self._next_s:
            return
        gpu = next(gpu for gpu in range(self._gpus) if gpu not in self._waiting)
        self._waiting[gpu] = waiting_worker(self._place(gpu), self._directory)
        self._next_s = time.monotonic() + _BETWEEN_S

    def fill(self) -> None:
        """Start all that are missing."""
        for gpu in range(self._gpus):
            if gpu not in self._waiting:
                self._waiting[gpu] = waiting_worker(self._place(gpu), self._directory)

    def kill(self) -> None:
        """Kill and reap all."""
        kill_ranks(self._waiting.values())
        self._waiting.clear()


_POLL_S = 0.2
_REFILL_POLL_S = 0.03
_END_S = 30.0
_MOST_DEATHS = 8


@dataclass(frozen=True)
class _Slot:
    """A worker on a GPU."""

    job: str
    worker: MalleableWorker


@dataclass(frozen=True)
class _Held:
    """The GPUs of a job since its last start."""

    start: Start[TimedJob]
    start_ns: int


class MalleableExecutor:
    """Runs jobs whose workers join and leave; see `Executor`.

    Its time is the wall clock, from when it was made. The stop and the start of a job in one decision become a change
    of its workers: those on GPUs that were taken leave after their present step, and GPUs that are new to the job get a
    worker as soon as they are free. Nothing waits for that: GPUs belong to a job from the decision on. A job's server
    starts with its first worker, and stays while it has none. At the job's last update its workers are killed. For each
    GPU a process waits that becomes its next worker.

    Attributes:
        spans: of all jobs, in the order in which they gave their GPUs back.
        jobs: all that were started, by name.
        deaths: workers that died, as "job: worker: cause"; each was replaced.

    Args:
        description: gives the work and the updates of a job.
        server_places: of the parameter servers; one is used for each job, in the order of their starts.
        worker_place: gives the place of the worker on a GPU.
        gpus: of the cluster.
        directory: temporary.
        on_end: called with the name of each job that has done all of its work.
    """

    def __init__(
        self,
        description: Callable[[TimedJob], AsyncJob],
        server_places: Sequence[RankPlace],
        worker_place: Callable[[int], RankPlace],
        gpus: int,
        directory: Path,
        on_end: Callable[[str], None] = lambda job: None,
    ) -> None:
        self.spans: list[Span] = []
        self.jobs: dict[str, MalleableJob] = {}
        self.deaths: list[str] = []
        self._description, self._worker_place = description, worker_place
        self._server_places = list(server_places)
        self._directory, self._on_end = directory, on_end
        self._held: dict[str, _Held] = {}
        self._slots: dict[int, _Slot] = {}
        self._leaving: dict[int, _Slot] = {}
        self._waiting = WaitingWorkers(worker_place, gpus, directory)
        self._waiting.fill()
        self._epoch_ns = time.monotonic_ns()

    @property
    def now_ns(self) -> int:
        """See `Executor`."""
        return time.monotonic_ns() - self._epoch_ns

    def run(self, until_ns: int | None) -> Sequence[JobEnd]:
        """See `Executor`.

        Raises:
            RankError: a server died, or a process says why it cannot go on.
        """
        while True:
            left_s = _POLL_S if until_ns is None else min(_POLL_S, (until_ns - self.now_ns) / 1e9)
            ends = [self._ended(name) for name in list(self._held) if self.jobs[name].done]
            if ends or (until_ns is not None and left_s <= 0):
                return ends
            self._waiting.refill()
            if not self._waiting.complete:
                left_s = min(left_s, _REFILL_POLL_S)
            self._collect(left_s)

    def start(self, start: Start[TimedJob]) -> None:
        """See `Executor`; the workers follow with `decided`.

        Raises:
            MltcpError: there is no parameter server for another job.
        """
        name = start.job.name
        if name not in self.jobs:
            if len(self.jobs) >= len(self._server_places):
                raise MltcpError(f"job {name}: expected at most {len(self._server_places)} jobs, got more")
            place = self._server_places[len(self.jobs)]
            self.jobs[name] = MalleableJob(self._description(start.job), place, self._directory)
            self.jobs[name].launch()
        self._held[name] = _Held(start, self.now_ns)

    def stop(self, job: str) -> None:
        """See `Executor`; the workers follow with `decided`, and their present steps count."""
        self._give_back(job, self.now_ns)

    def work_done(self, job: str) -> Fraction:
        """See `Executor`: by the updates over all starts, so that those of workers that were leaving count."""
        start = self._held[job].start
        done = Fraction(len(self.jobs[job].updates), start.job.workers)
        work = Fraction(start.work)
        return min(max(done - (start.job.iterations - work), Fraction(0)), work)

    def decided(self, decision: Decision) -> None:
        """See `Executor`: tells workers to leave, and starts those whose GPUs are free."""
        self._change_workers()

    def end(self) -> None:
        """Wait until all processes of jobs that are done have ended.

        Raises:
            RankError: one failed.
            MltcpError: one does not end.
        """
        deadline_s = time.monotonic() + _END_S
        while running := [name for name, job in self.jobs.items() if not job.ended]:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise MltcpError(f"job {running[0]}: its processes have not ended within {_END_S:g} s")
            self._collect(left_s)

    def kill(self) -> None:
        """Kill and reap every process that still runs."""
        self._waiting.kill()
        for job in self.jobs.values():
            job.kill()

    # -- what becomes of jobs ------------------------------------------------------------------------------------------

    def _collect(self, timeout_s: float) -> None:
        if all(job.ended for job in self.jobs.values()):
            time.sleep(max(0.0, timeout_s))
            return
        gone = collect_all(self.jobs.values(), max(0.0, timeout_s))
        if gone:
            self._free(gone)
            self._change_workers()

    def _ended(self, name: str) -> JobEnd:
        job = self.jobs[name]
        end_ns = round(job.updates[job.job.updates - 1].applied_s * 1e9) - self._epoch_ns
        self._give_back(name, end_ns)
        # All that its workers still compute would come too late.
        job.kill_workers()
        for gpu in [gpu for gpu, slot in self._slots.items() if slot.job == name]:
            self._leaving[gpu] = self._slots.pop(gpu)
        job.end()
        self._on_end(name)
        return JobEnd(name, end_ns)

    def _give_back(self, name: str, end_ns: int) -> None:
        held = self._held.pop(name)
        self.spans.append(Span(name, held.start.gpus, held.start_ns, max(end_ns, held.start_ns + 1)))

    def _free(self, gone: Sequence[MalleableWorker]) -> None:
        for slots in (self._slots, self._leaving):
            for gpu in [gpu for gpu, slot in slots.items() if slot.worker in gone]:
                slot = slots.pop(gpu)
                if slot.worker.death is not None:
                    self.deaths.append(f"{slot.job}: worker {slot.worker.number}: {slot.worker.death}")
        if len(self.deaths) > _MOST_DEATHS:
            raise MltcpError(f"workers: expected at most {_MOST_DEATHS} deaths, got {self.deaths}")

    def _change_workers(self) -> None:
        """Bring the workers nearer to the GPUs that jobs hold; called again whenever one is gone."""
        wanted = {
            gpu: name
            for name, held in self._held.items()
            if not self.jobs[name].done
            for gpu in held.start.gpus
        }
        change = slot_change({gpu: slot.job for gpu, slot in self._slots.items()}, wanted)
        for gpu in change.leaves:
            slot = self._leaving[gpu] = self._slots.pop(gpu)
            self.jobs[slot.job].leave(slot.worker)
        for gpu, name in change.joins:
            if gpu not in self._leaving:
                worker = self.jobs[name].join(self._worker_place(gpu), self._waiting.take(gpu))
                self._slots[gpu] = _Slot(name, worker)
