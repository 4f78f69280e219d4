"""EQUI: equal numbers of GPUs for all jobs, as far as they can use them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from placement.model.cluster import Cluster
from placement.policies.schedulers.response.rates import assigned, rated
from placement.policies.schedulers.response.widths import fewest_width, peak_width
from placement.policies.schedulers.scheduler import CANDIDATES, Assignment, JobView, Untimed


@dataclass(frozen=True)
class EqualShares(Untimed):
    """One GPU at a time goes to the job with the fewest, of those that are not at their highest speed."""

    @property
    def name(self) -> str:
        """Its name on the command line."""
        return "equi"

    def candidates(
        self, cluster: Cluster, now_ns: int, jobs: Sequence[JobView], most: int = CANDIDATES
    ) -> tuple[Assignment, ...]:
        """See `Scheduler.candidates`. Jobs are in the order of their arrival, which decides between equals."""
        present = rated(cluster, jobs)
        shares = {each.job.name: 0 for each in present}
        left = len(cluster.gpus)
        growing = [(each, fewest_width(each.speeds), peak_width(each.speeds)) for each in present]
        while left > 0:
            growing = [
                (each, fewest, peak)
                for each, fewest, peak in growing
                if shares[each.job.name] < peak and (shares[each.job.name] or fewest <= left)
            ]
            if not growing:
                break
            least, fewest, _ = min(growing, key=lambda found: shares[found[0].job.name])
            more = 1 if shares[least.job.name] else fewest
            shares[least.job.name] += more
            left -= more
        return assigned(cluster, present, shares)
