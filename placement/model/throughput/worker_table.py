"""The throughput of asynchronous jobs as a table of X(1), ..., X(W): measured, or from any queueing model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from mltcp.core.errors import UsageError, shown
from mltcp.core.quantities import NS_PER_S
from placement.model.throughput.throughput import GpusByNode, Neighbour, Workload, gpus_of

_PS_PER_S = 10**12


@dataclass(frozen=True)
class WorkerTable:
    """The batches a second of jobs by their number of workers, one on each GPU, wherever these are.

    Attributes:
        rates: of each workload by name: X(1), X(2), ...

    Raises:
        UsageError: a workload occurs twice or has no rates, or a rate is not above 0.
    """

    rates: tuple[tuple[str, tuple[float, ...]], ...]

    def __post_init__(self) -> None:
        names = [name for name, _ in self.rates]
        if len(set(names)) < len(names):
            raise UsageError(f"rates: expected each workload once, got {', '.join(names)}")
        for name, rates in self.rates:
            if not rates or not all(0 < rate < _PS_PER_S for rate in rates):
                raise UsageError(f"rates of {name}: expected numbers above 0, got {shown(str(rates))}")

    @property
    def uses_neighbours(self) -> bool:
        """No."""
        return False

    def of(self, name: str) -> tuple[float, ...]:
        """X(1), X(2), ... of a workload.

        Raises:
            UsageError: the table does not have it.
        """
        for each, rates in self.rates:
            if each == name:
                return rates
        raise UsageError(f"workload: expected {', '.join(name for name, _ in self.rates)}, got {shown(name)}")

    def samples_per_ns(
        self, workload: Workload, allocation: GpusByNode, neighbours: Sequence[Neighbour] = ()
    ) -> Fraction:
        """See `ThroughputModel`: as if batches left in whole picoseconds, so that it is the same fraction everywhere.

        Raises:
            UsageError: the table has no such workload, or not so many workers.
        """
        rates, workers = self.of(workload.name), gpus_of(allocation)
        if workers > len(rates):
            raise UsageError(f"workers of {workload.name}: expected 1 to {len(rates)}, got {workers}")
        return workload.batch * Fraction(_PS_PER_S // NS_PER_S, round(_PS_PER_S / rates[workers - 1]))
