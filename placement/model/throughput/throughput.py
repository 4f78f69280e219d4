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
from typing import Protocol, TypeAlias

from mltcp.core.errors import UsageError

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
        for field in ("parameters", "batch", "compute_ns", "samples", "epochs"):
            if getattr(self, field) < 1:
                raise UsageError(
                    f"workload {self.name!r}: {field}: expected 1 or more, got {getattr(self, field)}"
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
        ...

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
        ...


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
