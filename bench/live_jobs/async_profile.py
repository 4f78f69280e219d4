"""The profile of the kinds of jobs in the lab: service times of one worker, and the throughput of 1 to W workers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.async_sgd.comparison import service_times
from bench.lab.processors import OtherPrograms
from bench.live_jobs.async_lab import KINDS, ClusterLab, ClusterShape, cluster_lab
from bench.live_jobs.comparison import short_key
from bench.workloads.launched_rank import store_directory
from bench.workloads.parameter_server.job import AsyncJob
from bench.workloads.parameter_server.log import Update, cycle_times
from bench.workloads.parameter_server.malleable_job import MalleableJob, collect_all
from placement.model.queueing import Method, throughputs
from placement.model.service_times import ServiceTimes
from placement.model.throughput import WorkerTable

UPDATES = 40
"""Of the profile with one worker."""

WINDOW_S = 3.0
MEASURED = "measured"
"""The name of the measured table among the models of throughput."""

_FEWEST_UPDATES = 40
_ENDLESS = 10**9


@dataclass(frozen=True)
class ThroughputProfile:
    """The profile of some kinds of jobs.

    Attributes:
        key: the same for the same kinds, lab and method.
        service: of each kind by name, of one worker.
        rates: X(1), X(2), ... of each kind as measured; empty if that was not asked for.
        other_load: the share of the processors that other programs used meanwhile.
    """

    key: str
    service: Mapping[str, ServiceTimes]
    rates: Mapping[str, tuple[float, ...]]
    other_load: float

    def line(self) -> str:
        """The profile as a line of JSON, without a newline."""
        return json.dumps({"type": "profile", **asdict(self)}, separators=(",", ":"), allow_nan=False)

    def models(self, workers: int) -> dict[str, WorkerTable]:
        """The throughput models by name, with X(1) to X(`workers`): hybrid, exact, and the measured one if there is."""
        found = {
            str(method): WorkerTable(
                tuple(
                    (name, tuple(throughputs(service, workers, method=method).tolist()))
                    for name, service in self.service.items()
                )
            )
            for method in (Method.HYBRID, Method.EXACT)
        }
        if self.rates:
            found[MEASURED] = WorkerTable(tuple(self.rates.items()))
        return found


@dataclass(frozen=True)
class Profiling:
    """How the kinds of jobs are profiled.

    All run with one worker at the same time, and then one after the other with more and more workers.

    Attributes:
        shape: of the lab.
        seed: of the sleeps.
        updates: with one worker.
        table: whether to measure X(1), ..., X(W) too.
    """

    shape: ClusterShape
    seed: int
    updates: int
    table: bool

    @property
    def key(self) -> str:
        """The key of the profile."""
        return short_key((KINDS, self.shape, self.seed, self.table, self.updates, WINDOW_S))

    @property
    def steps(self) -> int:
        """How often `run` calls its `step`."""
        return len(KINDS) * (1 + (self.shape.gpus if self.table else 0))

    def run(self, step: Callable[[str], None]) -> ThroughputProfile:
        """Profile the kinds in a lab of their own; `step` is called now and then, with what is going on.

        Raises:
            NotAvailableError: not root, or the kernel lacks something.
            RankError: a process failed.
        """
        others = OtherPrograms()
        with store_directory() as directory, cluster_lab(self.shape, len(KINDS)) as lab:
            service = self._service_times(lab, directory, step)
            rates = {
                kind.name: self._rates(number, lab, directory, step)
                for number, kind in enumerate(KINDS if self.table else ())
            }
        return ThroughputProfile(self.key, service, rates, others.share())

    def _service_times(
        self, lab: ClusterLab, directory: Path, step: Callable[[str], None]
    ) -> dict[str, ServiceTimes]:
        """Each kind on a host of its own as far as there are enough."""
        running: dict[str, MalleableJob] = {}
        try:
            for number, kind in enumerate(KINDS):
                job = AsyncJob(f"one-{kind.name}", kind.work(self.seed), 1, self.updates)
                running[kind.name] = MalleableJob(job, lab.server_places()[number], directory)
                running[kind.name].launch()
                gpu = number * self.shape.slots % self.shape.gpus
                running[kind.name].join(lab.worker_place(gpu))
            while not all(job.done for job in running.values()):
                collect_all(running.values(), None)
            for kind in KINDS:
                step(f"one worker, {kind.name}")
            return {name: service_times(cycle_times(job.updates)) for name, job in running.items()}
        finally:
            for each in running.values():
                each.kill()

    def _rates(
        self, number: int, lab: ClusterLab, directory: Path, step: Callable[[str], None]
    ) -> tuple[float, ...]:
        """X(1), ..., X(W) of a kind: of a job that gets one worker more after each measurement."""
        kind, gpus = KINDS[number], self.shape.gpus
        job = AsyncJob(f"all-{kind.name}", kind.work(self.seed), gpus, _ENDLESS)
        running = MalleableJob(job, lab.server_places()[number], directory)
        found = []
        try:
            running.launch()
            for gpu in range(gpus):
                worker = running.join(lab.worker_place(gpu))
                while worker.joined is None:
                    running.collect(None)
                # A cycle of every worker is left out.
                skipped = len(running.updates) + 2 * (gpu + 1)
                while len(running.updates) <= skipped:
                    running.collect(None)
                began_s = time.monotonic()
                while (
                    time.monotonic() < began_s + WINDOW_S or len(running.updates) < skipped + _FEWEST_UPDATES
                ):
                    running.collect(WINDOW_S)
                found.append(_rate(running.updates[skipped:]))
                step(f"{gpu + 1} workers, {kind.name}")
            return tuple(found)
        finally:
            running.kill()


def _rate(updates: Sequence[Update]) -> float:
    return (len(updates) - 1) / (updates[-1].applied_s - updates[0].applied_s)
