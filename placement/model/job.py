"""Training jobs as they are placed and simulated: iterations of forward, backward and all-reduce (Fig. 3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from mltcp.core.errors import UsageError


@dataclass(frozen=True)
class Model:
    """A neural network as in Table III.

    Attributes:
        name: of the network.
        size_bytes: sigma^k, what an all-reduce moves.
        forward_ns: t_f, of one mini-batch on a GPU of performance 1.
        backward_ns: t_b.
        memory_mb: what a worker occupies of its GPU's memory.
        batch_size: B_k, of one worker.
    """

    name: str
    size_bytes: int
    forward_ns: int
    backward_ns: int
    memory_mb: int
    batch_size: int = 1

    def __post_init__(self) -> None:
        for name in ("size_bytes", "forward_ns", "backward_ns", "memory_mb", "batch_size"):
            if getattr(self, name) < 0:
                raise UsageError(
                    f"model {self.name!r}: {name}: expected 0 or more, got {getattr(self, name)}"
                )

    @property
    def compute_ns(self) -> int:
        """t_f + t_b."""
        return self.forward_ns + self.backward_ns


@dataclass(frozen=True)
class Job:
    """J_k of Table II.

    Attributes:
        job_id: k; also decides between jobs that are equal in everything else.
        arrival_ns: A_k.
        gpus: |G(J_k)|, the number of its workers.
        iterations: I_k.
        model: what is trained.
    """

    job_id: int
    arrival_ns: int
    gpus: int
    iterations: int
    model: Model

    def __post_init__(self) -> None:
        least = {"arrival_ns": 0, "gpus": 1, "iterations": 1, "job_id": 0}
        for name, lowest in least.items():
            value = getattr(self, name)
            if value < lowest:
                raise UsageError(f"job {self.job_id}: {name}: expected {lowest} or more, got {value}")

    @property
    def compute_ns(self) -> int:
        """C_Jk of Eq. 7: what each worker computes, from beginning to end."""
        return self.model.compute_ns * self.iterations

    @property
    def service_ns(self) -> int:
        """C_Jk * |G(J_k)|: what SRSF ranks jobs by, before they run. Communication does not count (IV-A)."""
        return self.compute_ns * self.gpus


class Kind(Enum):
    """The three kinds of tasks of an iteration: f^k, b^k and c^k of Table II."""

    FORWARD = "forward"
    BACKWARD = "backward"
    ALL_REDUCE = "all-reduce"


@dataclass(frozen=True)
class Task:
    """tau^k_{l,m} of Table II: iteration l; the worker is -1 for the all-reduce, in which all take part."""

    iteration: int
    kind: Kind
    worker: int = -1


def iteration_graph(job: Job, iteration: int) -> Mapping[Task, tuple[Task, ...]]:
    """D^k_l of Table II: the tasks of an iteration (counted from 0), each with those that must end before it."""
    before = () if iteration == 0 else (Task(iteration - 1, Kind.ALL_REDUCE),)
    graph: dict[Task, tuple[Task, ...]] = {}
    for worker in range(job.gpus):
        graph[Task(iteration, Kind.FORWARD, worker)] = before
        graph[Task(iteration, Kind.BACKWARD, worker)] = (Task(iteration, Kind.FORWARD, worker),)
    workers = range(job.gpus)
    graph[Task(iteration, Kind.ALL_REDUCE)] = tuple(
        Task(iteration, Kind.BACKWARD, worker) for worker in workers
    )
    return graph
