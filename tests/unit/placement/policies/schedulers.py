"""Jobs as schedulers see them, for tests."""

from __future__ import annotations

from dataclasses import dataclass

from placement.policies.schedulers.scheduler import JobView
from placement.simulator.scheduled_cluster import two_tier

S = 10**9
RACKS = two_tier(4, 2)
"""8 GPUs in 4 racks."""


@dataclass(frozen=True)
class Steady:
    """An iteration takes this long; longer across racks."""

    second: float = 1.0
    across: float = 1.0

    def iteration_ns(self, workers, one_node):
        return self.second * S * (1 if one_node else self.across)


def view(name, wanted=2, least=None, most=None, *, done=0, iterations=100, **others):
    return JobView(
        name=name,
        arrival_ns=others.pop("arrival_ns", 0),
        gpus_wanted=wanted,
        gpus_min=least or wanted,
        gpus_max=most or wanted,
        iterations=iterations,
        iterations_left=iterations - done,
        times=others.pop("times", Steady()),
        **others,
    )


def check_complete(cluster, assignment, jobs):
    """No GPU twice, none that is not there, and as many as each job may have."""
    used = [gpu for gpus in assignment.values() for gpu in gpus]
    assert len(used) == len(set(used))
    assert all(0 <= gpu < len(cluster.gpus) for gpu in used)
    bounds = {job.name: (job.gpus_min, job.gpus_max) for job in jobs}
    for name, gpus in assignment.items():
        assert bounds[name][0] <= len(gpus) <= bounds[name][1]
        assert list(gpus) == sorted(gpus)
