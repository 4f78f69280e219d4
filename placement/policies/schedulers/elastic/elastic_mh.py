"""Elastic EDF that gives up the largest jobs first when not all deadlines can be met (Moore-Hodgson).

The machine of Moore and Hodgson's rule is the whole cluster, and the work of a job is its GPUs times its time on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from placement.policies.schedulers.admission import moore_hodgson
from placement.policies.schedulers.drs.scheme import deadline_of
from placement.policies.schedulers.elastic.elastic_edf import ElasticEdf
from placement.policies.schedulers.elastic.shares import work_ns
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
        possible = [each for each in ordered if each[0].name in needs]
        chosen = moore_hodgson.admitted(
            (work_ns(job, speeds, needs[job.name]), gpus * (deadline_of(job) - now_ns))
            for job, speeds in possible
        )
        return [possible[position] for position in chosen]
