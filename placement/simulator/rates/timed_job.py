"""Whole jobs as a throughput model times them, and the cluster of a run."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Self

from mltcp.core.demand import Phase
from mltcp.core.errors import UsageError
from placement.model.cluster import Cluster
from placement.model.throughput import ThroughputModel, Workload, spread
from placement.model.throughput_table import TableModel, TableTimes, workload_of
from placement.policies.schedulers.scheduler import IterationTimes
from placement.traces.contention import ContentionJob
from placement.traces.deadlines import DeadlineJob, DeadlineTrace

NODES, GPUS = 4, 4
"""The cluster of the DRS paper: 4 nodes of 4 GPUs."""

_MOST_GPUS = 100_000


@dataclass(frozen=True)
class RatesSettings:
    """The cluster and its throughput model.

    Attributes:
        model: gives the speeds of jobs.
        nodes: of the cluster.
        gpus: of a node.
        restart_ns: the cost c of a restart.

    Raises:
        UsageError: a value is out of range.
    """

    model: ThroughputModel
    nodes: int = NODES
    gpus: int = GPUS
    restart_ns: int = 0

    def __post_init__(self) -> None:
        check_nodes(self.nodes, self.gpus, _MOST_GPUS)
        if self.restart_ns < 0:
            raise UsageError(f"restart_ns: expected 0 or more, got {self.restart_ns}")

    def cluster(self) -> Cluster:
        """The cluster, with a switch for each node: what schedulers call a rack is a node here."""
        return Cluster.of_nodes(self.nodes, self.gpus)


def check_nodes(nodes: int, gpus: int, most: int) -> None:
    """Refuse a cluster without nodes, without GPUs in a node, or with more than so many GPUs.

    Raises:
        UsageError: it is one of these.
    """
    if min(nodes, gpus) < 1 or nodes * gpus > most:
        raise UsageError(f"nodes and gpus: expected 1 or more, and up to {most} GPUs, got {nodes} and {gpus}")


@dataclass(frozen=True)
class ModelTimes:
    """Iteration times in an otherwise idle cluster, by a throughput model. Here a rack is a node.

    Attributes:
        model: gives the speeds.
        workload: of the job.
        per_node: GPUs of a node.
    """

    model: ThroughputModel
    workload: Workload
    per_node: int
    _known: dict[tuple[int, bool], int | Fraction] = field(default_factory=dict, compare=False, repr=False)

    def iteration_ns(self, workers: int, one_node: bool) -> float:
        """See `IterationTimes`; exact: a whole number or a `Fraction`."""
        key = workers, one_node
        known = self._known.get(key)
        if known is None:
            rate = self.model.samples_per_ns(self.workload, spread(workers, self.per_node, one_node))
            exact = workers * self.workload.batch / rate
            known = self._known[key] = exact.numerator if exact.denominator == 1 else exact
        return known  # type: ignore[return-value]  # a Fraction where a float would round


@dataclass(frozen=True)
class TimedJob:
    """A job whose work is a number of samples, and whose speed a throughput model gives; see `ClusterJob`.

    Attributes:
        name: unique in its trace.
        arrival_ns: T_arr.
        workload: its model, and how much of it is trained.
        workers: the number of GPUs that it asks for.
        min_workers: the fewest that it can run on.
        max_workers: the most that it can use.
        times: its iteration times.
        deadline_ns: T_dl; None if it has none.
        noise_scale: infinite: the work is a number of samples, whatever the size of the batch.
    """

    name: str
    arrival_ns: int
    workload: Workload
    workers: int
    min_workers: int
    max_workers: int
    times: IterationTimes
    deadline_ns: int | None = None
    noise_scale: float = math.inf

    @classmethod
    def elastic(cls, job: DeadlineJob, times: ModelTimes, most: int) -> Self:
        """A job that runs on 1 to `most` GPUs: the batch of a GPU is constant, so any number will do."""
        return cls(job.name, job.arrival_ns, job.workload, job.gpus, 1, most, times, job.deadline_ns)

    @classmethod
    def fixed(cls, job: ContentionJob, model: TableModel) -> Self:
        """A job that always has the GPUs that it asks for; an iteration is one sample a worker."""
        workload, times = workload_of(job.model, job.samples), TableTimes(model, job.model)
        return cls(job.name, job.arrival_ns, workload, job.gpus, job.gpus, job.gpus, times)

    @cached_property
    def iterations(self) -> Fraction:
        """The steps with `workers` workers: N_epoch * N_step, which is not rounded (Equation 3)."""
        return Fraction(self.workload.total_samples, self.workload.batch * self.workers)

    def phases(self, workers: int) -> tuple[Phase, ...]:
        """Not known."""
        return ()


def timed_jobs(trace: DeadlineTrace, settings: RatesSettings) -> list[TimedJob]:
    """The jobs of a trace under the throughput model; those of the same workload share their times."""
    times: dict[Workload, ModelTimes] = {}
    return [
        TimedJob.elastic(
            job,
            times.setdefault(job.workload, ModelTimes(settings.model, job.workload, settings.gpus)),
            settings.nodes * settings.gpus,
        )
        for job in trace.jobs
    ]
