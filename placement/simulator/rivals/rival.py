"""The interface of the rivals: what may be decided about running jobs beside their scheduler and congestion control."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from placement.model.cluster import Cluster
from placement.policies.schedulers.scheduler import CANDIDATES, Assignment, JobView, Scheduler, jobs_to_stop
from placement.simulator.network.network_cluster import NetworkCluster
from placement.simulator.network.routing import Route
from placement.simulator.network.traffic import NetworkJob, RemainingClass


@dataclass(frozen=True)
class SteeredJob:
    """A running job as a rival sees it.

    Attributes:
        placed: its name, its traffic of an iteration, and its hosts and GPUs.
        routes: those of its messages that ECMP gives.
        iteration_ns: alone on the network.
        compute_ns: of these, without messages.
        iterations_left: that it has to do.
        traffic_class: by the decision before; None: it has started since.
        silence_ns: of these, before its first message.
        done: iterations.
        ready_ns: from now until the next iteration that has not sent yet can send, if nothing hinders the job.
        sending_ns: from now until the present iteration has sent, likewise; 0: it does not send.
    """

    placed: NetworkJob
    routes: tuple[Route, ...]
    iteration_ns: int
    compute_ns: int
    iterations_left: float
    traffic_class: int | None = None
    silence_ns: int = 0
    done: int = 0
    ready_ns: float = 0.0
    sending_ns: float = 0.0

    @property
    def name(self) -> str:
        """Unique."""
        return self.placed.name

    @property
    def workers(self) -> int:
        """One a GPU."""
        return self.placed.traffic.workers


@dataclass(frozen=True)
class Steering:
    """How the traffic of running jobs is treated until the next decision.

    Attributes:
        routes: of each message of a job, no longer than ECMP's; a job that is left out keeps those that it has.
        classes: the traffic class of a job; a job that is left out has class 0.
        sends_ns: from now until each iteration of a job, from the next one that has not sent yet, may send; a job that
            is left out, and later iterations, send when they can.
        holds_ns: how long this decision holds, at most; 0: until jobs start or end.
    """

    routes: Mapping[str, tuple[Route, ...]] = field(default_factory=dict)
    classes: Mapping[str, int] = field(default_factory=dict)
    sends_ns: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    holds_ns: float = 0.0


class Rival:
    """An approach that is asked when jobs start or end, and when its decision no longer holds.

    Attributes:
        name: on the command line.
        prioritises: whether it needs strict priorities on all ports: those without classes get them.
        moves: whether it moves running jobs, whose state then goes through the network.
        remaining: the traffic class of all messages, if it follows from what their iteration has left.
    """

    name: ClassVar[str]
    prioritises: ClassVar[bool] = False
    moves: ClassVar[bool] = False
    remaining: ClassVar[RemainingClass | None] = None

    def check(self) -> None:
        """Raise UsageError if something that it needs is missing."""

    def moved(self, cluster: NetworkCluster, jobs: Sequence[JobView], assignment: Assignment) -> Assignment:
        """An assignment of the same jobs to as many GPUs each, some of them others; jobs as before it."""
        return assignment

    def steer(self, cluster: NetworkCluster, jobs: Sequence[SteeredJob]) -> Steering:
        """The routes and traffic classes of running jobs, and when they send."""
        return Steering()


@dataclass(frozen=True)
class MovingScheduler:
    """A scheduler whose candidates a rival changes.

    Attributes:
        scheduler: makes the candidates.
        rival: moves their jobs.
    """

    scheduler: Scheduler
    rival: Rival

    @property
    def name(self) -> str:
        """Both names."""
        return f"{self.scheduler.name}+{self.rival.name}"

    @property
    def lease_ns(self) -> int | None:
        """The scheduler's."""
        return self.scheduler.lease_ns

    def candidates(
        self, cluster: Cluster, now_ns: int, jobs: Sequence[JobView], most: int = CANDIDATES
    ) -> tuple[Assignment, ...]:
        """See `Scheduler.candidates`."""
        assert isinstance(cluster, NetworkCluster), "rivals decide about networks"
        found = self.scheduler.candidates(cluster, now_ns, jobs, most)
        return tuple(self.rival.moved(cluster, jobs, each) for each in found)

    def next_ns(self, now_ns: int, jobs: Sequence[JobView]) -> int | None:
        """The scheduler's."""
        return self.scheduler.next_ns(now_ns, jobs)

    def stops(self, now_ns: int, jobs: Sequence[JobView]) -> tuple[str, ...]:
        """The scheduler's."""
        return jobs_to_stop(self.scheduler, now_ns, jobs)
