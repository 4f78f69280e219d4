"""The executor that trains the jobs of a trace for real, on the hosts of a local engine, and moves them by restarts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import groupby
from pathlib import Path

from bench.workloads.elastic.engine_job import EngineEvents, EngineTraining
from bench.workloads.elastic.training_job import JobOptions
from mltcp.core.errors import MltcpError
from placement.engines.engine import EngineEvent, HostShare, JobFailed, JobFinished, JobStarted, JobStopped
from placement.engines.local import LocalEngine
from placement.model.cluster import Cluster
from placement.model.throughput import Workload
from placement.policies.schedulers.scheduling_policy import Decision
from placement.simulator.cluster_run import JobEnd, Start
from placement.simulator.rates.outcome import Span
from placement.simulator.rates.timed_job import TimedJob

GRACE_S = 120.0
_POLL_S = 0.2


def options_of(workload: Workload, directory: Path) -> JobOptions:
    """The training that stands for a workload: the same samples, batch, epochs, parameters and computing time."""
    return JobOptions(
        directory,
        samples=int(workload.samples),
        batch=workload.batch,
        epochs=workload.epochs,
        parameters=workload.parameters,
        compute_s=workload.compute_ns / 1e9,
    )


class ElasticExecutor:
    """Runs jobs as trainings that stop at a step boundary and go on elsewhere; see `Executor`.

    Its time is the wall clock, from when it was made. A job that is stopped gives its GPUs back when its processes have
    ended: the next start waits for that. So a restart costs what it costs.

    Attributes:
        spans: of all jobs, in the order in which they gave their GPUs back.
        trainings: of all jobs that were started, by name.
        cut_short: the jobs whose stop was not orderly, each time: they were stopped before they could catch the signal,
            while they started, and went on from their last checkpoint.

    Args:
        engine: whose hosts are the servers of the cluster, by name; no other jobs run on it.
        cluster: as the scheduler sees it.
        directory: of the jobs' checkpoints; one is made for each job.
        job_options: of every job, beyond what its workload says: fields of `JobOptions`, such as the backend.
        environment: further variables of the ranks.
        on_end: called with the name of each job that has done all of its work.
    """

    def __init__(
        self,
        engine: LocalEngine,
        cluster: Cluster,
        directory: Path,
        job_options: dict[str, object] | None = None,
        environment: dict[str, str] | None = None,
        on_end: Callable[[str], None] = lambda job: None,
    ) -> None:
        self.spans: list[Span] = []
        self.trainings: dict[str, EngineTraining] = {}
        self.cut_short: list[str] = []
        self._events, self._cluster, self._directory = EngineEvents(engine), cluster, directory
        self._job_options, self._environment = job_options or {}, environment
        self._on_end = on_end
        self._running: dict[str, tuple[Start[TimedJob], int]] = {}
        self._stopping: dict[str, tuple[Start[TimedJob], int]] = {}
        self._owners = [server for server, _ in cluster.gpus]
        self.epoch_ns = time.monotonic_ns()

    @property
    def now_ns(self) -> int:
        """See `Executor`."""
        return time.monotonic_ns() - self.epoch_ns

    def run(self, until_ns: int | None) -> Sequence[JobEnd]:
        """See `Executor`. Raises MltcpError if a job fails."""
        while True:
            left_s = _POLL_S if until_ns is None else min(_POLL_S, (until_ns - self.now_ns) / 1e9)
            ends = [end for name in list(self._running) if (end := self._ended(name)) is not None]
            if ends or (until_ns is not None and left_s <= 0):
                return ends
            self._events.collect(left_s)

    def start(self, start: Start[TimedJob]) -> None:
        """See `Executor`; waits until the jobs that were stopped have given their GPUs back."""
        for name in list(self._stopping):
            self._await_stop(name)
        job = start.job
        if job.name not in self.trainings:
            options = options_of(job.workload, self._directory / job.name)
            options = replace(options, **self._job_options)  # type: ignore[arg-type]
            self.trainings[job.name] = EngineTraining(self._events, job.name, options, self._environment)
        self._running[job.name] = (start, self.now_ns)
        self.trainings[job.name].start(self.shares(start.gpus))

    def stop(self, job: str) -> None:
        """See `Executor`: asks the job to stop at the end of a step; no iteration is lost."""
        self._stopping[job] = self._running.pop(job)
        self.trainings[job].ask_to_stop(GRACE_S)

    def work_done(self, job: str) -> Fraction:
        """See `Executor`: by the samples that the job has done, over all of its starts."""
        start, _ = self._running[job]
        options = self.trainings[job].options
        iterations = Fraction(self.trainings[job].samples_done(), options.batch * start.job.workers)
        return max(Fraction(0), iterations - (start.job.iterations - Fraction(start.work)))

    def decided(self, decision: Decision) -> None:
        """See `Executor`: there is nothing beyond GPUs."""

    def shares(self, gpus: Sequence[int]) -> list[HostShare]:
        """The slots of these GPUs: one is the slot of its host with its number within the server."""
        return [
            HostShare(
                self._cluster.servers[owner].name, tuple(gpu - self._owners.index(owner) for gpu in held)
            )
            for owner, held in groupby(gpus, key=lambda gpu: self._owners[gpu])
        ]

    def _ended(self, name: str) -> JobEnd | None:
        event = self._end_event(name, 0.0)
        if event is None:
            return None
        if not isinstance(event, JobFinished):
            raise MltcpError(f"job {name}: expected that it finishes, got {event}")
        span = self._give_back(name, self._running.pop(name))
        self._on_end(name)
        return JobEnd(name, span.end_ns)

    def _await_stop(self, name: str) -> None:
        event = None
        while event is None:
            event = self._end_event(name, _POLL_S)
        if isinstance(event, JobFailed):
            raise MltcpError(f"job {name}: expected that it stops, got {event}")
        if event == JobStopped(name, orderly=False):
            self.cut_short.append(name)
        self._give_back(name, self._stopping.pop(name))

    def _end_event(self, name: str, timeout_s: float) -> EngineEvent | None:
        found = self._events.of(name, timeout_s)
        return next((event for event in found if not isinstance(event, JobStarted)), None)

    def _give_back(self, name: str, held: tuple[Start[TimedJob], int]) -> Span:
        start, start_ns = held
        span = Span(name, start.gpus, start_ns, self.now_ns)
        self.spans.append(span)
        return span
