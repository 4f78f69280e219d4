"""The executor in rounds: all that happens, happens at the beginning of a round, but ends are exact.

The throughput of a job is constant during a round. A job that ends keeps its GPUs, and slows its neighbours down, until
the round's end; with `early_relief` they have their speed back at once, as real ones do. Progress is counted in
floating point, in the same steps as in the compiled loop, so that both take the same decisions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from mltcp.core.errors import UsageError
from mltcp.core.quantities import NS_PER_S
from placement.model.cluster import Cluster
from placement.model.throughput import GpusByNode, Neighbour, ThroughputModel
from placement.policies.schedulers.scheduling_policy import Decision
from placement.simulator.cluster_run import JobEnd, Start
from placement.simulator.rates.timed_job import TimedJob

_SLACK = 1 + 1e-12


@dataclass
class _InRounds:
    """A job that runs.

    Attributes:
        start: its start.
        allocation: its GPUs by node.
        left: the samples that are left.
        hold_s: what is left of the cost of its restart.
        rate: samples/s in the present round.
        ratio: of its throughput to that without neighbours, likewise.
        rounds: that it has run since this start.
        sensitivity: the sum of 1 / ratio over them.
    """

    start: Start[TimedJob]
    allocation: GpusByNode
    left: float
    hold_s: float
    rate: float = 0.0
    ratio: float = 1.0
    rounds: int = 0
    sensitivity: float = 0.0


class RoundsExecutor:
    """Runs jobs in rounds at the rates of a throughput model; see `Executor`.

    Attributes:
        rounds_by_gpus: for each number of GPUs from 0 on, the rounds that have passed in which so many were given out.
        sensitivities: of each job that has run, the rounds it ran and the sum of its contention sensitivity over them.

    Args:
        cluster: where the jobs run; a server is a node.
        model: gives the rates.
        round_ns: the length of a round.
        restart_ns: the cost c of every start of a job but its first.
        first_ns: the cost of its first start.
        early_relief: whether a job that ends slows its neighbours down no longer, and not until the round's end.

    Raises:
        UsageError: the round is shorter than 1 ns, or the cost is negative.
    """

    def __init__(
        self,
        cluster: Cluster,
        model: ThroughputModel,
        round_ns: int,
        restart_ns: int = 0,
        first_ns: int = 0,
        early_relief: bool = False,
    ) -> None:
        if round_ns < 1:
            raise UsageError(f"round_ns: expected 1 or more, got {round_ns}")
        if restart_ns < 0:
            raise UsageError(f"restart_ns: expected 0 or more, got {restart_ns}")
        self.rounds_by_gpus = np.zeros(len(cluster.gpus) + 1, np.int64)
        self.sensitivities: dict[str, tuple[int, float]] = {}
        self._cluster, self._model = cluster, model
        self._round_ns, self._restart_ns, self._first_ns = round_ns, restart_ns, first_ns
        self._early_relief = early_relief
        self._running: dict[str, _InRounds] = {}

    @property
    def now_ns(self) -> int:
        """See `Executor`: the beginning of a round."""
        return int(self.rounds_by_gpus.sum()) * self._round_ns

    def run(self, until_ns: int | None) -> Sequence[JobEnd]:
        """See `Executor`; goes on to the end of the round in which `until_ns` lies."""
        while until_ns is None or self.now_ns < until_ns:
            if not self._running:
                assert until_ns is not None, "an executor without jobs is told how far to go"
                self.rounds_by_gpus[0] += -((self.now_ns - until_ns) // self._round_ns)
                break
            if ends := self._run_round():
                return ends
        return []

    def start(self, start: Start[TimedJob]) -> None:
        """See `Executor`."""
        nodes = tuple(sorted(self._cluster.by_node(start.gpus).items()))
        hold_s = (self._restart_ns if start.restarts else self._first_ns) / NS_PER_S
        left = float(start.work * self._samples(start))
        self._running[start.job.name] = _InRounds(start, nodes, left, hold_s)

    def stop(self, job: str) -> None:
        """See `Executor`; no work is lost."""
        self._free(job)

    def work_done(self, job: str) -> Fraction:
        """See `Executor`; exact."""
        running = self._running[job]
        return Fraction(running.start.work) - Fraction(running.left) / self._samples(running.start)

    def ratio(self, job: str) -> float:
        """See `ObservesRatios`: that of the round that has ended."""
        return self._running[job].ratio

    def decided(self, decision: Decision) -> None:
        """See `Executor`: time shifts make no difference."""

    def _samples(self, start: Start[TimedJob]) -> int:
        """The samples of an iteration."""
        return start.job.workload.batch * start.job.workers

    def _run_round(self) -> list[JobEnd]:
        begin_ns, round_s = self.now_ns, self._round_ns / NS_PER_S
        self._set_rates(self._running)
        given = 0
        for job in self._running.values():
            job.rounds += 1
            job.sensitivity += 1 / job.ratio
            given += len(job.start.gpus)
        ended_s = self._relieved(round_s) if self._early_relief else self._constant(self._running, round_s)
        for name in ended_s:
            self._free(name)
        self.rounds_by_gpus[given] += 1
        return [JobEnd(name, begin_ns + at_s * NS_PER_S) for name, at_s in ended_s.items()]

    def _constant(self, jobs: Mapping[str, _InRounds], until_s: float) -> dict[str, float]:
        """Run jobs at their present rates for a time; when in it those that ended did."""
        ended_s = {}
        for name, job in jobs.items():
            held_up = min(job.hold_s, until_s)
            job.hold_s -= held_up
            useful = until_s - held_up
            if job.left <= job.rate * useful * _SLACK and useful > 0:
                ended_s[name] = held_up + job.left / job.rate
            else:
                job.left -= job.rate * useful
        return ended_s

    def _relieved(self, round_s: float) -> dict[str, float]:
        """As `_constant` for a round, but with new rates whenever a job ends."""
        present, at_s, ended_s = dict(self._running), 0.0, {}
        while present and at_s < round_s:
            first_s = min(job.hold_s + job.left / job.rate for job in present.values())
            step_s = min(first_s, round_s - at_s)
            ended = self._constant(present, step_s)
            at_s += step_s
            for name in ended:
                ended_s[name] = at_s
                del present[name]
            self._set_rates(present)
        return ended_s

    def _free(self, name: str) -> None:
        job = self._running.pop(name)
        rounds, total = self.sensitivities.get(name, (0, 0.0))
        self.sensitivities[name] = rounds + job.rounds, total + job.sensitivity

    def _set_rates(self, jobs: Mapping[str, _InRounds]) -> None:
        for name, job in jobs.items():
            self._set_rate(name, job, jobs)

    def _set_rate(self, name: str, job: _InRounds, jobs: Mapping[str, _InRounds]) -> None:
        workload, neighbours = job.start.job.workload, []
        if self._model.uses_neighbours:
            neighbours = [
                Neighbour(other.start.job.workload, other.allocation)
                for key, other in jobs.items()
                if key != name
            ]
        rate = self._model.samples_per_ns(workload, job.allocation, neighbours)
        job.rate = float(rate * NS_PER_S)
        job.ratio = float(rate / self._model.samples_per_ns(workload, job.allocation)) if neighbours else 1.0
