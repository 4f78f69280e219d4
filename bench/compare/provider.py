"""Providers of hosts: the machines on which the jobs of a contest run, in a lab or reached by ssh."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bench.compare.approaches.approach import Approach
from bench.compare.approaches.policy import Policy
from bench.compare.contest import Contest
from bench.compare.results.hosts import HostFacts, HostUse
from bench.compare.turns import LoadMeter
from bench.lab.bottleneck import LinkUse
from bench.workloads.job import JobResult

Environment = Callable[[str, int], tuple[tuple[str, str], ...]]
"""Returns further environment variables of a rank, given the job's name and the rank.

A path in the provider's directory, or ``unix:`` and such a path, becomes the one that means the same on the host of
a rank: a file that the rank writes there comes back when the jobs have ended, and a socket is forwarded.
"""


@dataclass(frozen=True)
class ProvidedHost:
    """The host of a rank: its name, and the switch or side of the bottleneck on which it is."""

    name: str
    switch: str


@dataclass(frozen=True)
class GroupOutcome:
    """Jobs that ran side by side: the result of each, the use of the bottleneck, and the counters of real hosts."""

    results: list[JobResult]
    use: LinkUse
    hosts: tuple[HostUse, ...] = ()


class HostProvider(Protocol):
    """The hosts of one contest."""

    @property
    def facts(self) -> tuple[HostFacts, ...]:
        """The facts of real hosts; empty in a lab, whose conditions are in the contest."""

    @property
    def directory(self) -> Path:
        """A directory of this machine for the coordinators' sockets and for files that ranks write."""

    def hosts_of(self, index: int) -> tuple[ProvidedHost, ...]:
        """The host of each rank of a job, in order; ranks that share one have names of their own there."""

    def load_meter(self) -> LoadMeter:
        """Start to measure the load of other programs."""

    def run_group(
        self,
        policy: Policy,
        group: Sequence[int],
        step: Callable[[], None],
        *,
        offsets_s: Sequence[float],
        environment: Environment,
    ) -> GroupOutcome:
        """Run some of the contest's jobs side by side under a policy.

        Args:
            policy: their congestion control.
            group: the jobs to run, by index.
            step: called after every iteration of a job.
            offsets_s: by how much later each job starts.
            environment: further environment variables of the ranks.

        Raises:
            MltcpError: a rank failed, or connections used another congestion control than the policy's.
        """


Provide = Callable[[Contest], AbstractContextManager[HostProvider]]
"""Provides the hosts of a contest for as long as the context lasts."""


class ProviderSource(Protocol):
    """A kind of hosts."""

    def opened(self, approaches: Sequence[Approach]) -> AbstractContextManager[Provide]:
        """Prepare the hosts for these approaches; everything is undone at the end of the context.

        Raises:
            MltcpError: they cannot be had.
        """
