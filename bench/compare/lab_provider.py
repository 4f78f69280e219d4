"""The lab as a provider of hosts."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.compare.approaches.approach import Approach
from bench.compare.approaches.policy import Policy
from bench.compare.contest import Contest
from bench.compare.launch import loaded_controls, run_group
from bench.compare.provider import Environment, GroupOutcome, HostProvider, Provide, ProvidedHost
from bench.compare.results.hosts import HostFacts
from bench.lab.lab import Lab
from bench.lab.network import namespaces
from bench.lab.processors import OtherPrograms
from bench.lab.topology import dumbbell
from mltcp.ebpf.congestion_controls import Controls


class LabHosts:
    """The hosts of a contest in a lab of its own."""

    facts: tuple[HostFacts, ...] = ()

    def __init__(self, contest: Contest, lab: Lab, controls: Controls, directory: Path) -> None:
        self.directory = directory
        self._contest, self._lab, self._controls = contest, lab, controls

    def hosts_of(self, index: int) -> tuple[ProvidedHost, ...]:
        """The host of each rank of a job, in order."""
        return tuple(ProvidedHost(each.name, each.switch) for each in self._lab.topology.hosts_of(index))

    def load_meter(self) -> OtherPrograms:
        """Start to measure the load of other programs on this machine."""
        return OtherPrograms()

    def run_group(
        self,
        policy: Policy,
        group: Sequence[int],
        step: Callable[[], None],
        *,
        offsets_s: Sequence[float],
        environment: Environment,
    ) -> GroupOutcome:
        """Run some of the contest's jobs side by side under a policy, as `HostProvider.run_group` says."""
        results, use = run_group(
            self._contest,
            policy,
            group,
            self._lab,
            self._controls,
            step,
            offsets_s=offsets_s,
            environment=environment,
        )
        return GroupOutcome(results, use)


class LabSource:
    """Provides a lab for each contest."""

    @contextmanager
    def opened(self, approaches: Sequence[Approach]) -> Iterator[Provide]:
        """Load the congestion controls that the approaches need.

        Raises:
            NotAvailableError: not root, or the kernel lacks something.
        """
        namespaces.require_privileges()
        with loaded_controls([approach.policy for approach in approaches]) as controls:

            @contextmanager
            def provide(contest: Contest) -> Iterator[HostProvider]:
                topology = dumbbell(len(contest.jobs), contest.ranks, contest.link)
                with (
                    Lab(topology, ecn_by=contest.ecn_by) as lab,
                    tempfile.TemporaryDirectory("-compare") as directory,
                ):
                    yield LabHosts(contest, lab, controls, Path(directory))

            yield provide
