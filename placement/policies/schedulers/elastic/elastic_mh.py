"""Elastic EDF that gives up the largest jobs first when not all deadlines can be met (Moore-Hodgson).

The rule of Moore and Hodgson (Management Science 15(1), 1968) minimises the number of late jobs on one machine: jobs
are admitted by deadline, and whenever their work exceeds the time until the deadline of the last one, the job with the
most work is dropped. Here the machine is the whole cluster, and the work of a job is its GPUs times its time on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from placement.policies.schedulers.drs.scheme import deadline_of
from placement.policies.schedulers.elastic.elastic_edf import ElasticEdf
from placement.policies.schedulers.elastic.shares import restart_of
from placement.policies.schedulers.elastic.speeds import Speeds
from placement.policies.schedulers.scheduler import JobView


@dataclass(frozen=True)
class ElasticMh(ElasticEdf):
    """Elastic EDF with admission by Moore and Hodgson's rule."""

    @property
    def name(self) -> str:
        """Its name on the command line."""
        return "elastic-mh"

    def admitted(
        self, ordered: Sequence[tuple[JobView, Speeds]], needs: dict[str, int], now_ns: int, gpus: int
    ) -> list[tuple[JobView, Speeds]]:
        """The jobs whose work fits before their deadlines; what the dropped ones get is what is left over."""
        kept: list[tuple[JobView, Speeds]] = []
        work: list[int] = []
        for job, speeds in ordered:
            if job.name not in needs:
                continue
            need = needs[job.name]
            run_ns = -int(-(job.iterations_left * speeds.time_ns(need)) // 1)
            kept.append((job, speeds))
            work.append(need * (run_ns + restart_of(job, need)))
            if sum(work) > gpus * (deadline_of(job) - now_ns):
                largest = work.index(max(work))
                del kept[largest], work[largest]
        return kept
