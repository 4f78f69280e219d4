"""Elastic EDF with Moore-Hodgson admission that serves small jobs early, the more so the more jobs are given up.

In the order of deadlines alone, GPUs go to large jobs that later arrivals displace: their GPU time is lost. So the
order of service is the time until the deadline plus the job's work, in hours of the whole cluster, times a weight. The
weight grows with the number of jobs that Moore and Hodgson's rule gives up, that is, with the overload: without
overload deadlines decide, under heavy overload the work does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from placement.policies.schedulers.drs.scheme import deadline_of
from placement.policies.schedulers.elastic.elastic_mh import ElasticMh
from placement.policies.schedulers.elastic.shares import work_ns
from placement.policies.schedulers.elastic.speeds import Speeds
from placement.policies.schedulers.scheduler import JobView

WEIGHT = 3
"""Of the work for each job given up, and one more; values from 2 to 6 are equally good on seeds 100 to 149."""


@dataclass(frozen=True)
class ElasticDensity(ElasticMh):
    """Elastic EDF with admission, in the order of deadline and work.

    Attributes:
        weight: of the work of a job against the time until its deadline, per job given up, and one more.
    """

    weight: int = WEIGHT

    @property
    def name(self) -> str:
        """Its name on the command line."""
        return "elastic-density"

    def admitted(
        self, ordered: Sequence[tuple[JobView, Speeds]], needs: dict[str, int], now_ns: int, gpus: int
    ) -> list[tuple[JobView, Speeds]]:
        """The jobs whose work fits before their deadlines, by deadline and work."""
        kept = super().admitted(ordered, needs, now_ns, gpus)
        weight = self.weight * (1 + len(needs) - len(kept))

        def rank(each: tuple[JobView, Speeds]) -> int:
            job, speeds = each
            return gpus * (deadline_of(job) - now_ns) + weight * work_ns(job, speeds, needs[job.name])

        return sorted(kept, key=rank)

    def tiers(
        self,
        ordered: Sequence[tuple[JobView, Speeds]],
        served: Sequence[tuple[JobView, Speeds]],
        needs: dict[str, int],
    ) -> Sequence[Sequence[tuple[JobView, Speeds]]]:
        """The admitted jobs, those that were given up, and those that are late anyway."""
        names = {job.name for job, _ in served}
        given_up = [each for each in ordered if each[0].name in needs and each[0].name not in names]
        late = [each for each in ordered if each[0].name not in needs]
        return served, given_up, late
