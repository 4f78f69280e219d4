"""The kinds of jobs of the lab: the models of Table III of the HELL paper, at a size that two cores can replay.

The ratio of computing to transfer of each model is the paper's; a mini-batch takes about a quarter of a second. Their
sizes are nearer to each other than the paper's, which differ by a factor of 160.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bench.lab.link import ETHERNET_HEADER_BYTES, Link
from bench.workloads.parameter_server.job import ELEMENT_BYTES, ReplayWork
from mltcp.core.errors import UsageError
from placement.model.service_times import ServiceTimes
from placement.model.throughput import Workload

LINK = Link(40_000_000, 60_000, None)
"""At the port of each parameter server."""

_IP_TCP_BYTES = 52


@dataclass(frozen=True)
class JobKind:
    """A model that jobs train, by sleeping workers.

    Attributes:
        name: of the model.
        size_bytes: of a gradient, and of the weights.
        worker_s: S^W.
        server_s: S^S.
        batches_an_epoch: mini-batches.
        epochs: the mean of its jobs.
    """

    name: str
    size_bytes: int
    worker_s: float
    server_s: float
    batches_an_epoch: float
    epochs: int

    def work(self, seed: int) -> ReplayWork:
        """The work of workers and server; sleeps vary by 5 %."""
        return ReplayWork(self.size_bytes, self.worker_s, self.server_s, seed=seed)

    def workload(self, batches: int | None = None) -> Workload:
        """The training of so many mini-batches, or of a mean job."""
        mean = max(1, round(self.batches_an_epoch * self.epochs))
        parameters = self.size_bytes // ELEMENT_BYTES
        return Workload(self.name, parameters, 1, round(self.worker_s * 1e9), batches or mean, 1)

    def nominal(self, link: Link) -> ServiceTimes:
        """The service times by the rate of the link; arrivals are drawn for these, so that they are always the same."""
        payload = (link.mtu - _IP_TCP_BYTES) / (link.mtu + ETHERNET_HEADER_BYTES)
        link_s = 8 * self.size_bytes / (payload * link.rate_bps)
        return ServiceTimes(self.worker_s, link_s, self.server_s, link_s)


KINDS = (
    JobKind("NiN", 50_000, 0.24, 0.002, 0.2, 200),
    JobKind("GoogLeNet", 60_000, 0.23, 0.002, 1.0, 200),
    JobKind("AlexNet", 250_000, 0.15, 0.002, 2.0, 90),
    JobKind("VGG19", 60_000, 0.27, 0.002, 5.0, 74),
)


def kinds_named(names: Iterable[str]) -> tuple[JobKind, ...]:
    """The kinds of these models, in the order of the table.

    Raises:
        UsageError: there is no such kind.
    """
    wanted = set(names)
    known = {kind.name for kind in KINDS}
    for name in sorted(wanted - known):
        raise UsageError(f"model: expected {', '.join(sorted(known))}, got {name!r}")
    return tuple(kind for kind in KINDS if kind.name in wanted)
