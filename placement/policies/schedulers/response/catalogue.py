"""The schedulers of mean response time by name. All GPUs are divided anew whenever a job arrives or ends.

Preemption and changes of width are taken to be free. `rules` has the compiled rules, which simulations call as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from mltcp.core.errors import UsageError
from mltcp.core.policy_names import check_number
from placement.model.cluster import Cluster
from placement.policies.schedulers.elastic import placed
from placement.policies.schedulers.free_gpus import largest_node
from placement.policies.schedulers.response.tables import (
    EQUAL,
    FILL_MARGINAL,
    FILL_NONE,
    FILL_SHORTEST,
    ORDERED,
    POWER,
    PRICED,
    JobSpeeds,
    Present,
    ResponseRule,
    tables_of,
)
from placement.policies.schedulers.response.widths import (
    ALPHA,
    ALPHA_HIGH,
    ALPHA_LOW,
    AllNodes,
    Hell,
    Knee,
    OneNode,
    WidthRule,
    moldable_knee,
)
from placement.policies.schedulers.scheduler import CANDIDATES, Assignment, JobView, Untimed
from placement.policies.schedulers.speeds import speeds_of

MOST_GAMMA = 100.0

DEFAULT_LOAD = 0.5
"""The load that moldable KNEE assumes where none is known."""


@dataclass(frozen=True)
class Settings:
    """The parameters of the schedulers; each uses those that it has.

    Attributes:
        alpha: of KNEE.
        gamma: of the early termination heuristic, for all that serve jobs in an order.
        load: for which moldable KNEE chooses its alpha.
        alpha_low: alpha_L of moldable KNEE.
        alpha_high: alpha_H.
    """

    alpha: float = ALPHA
    gamma: float = 0.0
    load: float = DEFAULT_LOAD
    alpha_low: float = ALPHA_LOW
    alpha_high: float = ALPHA_HIGH


@dataclass(frozen=True)
class ResponseScheduler(Untimed):
    """A compiled rule of division as a scheduler, for every executor and for a live cluster.

    Attributes:
        name: on the command line.
        rule: what `rules.divide` does.
        widths: the rule of widths, of rules of kind `ORDERED`.

    Raises:
        UsageError: gamma is out of range.
    """

    name: str
    rule: ResponseRule
    widths: WidthRule | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.rule.gamma <= MOST_GAMMA:
            raise UsageError(f"gamma: expected 0 to {MOST_GAMMA:g}, got {self.rule.gamma:g}")

    def candidates(
        self, cluster: Cluster, now_ns: int, jobs: Sequence[JobView], most: int = CANDIDATES
    ) -> tuple[Assignment, ...]:
        """See `Scheduler.candidates`. Jobs are in the order of their arrival, which decides between equals."""
        from placement.policies.schedulers.response.rules import divide  # compiled: slow to import

        gpus, per_node = len(cluster.gpus), largest_node(cluster)
        models: dict[JobSpeeds, int] = {}
        present = Present.of(len(jobs))
        for position, job in enumerate(jobs):
            speeds = JobSpeeds(speeds_of(job, gpus, per_node).rates(gpus), min(job.gpus_max, gpus))
            present.model[position] = models.setdefault(speeds, len(models))
            present.size[position], present.left[position] = job.iterations, job.iterations_left
        if jobs:
            divide(self.rule, tables_of(tuple(models), self.widths), present, len(jobs), gpus)
        return (placed(cluster, jobs, {job.name: int(present.nodes[i]) for i, job in enumerate(jobs)}),)


_Factory = Callable[[Settings], ResponseScheduler]


def _ordered(
    name: str, widths: Callable[[Settings], WidthRule], filling: int = FILL_NONE
) -> tuple[str, _Factory]:
    return name, lambda settings: ResponseScheduler(
        name, ResponseRule(ORDERED, filling, settings.gamma), widths(settings)
    )


def _unordered(name: str, kind: int) -> tuple[str, _Factory]:
    return name, lambda settings: ResponseScheduler(name, ResponseRule(kind))


def _knee(settings: Settings) -> Knee:
    return Knee(settings.alpha)


def _hell(settings: Settings) -> Hell:
    return Hell()


def _moldable_knee(settings: Settings) -> Knee:
    return moldable_knee(settings.load, settings.alpha_low, settings.alpha_high)


RESPONSE_SCHEDULERS: Mapping[str, _Factory] = MappingProxyType(
    dict(
        (
            _ordered("srpt", lambda settings: AllNodes()),
            _ordered("waterfill", lambda settings: OneNode(), FILL_SHORTEST),
            _unordered("equi", EQUAL),
            _ordered("knee", _knee),
            _ordered("knee+fill", _knee, FILL_SHORTEST),
            _ordered("knee+marginal", _knee, FILL_MARGINAL),
            _ordered("hell", _hell),
            _ordered("hell+fill", _hell, FILL_SHORTEST),
            _ordered("hell+marginal", _hell, FILL_MARGINAL),
            _ordered("moldable-knee", _moldable_knee),
            _ordered("moldable-hell", lambda settings: Hell(moldable=True)),
            _unordered("hesrpt", POWER),
            _unordered("node-price", PRICED),
        )
    )
)
"""A factory a name."""


# -- JSQ-Chunk ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JsqChunk(Untimed):
    """JSQ-Chunk with floor(W / k) chunks of k GPUs, first come first served without preemption.

    Unlike other schedulers this one remembers something: which chunk a waiting job has joined. Where it does not know,
    as after a restart of the program, waiting jobs join anew in the order of their arrival.

    Attributes:
        chunk: k.

    Raises:
        UsageError: k is out of range.
    """

    chunk: int
    _joined: dict[tuple[str, int], int] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_number(self.chunk, "jsq-chunk-K")

    @property
    def name(self) -> str:
        """Its name on the command line."""
        return f"jsq-chunk-{self.chunk}"

    def candidates(
        self, cluster: Cluster, now_ns: int, jobs: Sequence[JobView], most: int = CANDIDATES
    ) -> tuple[Assignment, ...]:
        """See `Scheduler.candidates`. Jobs are in the order of their arrival.

        Raises:
            UsageError: a chunk is larger than the cluster.
        """
        chunks = check_chunk(self.chunk, len(cluster.gpus))
        joined = self._join(jobs, chunks)
        assignment: dict[str, tuple[int, ...]] = {}
        busy = set()
        for job in sorted(jobs, key=lambda job: not job.gpus):
            chunk = joined[job.name]
            if chunk not in busy:
                busy.add(chunk)
                first = chunk * self.chunk
                assignment[job.name] = job.gpus or tuple(range(first, first + min(self.chunk, job.gpus_max)))
        return (assignment,)

    def _join(self, jobs: Sequence[JobView], chunks: int) -> Mapping[str, int]:
        """The chunk of every job; new ones join the shortest queue."""
        from placement.policies.schedulers.response.rules import shortest_queue  # compiled: slow to import

        present = {(job.name, job.arrival_ns) for job in jobs}
        for gone in set(self._joined) - present:
            del self._joined[gone]
        for job in jobs:
            if job.gpus:
                self._joined[job.name, job.arrival_ns] = job.gpus[0] // self.chunk
        for job in jobs:
            if (job.name, job.arrival_ns) not in self._joined:
                lengths = np.bincount(list(self._joined.values()), minlength=chunks)
                self._joined[job.name, job.arrival_ns] = shortest_queue(lengths)
        return {name: chunk for (name, _), chunk in self._joined.items()}


def check_chunk(chunk: int, nodes: int) -> int:
    """The number of chunks.

    Raises:
        UsageError: a chunk is larger than the cluster.
    """
    if chunk > nodes:
        raise UsageError(f"jsq-chunk-K: expected K up to the {nodes} nodes of the cluster, got {chunk}")
    return nodes // chunk
