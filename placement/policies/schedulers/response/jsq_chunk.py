"""JSQ-Chunk: fixed chunks of GPUs; a job joins the chunk with the fewest jobs, where it waits for its turn.

Source: Berg, Dorsman and Harchol-Balter, "Towards optimality in parallel scheduling", 2017, as the HELL paper uses it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mltcp.core.errors import UsageError
from mltcp.core.policy_names import check_number
from placement.model.cluster import Cluster
from placement.policies.schedulers.scheduler import CANDIDATES, Assignment, JobView, Untimed


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
        """The chunk of every job; new ones join the shortest queue, the first of equals."""
        present = {(job.name, job.arrival_ns) for job in jobs}
        for gone in set(self._joined) - present:
            del self._joined[gone]
        for job in jobs:
            if job.gpus:
                self._joined[job.name, job.arrival_ns] = job.gpus[0] // self.chunk
        for job in jobs:
            if (job.name, job.arrival_ns) not in self._joined:
                lengths = [0] * chunks
                for chunk in self._joined.values():
                    lengths[chunk] += 1
                self._joined[job.name, job.arrival_ns] = lengths.index(min(lengths))
        return {name: chunk for (name, _), chunk in self._joined.items()}


def check_chunk(chunk: int, nodes: int) -> int:
    """The number of chunks.

    Raises:
        UsageError: a chunk is larger than the cluster.
    """
    if chunk > nodes:
        raise UsageError(f"jsq-chunk-K: expected K up to the {nodes} nodes of the cluster, got {chunk}")
    return nodes // chunk
