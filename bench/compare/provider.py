"""Providers of hosts for contests, in a lab or reached by ssh, and the order of the runs on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from bench.compare.approach import Approach, Policy
from bench.compare.contest import Contest
from bench.compare.results.runs import ApproachRun, HostFacts, HostUse, Measured
from bench.lab.bottleneck import LinkUse
from bench.lab.processors import BUSY
from bench.workloads.job import JobResult

Progress = Callable[[str, int], None]
"""Called with the approach's name and the repeat whenever a job has finished an iteration."""

Turn = Callable[[Approach, int, Progress], ApproachRun]
"""Runs an approach once, in the given repeat."""


class LoadMeter(Protocol):
    """Measures the load of other programs from its construction on."""

    def share(self) -> float:
        """The share of the processors' time, from 0 to 1, that other programs have used so far."""


@dataclass(frozen=True)
class Turns:
    """The order of the runs of a comparison.

    Attributes:
        approaches: as listed in the result. Isolated jobs run first in a repeat: Cassini works with their profiles.
        load_meter: starts to measure the load of other programs; None: the runs are simulated, and none disturbs them.
        repeat: how often each of them runs.
        retry_busy: how often a run is repeated that other programs disturbed.
    """

    approaches: Sequence[Approach]
    load_meter: Callable[[], LoadMeter] | None
    repeat: int = 1
    retry_busy: int = 0

    def run(
        self, measured: Measured, turn: Turn, progress: Progress, keep: Callable[[Measured], None]
    ) -> Measured:
        """Add all runs to `measured`; `keep` is called with the runs so far after each of them."""
        order = [approach.name for approach in self.approaches]
        for repeat in range(self.repeat):
            for approach in sorted(self.approaches, key=lambda approach: not approach.isolated):
                run = self._undisturbed(approach, repeat, turn, progress)
                runs = sorted((*measured.runs, run), key=lambda run: (run.repeat, order.index(run.approach)))
                measured = replace(measured, runs=tuple(runs))
                keep(measured)
        return measured

    def _undisturbed(self, approach: Approach, repeat: int, turn: Turn, progress: Progress) -> ApproachRun:
        """The first run that was not disturbed or, if none was, the one with the least load of other programs."""
        best = self._observed(approach, repeat, turn, progress)
        for _ in range(self.retry_busy):
            if _load(best) <= BUSY:
                break
            # Iterations of a retry are not counted: the progress bar has no steps for them.
            again = self._observed(approach, repeat, turn, lambda name, repeat: None)
            best = min(best, again, key=_load)
        return best

    def _observed(self, approach: Approach, repeat: int, turn: Turn, progress: Progress) -> ApproachRun:
        if self.load_meter is None:
            return turn(approach, repeat, progress)
        others = self.load_meter()
        run = turn(approach, repeat, progress)
        return replace(run, other_load=others.share())


def _load(run: ApproachRun) -> float:
    return run.other_load or 0.0


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
