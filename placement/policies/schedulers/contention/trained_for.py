"""The cluster and jobs that a checkpoint was trained for; others, for which it has no meaning, are refused."""

from __future__ import annotations

from collections.abc import Sequence

from mltcp.core.errors import UsageError
from placement.model.cluster import Cluster
from placement.policies.schedulers.contention.checkpoint import CheckpointHeader
from placement.policies.schedulers.contention.profiles import TableProfile, kind_of, name_of
from placement.policies.schedulers.contention.tables import kinds_on
from placement.policies.schedulers.scheduler import JobView


def check_trained_for(name: str, header: CheckpointHeader, cluster: Cluster, jobs: Sequence[JobView]) -> None:
    """Refuse another cluster, and jobs whose kinds are numbered otherwise than those that the network knows.

    Args:
        name: of the scheduler, for the message.
        header: of the checkpoint.
        cluster: that it is to decide for.
        jobs: all that run or wait.

    Raises:
        UsageError: it was trained for others.
    """
    sizes = tuple(len(server.gpus) for server in cluster.servers)
    if sizes != (header.gpus,) * header.nodes:
        expected = f"{header.nodes} nodes of {header.gpus} GPUs"
        raise UsageError(f"{name}: cluster: expected {expected}, got nodes of {sizes}")
    kinds = [kind_of(job) for job in jobs]
    if not all(isinstance(kind.profile, TableProfile) for kind in kinds):
        raise UsageError(f"{name}: jobs: expected all of one table of throughputs, got others")
    given = tuple(map(name_of, kinds_on(sizes, kinds)))
    if given != header.kinds:
        raise UsageError(f"{name}: kinds of jobs: expected {', '.join(header.kinds)}, got {', '.join(given)}")


def check_view(name: str, header: CheckpointHeader, view: str, others: str) -> None:
    """Refuse a checkpoint whose network sees and does something else.

    Raises:
        UsageError: it does.
    """
    if header.view != view:
        raise UsageError(f"{name}: view: expected {view}, got {header.view}: it is a policy of {others}")
