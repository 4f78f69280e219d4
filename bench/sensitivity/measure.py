"""Measures the points of a plan in a lab of four hosts on one switch, with ranks that stay."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

from bench.compare.approach import Policy
from bench.compare.launch import loaded_controls
from bench.compare.results.journal import writable
from bench.lab.lab import Lab
from bench.lab.link import Link
from bench.lab.network import namespaces
from bench.lab.placement import label_of
from bench.lab.processors import OtherPrograms
from bench.lab.topology import MAX_JOBS, LabServer, LabSwitch, Topology, Trunk
from bench.sensitivity.plan import HOSTS, SensitivityPlan, SensitivityPoint, work_of
from bench.sensitivity.result import SensitivityRun, run_from_line, second_attempts
from bench.workloads.place import RankPlace
from bench.workloads.rank import PatternRequest, PatternTimes, pattern_rank_main
from bench.workloads.rank_pool import StandingJob, StandingRanks, standing_ranks
from mltcp.core.errors import MltcpError, UsageError
from mltcp.ebpf.congestion_controls import Controls
from mltcp.ebpf.jobs import attached
from placement.experiments.run_journal import open_journal

START_DELAY_S = 0.1
_SWITCH = "switch"
_NODES = (2, 4)
_SIDES = 2


@contextmanager
def sensitivity_testbed(plan: SensitivityPlan) -> Iterator[SensitivityTestbed]:
    """The lab of a plan with all of its ranks ready; removed at the end.

    Raises:
        NotAvailableError: not root, or the kernel lacks something.
        RankError: a rank did not get ready.
        UsageError: there are more controls than the lab has numbers of jobs for.
    """
    namespaces.require_privileges()
    most = MAX_JOBS // (len(_NODES) * _SIDES)
    if len(plan.policies) > most:
        raise UsageError(f"--policies: expected up to {most}, got {len(plan.policies)}")
    with (
        loaded_controls(plan.policies) as controls,
        Lab(hosts_on_a_switch(plan.link)) as lab,
        ExitStack() as stack,
    ):
        slots = [
            (policy.name, side, nodes)
            for policy in plan.policies
            for side in range(_SIDES)
            for nodes in _NODES
        ]
        policies = {policy.name: policy for policy in plan.policies}
        jobs = [
            _placed(number, policies[name], nodes, lab, controls, stack)
            for number, (name, _, nodes) in enumerate(slots)
        ]
        with standing_ranks(jobs, pattern_rank_main) as ranks:
            yield SensitivityTestbed(plan, ranks, slots)


def hosts_on_a_switch(link: Link) -> Topology:
    """Four hosts for ranks of any jobs, each on one link to the switch."""
    names = [f"n{number}" for number in range(HOSTS)]
    return Topology(
        hosts=(),
        switches=(LabSwitch(_SWITCH),),
        trunks=tuple(Trunk(name, name, _SWITCH, link) for name in names),
        servers=tuple(LabServer(name, number, slots=MAX_JOBS) for number, name in enumerate(names)),
    )


def _placed(
    number: int, policy: Policy, nodes: int, lab: Lab, controls: Controls, stack: ExitStack
) -> StandingJob:
    """A job on the first nodes, with an entry of its own on each, as on separate machines."""
    name = f"{policy.control}-{number}"
    servers = [server.name for server in lab.topology.servers[:nodes]]
    places = []
    for server, address in zip(servers, lab.place(number, servers), strict=True):
        job = policy.job(f"{name}@{server}")
        cgroup = stack.enter_context(attached(job, policy.control, controls)).cgroup
        places.append(RankPlace(lab.namespace(server), label_of(number), address, cgroup))
    return StandingJob(name, tuple(places), policy.control)


class SensitivityTestbed:
    """A lab in which the points of a plan are measured one after the other; made by `sensitivity_testbed`."""

    def __init__(
        self, plan: SensitivityPlan, ranks: StandingRanks, slots: Sequence[tuple[str, int, int]]
    ) -> None:
        self._plan, self._ranks = plan, ranks
        self._positions = {slot: position for position, slot in enumerate(slots)}

    def run(self, point: SensitivityPoint) -> SensitivityRun:
        """Measure a point.

        Raises:
            RankError: a rank failed.
            MltcpError: a job has made no iteration within the time.
        """
        plan, others = self._plan, OtherPrograms()
        seconds = plan.seconds_of(point)
        positions = [
            self._positions[point.control, side, layout.nodes] for side, layout in enumerate(point.layouts)
        ]
        begin_s = time.monotonic() + START_DELAY_S
        until_s = begin_s + plan.warm_up_s + seconds
        for side, (layout, position) in enumerate(zip(point.layouts, positions, strict=True)):
            work = work_of(layout, plan.table, plan.link.rate_bps)
            start_s = begin_s + side * plan.phase_s(point)
            self._ranks.tell([position], PatternRequest(work, start_s, until_s))
        times: dict[int, PatternTimes] = {}
        for rank, message in self._ranks.answers(positions):
            if rank.number == 0:
                times[rank.job] = message
        counted = [_counted(times[position], begin_s + plan.warm_up_s, until_s) for position in positions]
        for layout, found in zip(point.layouts, counted, strict=True):
            if not found:
                raise MltcpError(f"{layout}: no iteration within {seconds:g} s; give it more --seconds")
        return SensitivityRun(
            plan.key(point),
            point.control,
            point.layouts,
            point.repeat,
            point.block is not None,
            tuple(counted),
            begin_s,
            others.share(),
        )


def _counted(times: PatternTimes, from_s: float, until_s: float) -> tuple[float, ...]:
    """The durations of the iterations that lie within the time, in which all jobs run."""
    return tuple(
        end_s - begin_s for begin_s, end_s in times.iterations if begin_s >= from_s and end_s <= until_s
    )


def measured(
    plan: SensitivityPlan, folder: Path, step: Callable[[SensitivityPoint, int], None]
) -> list[SensitivityRun]:
    """All runs of a plan, in its order; blocks of pairs during which the reference drifted are measured once more.

    Args:
        plan: what is measured.
        folder: where each run is kept as soon as it is done, and from which runs are taken.
        step: called before each run that is missing, with how many are missing then.

    Raises:
        NotAvailableError: not root, or the kernel lacks something; not if the folder has all runs.
        MltcpError: a run failed; those before it are kept.
    """
    with writable(folder):
        pass
    with open_journal(folder, run_from_line) as journal, ExitStack() as stack:

        @cache
        def place() -> SensitivityTestbed:
            return stack.enter_context(sensitivity_testbed(plan))

        def measure(points: Collection[SensitivityPoint]) -> None:
            missing = [point for point in points if plan.key(point) not in journal.runs]
            for number, point in enumerate(missing):
                step(point, len(missing) - number)
                journal.add(place().run(point))

        points = list(plan.points())
        measure(points)
        again = second_attempts(plan, points, journal.runs)
        measure(again.values())
        return [journal.runs[plan.key(again.get(point, point))] for point in points]
