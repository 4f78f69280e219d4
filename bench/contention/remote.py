"""Real hosts as the place of a contention measurement."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from bench.compare.results.runs import HostFacts
from bench.contention.contention import RANKS, Arena, ContentionPlan
from bench.hosts.connection import connected
from bench.hosts.hosts_file import HostsFile
from bench.hosts.messages import ReadBusy, StartMeasuring, StopMeasuring
from bench.hosts.placement import two_sided
from bench.hosts.session import Session
from bench.workloads.rank_pool import StandingJob, StandingJobs, standing


@dataclass(frozen=True)
class RemoteArena:
    """Hosts whose jobs wait for rounds."""

    jobs: StandingJobs
    session: Session

    @property
    def facts(self) -> tuple[HostFacts, ...]:
        """The facts of all hosts."""
        return self.session.facts

    @property
    def processors(self) -> int:
        """The processors of all hosts together."""
        return sum(host.processors for host in self.facts)

    def busy_s(self) -> float:
        """The time since boot for which these processors were busy."""
        return float(sum(self.session.on_all(ReadBusy()).values()))

    def start_measuring(self) -> None:
        """Count the drops of the hosts' interfaces, and the marked packets that arrive, from now on."""
        self.session.on_all(StartMeasuring(()))

    def drops_and_marks(self) -> tuple[int, int]:
        """The packets that were dropped, and those that arrived marked, since."""
        found = self.session.on_all(StopMeasuring()).values()
        return sum(each.drops for each in found), sum(each.ce_packets for each in found)


def remote_arena(hosts: HostsFile) -> Arena:
    """The arena on these hosts: half of the ranks on the first half of the hosts, the others on the rest."""

    @contextmanager
    def arena(plan: ContentionPlan) -> Iterator[RemoteArena]:
        placed = two_sided(hosts.hosts, max(plan.jobs), RANKS)
        with connected(hosts) as agents:
            session = Session(agents)
            control = plan.policy.control
            session.check_controls([control])
            jobs = [
                StandingJob(f"job-{number + 1}", session.place(ranks, lambda rank: ()), control)
                for number, ranks in enumerate(placed)
            ]
            launcher = session.launcher(placed, control, plan.policy.job)
            with session.lost_hosts_blamed(), standing(jobs, launcher) as ready:
                yield RemoteArena(ready, session)

    return arena
