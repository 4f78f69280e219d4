"""The lab as a provider of hosts, and the launch of a contest's jobs there."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

from bench.compare.approach import Approach, Policy
from bench.compare.contest import Contest
from bench.compare.provider import Environment, GroupOutcome, HostProvider, Provide, ProvidedHost
from bench.compare.results.runs import HostFacts
from bench.lab.bottleneck import LinkUse
from bench.lab.lab import Lab
from bench.lab.network import namespaces
from bench.lab.network.wiring import INTERFACE
from bench.lab.processors import OtherPrograms
from bench.lab.programs import Pacing, paced_host
from bench.lab.topology import dumbbell
from bench.workloads.job import IterationRecord, JobResult, JobSpec
from bench.workloads.place import RankPlace
from bench.workloads.rank_pool import PlacedJob, run_jobs
from mltcp.core.errors import MltcpError
from mltcp.ebpf.congestion_controls import CONTROLS, Controls
from mltcp.ebpf.jobs import attached

_LAST_SOCKETS_S = 3.0
_BOUNDS_PERIOD_S = 0.2


@contextmanager
def loaded_controls(policies: Sequence[Policy]) -> Iterator[Controls]:
    """Load the congestion controls that the policies need, and unload at the end those that were not there before.

    A control that another program has begun to use meanwhile stays. Traffic classes
    follow the jobs that send.
    """
    controls = Controls()
    policies = [each for policy in policies for each in policy.each]
    needed = list(dict.fromkeys(policy.control for policy in policies if policy.control in CONTROLS))
    fresh = controls.load(needed)
    try:
        with (
            _class_bounds_kept(controls) if any(each.law.acts.classes for each in policies) else nullcontext()
        ):
            yield controls
    finally:
        _unload_unused(controls, fresh)


@contextmanager
def _class_bounds_kept(controls: Controls) -> Iterator[None]:
    """Let the bounds of traffic classes follow the jobs that send, as a daemon does on its host."""
    ended = threading.Event()

    def keep() -> None:
        with controls.job_entries() as entries:
            while not ended.wait(_BOUNDS_PERIOD_S):
                entries.set_class_bounds()

    thread = threading.Thread(target=keep, name="class bounds", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def run_group(
    contest: Contest,
    policy: Policy,
    group: Sequence[int],
    lab: Lab,
    controls: Controls,
    step: Callable[[], None],
    *,
    offsets_s: Sequence[float] | None = None,
    environment: Environment | None = None,
) -> tuple[list[JobResult], LinkUse]:
    """Run some of the contest's jobs side by side under a policy.

    Args:
        contest: the jobs and their link.
        policy: their congestion control.
        group: the jobs to run, by index.
        lab: with the hosts of all jobs of the contest.
        controls: the congestion controls that are loaded.
        step: called after every iteration of a job.
        offsets_s: by how much later each job starts.
        environment: further environment variables of the ranks.

    Returns:
        The result of each job, and the use of the link.

    Raises:
        MltcpError: a rank failed, or connections used another congestion control than the policy's.
    """
    with ExitStack() as stack:
        policies = [contest.policy_of(policy, index) for index in group]
        placed = [
            _placed(contest, own, index, lab, controls, stack, environment)
            for own, index in zip(policies, group, strict=True)
        ]

        def on_iteration(spec: JobSpec, iteration: int, record: IterationRecord) -> None:
            step()

        lab.start_measuring()
        results = run_jobs(placed, offsets_s, on_iteration)
        use = lab.measurement()
    for result, own in zip(results, policies, strict=True):
        check_control(result, own)
    return results, use


def check_control(result: JobResult, policy: Policy) -> None:
    """Raise MltcpError if a job's connections used another congestion control than the policy's."""
    if result.congestion_controls != {policy.control}:
        used = ", ".join(sorted(result.congestion_controls)) or "none"
        raise MltcpError(f"job {result.name}: its connections used {used} instead of {policy.control}")


def job_spec(contest: Contest, policy: Policy, index: int) -> JobSpec:
    """The job of the contest with this index, under a policy."""
    name, work = contest.jobs[index]
    return JobSpec(
        name,
        work,
        contest.job_ranks[index],
        contest.iterations_of(index),
        index,
        len(contest.jobs),
        perturbation=None if policy.isolated else contest.perturbation,
        device=contest.device,
    )


def socket_pace(contest: Contest, pacing: Pacing) -> str:
    """The value of ``MLTCP_PACE`` with which a rank paces its own connections."""
    return f"{contest.link.rate_bps}bit,{pacing.law}"


def _placed(
    contest: Contest,
    policy: Policy,
    index: int,
    lab: Lab,
    controls: Controls,
    stack: ExitStack,
    environment: Environment | None,
) -> PlacedJob:
    """The job with each rank on a host of its own; every host has its own entry of the job, as separate machines do."""
    name, _ = contest.jobs[index]
    places = []
    for host in lab.topology.hosts_of(index):
        job = policy.job(f"{name}@{host.name}")
        cgroup = stack.enter_context(attached(job, policy.control, controls)).cgroup
        namespace, daemon, pace = lab.namespace(host.name), None, None
        if policy.pacing is not None and policy.pacing.by_socket:
            pace = socket_pace(contest, policy.pacing)
        elif policy.pacing is not None:
            daemon = stack.enter_context(
                paced_host(namespace, INTERFACE, contest.link.rate_bps, policy.pacing)
            )
        variables = environment(name, host.rank) if environment is not None else ()
        places.append(RankPlace(namespace, INTERFACE, host.address, cgroup, daemon, pace, variables))
    return PlacedJob(job_spec(contest, policy, index), tuple(places))


def _unload_unused(controls: Controls, names: Sequence[str]) -> None:
    """Unload the controls that are not in use; the last sockets of a removed lab take a moment to close."""
    deadline = time.monotonic() + _LAST_SOCKETS_S
    for name in names:
        while True:
            try:
                controls.unload([name])
                break
            except MltcpError:
                if time.monotonic() > deadline:
                    break
                time.sleep(0.05)


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
                topology = dumbbell(len(contest.jobs), contest.job_ranks, contest.link)
                with (
                    Lab(topology, ecn_by=contest.ecn_by) as lab,
                    tempfile.TemporaryDirectory("-compare") as directory,
                ):
                    yield LabHosts(contest, lab, controls, Path(directory))

            yield provide
