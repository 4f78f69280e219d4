"""The interface of throughput models, and what they are asked about.

A throughput model gives the samples a second of a job from its allocation (GPUs by node) and, where it needs them, from
its neighbours, the other jobs that run at the same time. It knows nothing of schedulers or executors. Rates are exact
fractions of samples per nanosecond, so that two programs that use the same model agree to the nanosecond.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import ClassVar, Protocol, TypeAlias

from mltcp.core.errors import UsageError, shown
from mltcp.core.quantities import BYTES_PER_PARAMETER, NS_PER_S

GpusByNode: TypeAlias = tuple[tuple[int, int], ...]
"""An allocation: (number of a node, GPUs there), for each node that has any, in ascending order of nodes."""


@dataclass(frozen=True)
class Workload:
    """A training run, whatever GPUs it has.

    Attributes:
        name: of the model that is trained.
        parameters: N_param, all of which are exchanged in a step.
        batch: S_batch, the samples of a step on one GPU; it does not change with the number of GPUs.
        compute_ns: T_cal, the time in which one GPU computes a step.
        samples: S_dataset, the samples of an epoch; a fraction where only a measured number is known.
        epochs: N_epoch.

    Raises:
        UsageError: a value is less than 1.
    """

    name: str
    parameters: int
    batch: int
    compute_ns: int
    samples: int | Fraction
    epochs: int

    def __post_init__(self) -> None:
        for name in ("parameters", "batch", "compute_ns", "samples", "epochs"):
            if getattr(self, name) < 1:
                raise UsageError(
                    f"workload {self.name!r}: {name}: expected 1 or more, got {getattr(self, name)}"
                )

    @property
    def total_samples(self) -> int | Fraction:
        """The samples of all epochs."""
        return self.samples * self.epochs

    @cached_property
    def alone_ns(self) -> int:
        """T_run(1): the run time on one GPU, rounded up to whole ns (Equations 1 and 3)."""
        return -(-self.total_samples * self.compute_ns // self.batch)


@dataclass(frozen=True)
class Neighbour:
    """Another job that runs at the same time.

    Attributes:
        workload: that it runs.
        allocation: the GPUs that it has.
    """

    workload: Workload
    allocation: GpusByNode


class ThroughputModel(Protocol):
    """Gives the speed of a job."""

    @property
    def uses_neighbours(self) -> bool:
        """Whether speeds depend on the jobs that run at the same time."""

    def samples_per_ns(
        self, workload: Workload, allocation: GpusByNode, neighbours: Sequence[Neighbour] = ()
    ) -> Fraction:
        """The throughput of a job with this allocation; more than 0.

        Args:
            workload: of the job.
            allocation: the GPUs that it has, 1 or more.
            neighbours: the other jobs that run; empty for an otherwise idle cluster, and if the model does not use
                them.
        """


def gpus_of(allocation: GpusByNode) -> int:
    """The number of GPUs of an allocation."""
    return sum(gpus for _, gpus in allocation)


def spread(gpus: int, per_node: int, one_node: bool) -> GpusByNode:
    """A typical allocation of so many GPUs: on one node, or on the fewest nodes of `per_node` GPUs, but two or more.

    One GPU is always on one node.
    """
    if one_node or gpus == 1:
        return ((0, gpus),)
    nodes = max(2, math.ceil(gpus / per_node))
    least, more = divmod(gpus, nodes)
    return tuple((node, least + (node < more)) for node in range(nodes))


# -- synchronous training by ring all-reduce, as the DRS paper models it -----------------------------------------------
# Every GPU computes a step on its own batch for T_cal, and then all exchange their gradients, of 4 bytes a parameter,
# at the bandwidth of the slowest link of the ring: that inside a node, or that between nodes. Neighbours make no
# difference. Source: DRS (Fu, Hu, Li, Journal of Computer Research and Development 60(6), 2023), Equations 2 and 5.

INSIDE_BYTES_PER_S = 10_000_000_000
"""B_in of the paper: PCIe and QPI."""

BETWEEN_BYTES_PER_S = 6_000_000_000
"""B_out of the paper: InfiniBand."""


@dataclass(frozen=True)
class RingAllReduce:
    """The ring all-reduce model.

    Attributes:
        inside_bytes_per_s: B_in, inside a node.
        between_bytes_per_s: B_out, between nodes.

    Raises:
        UsageError: a bandwidth is less than 1 byte a second.
    """

    inside_bytes_per_s: int = INSIDE_BYTES_PER_S
    between_bytes_per_s: int = BETWEEN_BYTES_PER_S

    def __post_init__(self) -> None:
        for name in ("inside_bytes_per_s", "between_bytes_per_s"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name}: expected 1 or more, got {getattr(self, name)}")

    uses_neighbours: ClassVar[bool] = False

    def samples_per_ns(
        self, workload: Workload, allocation: GpusByNode, neighbours: Sequence[Neighbour] = ()
    ) -> Fraction:
        """See `ThroughputModel`: N batches every T_step."""
        gpus = gpus_of(allocation)
        return Fraction(gpus * workload.batch, self.step_ns(workload, gpus, len(allocation) == 1))

    def step_ns(self, workload: Workload, gpus: int, one_node: bool) -> int:
        """T_step = T_cal + T_comm (Equation 2), in whole ns."""
        return workload.compute_ns + self.communication_ns(workload, gpus, one_node)

    def communication_ns(self, workload: Workload, gpus: int, one_node: bool) -> int:
        """T_comm, of all parameters; see `ring_ns`."""
        bandwidth = self.inside_bytes_per_s if one_node else self.between_bytes_per_s
        return ring_ns(BYTES_PER_PARAMETER * workload.parameters, gpus, bandwidth)


def ring_ns(size_bytes: int, gpus: int, bytes_per_s: int) -> int:
    """2 (N - 1) / N * bytes / B (Equation 5), rounded half up to whole ns."""
    numerator, denominator = 2 * (gpus - 1) * size_bytes * NS_PER_S, gpus * bytes_per_s
    return (2 * numerator + denominator) // (2 * denominator)


# -- a table of X(1), ..., X(W): measured, or from any queueing model --------------------------------------------------


PS_PER_S = 10**12


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
            if not rates or not all(0 < rate < PS_PER_S for rate in rates):
                raise UsageError(f"rates of {name}: expected numbers above 0, got {shown(str(rates))}")

    uses_neighbours: ClassVar[bool] = False

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
        return workload.batch * Fraction(PS_PER_S // NS_PER_S, round(PS_PER_S / rates[workers - 1]))
