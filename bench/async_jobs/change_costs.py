"""The simulator's executor with the costs of changes of workers: joins, and the steps that ends of jobs cut off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from placement.model.cluster import Cluster
from placement.model.throughput import ThroughputModel
from placement.simulator.executor import Start
from placement.simulator.rates.run import RatesExecutor
from placement.simulator.rates.timed_job import TimedJob


@dataclass(frozen=True)
class ChangeCosts:
    """The costs of changes of workers.

    Attributes:
        join_ns: the time of a join.
        cycle_ns: R of each workload by name.
    """

    join_ns: int
    cycle_ns: Mapping[str, int]


class ChangeCostExecutor(RatesExecutor):
    """Runs jobs at the rates of a throughput model; see `RatesExecutor`.

    A worker that joins does nothing for the time of a join. The workers of a job that ends are in the middle of a step,
    on average: half a cycle of each is lost. Both are charged as time at the beginning of a start, in which the job
    makes no progress; that of a join by the share of workers that are new.

    Args:
        cluster: where the jobs run.
        model: gives the rates.
        costs: of changes of workers.
    """

    def __init__(self, cluster: Cluster, model: ThroughputModel, costs: ChangeCosts) -> None:
        super().__init__(cluster, model)
        self._costs = costs
        self._present: dict[str, tuple[int, ...]] = {}
        self._left: dict[str, tuple[int, tuple[int, ...]]] = {}

    def start(self, start: Start[TimedJob]) -> None:
        """See `Executor`."""
        super().start(start)
        self._present[start.job.name] = start.gpus

    def stop(self, job: str) -> None:
        """See `Executor`; no work is lost."""
        self._left[job] = self.now_ns, self._present.pop(job)
        super().stop(job)

    def _hold_ns(self, start: Start[TimedJob]) -> int:
        at_ns, former = self._left.get(start.job.name, (-1, ()))
        kept = len({*former} & {*start.gpus}) if at_ns == self.now_ns else 0
        hold_ns = self._costs.join_ns * (len(start.gpus) - kept) // len(start.gpus)
        if start.restarts == 0:
            hold_ns += self._costs.cycle_ns[start.job.workload.name] // 2
        return hold_ns
