"""``mltcp-bench contend``: the same jobs on the same bottleneck under several policies, interleaved in one run.

Every repeat runs every policy once, one after the other, so that a drift of the machine falls on all alike. The
isolated run of each job is one of the policies, and the yardstick of the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from bench.compare import contend_results as results
from bench.compare.policy import Policy
from bench.lab.bottleneck.link_use import DirectionUse, LinkUse
from bench.lab.lab import Lab
from bench.lab.link import Link
from bench.lab.network import namespaces
from bench.lab.network.wiring import INTERFACE
from bench.lab.paced_host import paced_host
from bench.lab.topology import dumbbell
from bench.workloads.job import JobResult, JobSpec, TrainingOptions, Work
from bench.workloads.launch.launch import PlacedJob, run_jobs
from bench.workloads.loop import IterationRecord
from bench.workloads.perturbation import Perturbation
from bench.workloads.profile import Profile, link_time_s
from bench.workloads.ranks.place import RankPlace
from mltcp.core.errors import MltcpError
from mltcp.ebpf.congestion_controls import CONTROLS, Controls
from mltcp.ebpf.jobs import attached

_LAST_SOCKETS_S = 3.0


@dataclass(frozen=True)
class Contest:
    """What is compared: jobs (by name and what they do), policies, the link, and how often."""

    jobs: tuple[tuple[str, Work], ...]
    policies: tuple[Policy, ...]
    link: Link
    iterations: int
    repeat: int = 1
    ranks: int = 2
    stagger_s: float = 0.0
    perturbation: Perturbation | None = None
    ecn_by: str = "virtual_queue"

    @property
    def total_iterations(self) -> int:
        """How many iterations of jobs the contest consists of: the length of its progress bar."""
        groups = [group for policy in self.policies for group in _groups(self, policy)]
        return self.repeat * sum(self.iterations_of(index) for group in groups for index in group)

    def iterations_of(self, index: int) -> int:
        """How many iterations a job runs: ``iterations`` if it is the slowest, else as many as take as long."""
        times = [self._expected_s(work) for _, work in self.jobs]
        return round(self.iterations * max(times) / times[index])

    def _expected_s(self, work: Work) -> float:
        if isinstance(work, TrainingOptions):
            return work.compute_s + link_time_s(4 * work.parameters, self.link.rate_bps, self.ranks)
        return work.isolated_iteration_s(self.link.rate_bps, self.ranks)


Losses = dict[str, tuple[float, ...]]
"""Of every training job, by name, in its first run."""

Progress = Callable[[str, int], None]
"""Called with the policy's name and the repeat whenever a job has finished an iteration."""


def contend(contest: Contest, progress: Progress) -> list[results.PolicyRun]:
    """Run the contest in a lab of its own; returns one PolicyRun per policy and repeat, in order.

    Raises:
        NotAvailableError: not root, or the kernel lacks something.
        RankError: a rank failed; the lab is gone by the time this is raised.
    """
    namespaces.require_privileges()
    with loaded_controls(contest.policies) as controls:
        with Lab(dumbbell(len(contest.jobs), contest.ranks, contest.link), ecn_by=contest.ecn_by) as lab:
            losses: Losses = {}
            return [
                _run_policy(contest, policy, repeat, lab, controls, progress, losses)
                for repeat in range(contest.repeat)
                for policy in contest.policies
            ]


@contextmanager
def loaded_controls(policies: Sequence[Policy]) -> Iterator[Controls]:
    """Load the controls that are needed and not there yet, and unload just those in the end.

    One that somebody else has come to use meanwhile stays.
    """
    controls = Controls()
    needed = list(dict.fromkeys(policy.control for policy in policies if policy.control in CONTROLS))
    fresh = controls.load(needed)
    try:
        yield controls
    finally:
        _unload_unused(controls, fresh)


def _unload_unused(controls: Controls, names: Sequence[str]) -> None:
    """Unload what is not in use; the last sockets of a lab that is gone take a moment to follow it."""
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


def _groups(contest: Contest, policy: Policy) -> list[list[int]]:
    """The jobs (by index) that run at the same time: all of them, or each kind of job alone."""
    if not policy.isolated:
        return [list(range(len(contest.jobs)))]
    works = [work for _, work in contest.jobs]
    return [[index] for index, work in enumerate(works) if works.index(work) == index]


def _run_policy(
    contest: Contest,
    policy: Policy,
    repeat: int,
    lab: Lab,
    controls: Controls,
    progress: Progress,
    losses: Losses,
) -> results.PolicyRun:
    measured: dict[int, JobResult] = {}
    uses = []
    for group in _groups(contest, policy):
        found, use = run_group(contest, policy, group, lab, controls, lambda: progress(policy.name, repeat))
        measured.update(found)
        uses.append((group, use))
    for result in measured.values():
        check_control(result, policy)
        _check_losses(result, losses)
    works = [work for _, work in contest.jobs]
    # of jobs that do the same, one has run alone for all
    per_job = [measured.get(index) or measured[works.index(work)] for index, work in enumerate(works)]
    return _policy_run(contest, policy, per_job, list(measured.values()), uses)


Environment = Callable[[str, int], tuple[tuple[str, str], ...]]
"""From a job's name and a rank to what further variables the rank finds in its environment."""


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
) -> tuple[dict[int, JobResult], LinkUse]:
    """Run some of the contest's jobs side by side under a policy; ``step`` is called after every iteration of a job.

    Each job starts later by its offset; by default by the contest's stagger more than the one before.
    """
    with ExitStack() as stack:
        placed = [_placed(contest, policy, index, lab, controls, stack, environment) for index in group]
        offsets = offsets_s or [contest.stagger_s * position for position in range(len(group))]

        def on_iteration(spec: JobSpec, iteration: int, record: IterationRecord) -> None:
            step()

        lab.start_measuring()
        found = run_jobs(placed, offsets, on_iteration)
        use = lab.measurement()
    return dict(zip(group, found, strict=True)), use


def _placed(
    contest: Contest,
    policy: Policy,
    index: int,
    lab: Lab,
    controls: Controls,
    stack: ExitStack,
    environment: Environment | None,
) -> PlacedJob:
    """Every rank is on a host of its own, and each host knows the job for itself, as separate machines would."""
    name, work = contest.jobs[index]
    places = []
    for host in lab.topology.hosts_of(index):
        job = policy.job(f"{name}@{host.name}")
        cgroup = stack.enter_context(attached(job, policy.control, controls)).cgroup
        namespace, daemon, pace = lab.namespace(host.name), None, None
        if policy.pacing is not None and policy.pacing.by_socket:
            pace = f"{contest.link.rate_bps}bit,{policy.pacing.law}"
        elif policy.pacing is not None:
            daemon = stack.enter_context(
                paced_host(namespace, INTERFACE, contest.link.rate_bps, policy.pacing)
            )
        variables = environment(name, host.rank) if environment is not None else ()
        places.append(RankPlace(namespace, INTERFACE, host.address, cgroup, daemon, pace, variables))
    perturbation = None if policy.isolated else contest.perturbation
    spec = JobSpec(
        name,
        work,
        contest.ranks,
        contest.iterations_of(index),
        index,
        len(contest.jobs),
        perturbation=perturbation,
    )
    return PlacedJob(spec, tuple(places))


def check_control(result: JobResult, policy: Policy) -> None:
    """A measurement under another control than the one asked for is worth nothing."""
    if result.congestion_controls != {policy.control}:
        used = ", ".join(sorted(result.congestion_controls)) or "none"
        raise MltcpError(f"job {result.name}: its connections used {used} instead of {policy.control}")


def _check_losses(result: JobResult, losses: Losses) -> None:
    """A training must come to the same under every congestion control, to the bit."""
    first = losses.setdefault(result.name, result.losses)
    if result.losses != first:
        raise MltcpError(f"job {result.name}: its losses differ from those of its first run")


def _policy_run(
    contest: Contest,
    policy: Policy,
    per_job: Sequence[JobResult],
    measured: Sequence[JobResult],
    uses: Sequence[tuple[Sequence[int], LinkUse]],
) -> results.PolicyRun:
    job_runs = tuple(
        results.JobRun(name, tuple(one.duration_s for one in result.iterations), policy.control)
        for (name, _), result in zip(contest.jobs, per_job, strict=True)
    )
    return results.PolicyRun(
        policy=policy.name,
        jobs=job_runs,
        retransmits=sum(result.retransmits for result in measured),
        ecn_marks=sum(use.marks for _, use in uses),
        drops=sum(use.drops for _, use in uses),
        utilization=_utilization(measured, uses),
        link_use=_link_use(contest, policy, uses, measured),
        sole_utilization=sole_utilization([use.directions[0] for _, use in uses], uses[0][1].bin_ns),
    )


def _span(measured: Sequence[JobResult]) -> tuple[float, float]:
    """From the first start to the first end: while all jobs of a policy ran (CLOCK_MONOTONIC, seconds)."""
    return (
        min(result.iterations[0].start_s for result in measured),
        min(result.iterations[-1].end_s for result in measured),
    )


def _utilization(measured: Sequence[JobResult], uses: Sequence[tuple[Sequence[int], LinkUse]]) -> float:
    """The share of the link's rate, left to right, that was carried while all jobs ran; isolated ones are averaged."""
    shares = []
    at = 0
    for group, use in uses:
        start_s, end_s = _span(measured[at : at + len(group)])
        at += len(group)
        direction = use.directions[0]
        first, last = (int((t * 1e9 - use.epoch_ns) // use.bin_ns) for t in (start_s, end_s))
        carried = sum(sum(bins[first:last]) for bins in direction.bytes_by_job.values())
        shares.append(carried * 8e9 / (direction.rate_bps * max(1, last - first) * use.bin_ns))
    return sum(shares) / len(shares)


_SENDS, _SILENT = 0.05, 0.01
_SHORTEST_BINS = 5


def sole_utilization(directions: Sequence[DirectionUse], bin_ns: int) -> float | None:
    """The share of the link's rate that is carried while exactly one job sends; None where that is never for long.

    Bins count that lie within such a time: not the first and the last of it, which it fills in part.
    """
    shares: list[float] = []
    for direction in directions:
        full = direction.rate_bps * bin_ns / 8e9
        run: list[float] = []
        for bins in zip(*direction.bytes_by_job.values(), strict=True):
            carried = sorted(count / full for count in bins)
            if carried[-1] > _SENDS and sum(carried[:-1]) < _SILENT:
                run.append(carried[-1])
                continue
            shares += _inner(run)
            run = []
        shares += _inner(run)
    return sum(shares) / len(shares) if shares else None


def _inner(run: Sequence[float]) -> Sequence[float]:
    return run[1:-1] if len(run) >= _SHORTEST_BINS else ()


def _link_use(
    contest: Contest,
    policy: Policy,
    uses: Sequence[tuple[Sequence[int], LinkUse]],
    measured: Sequence[JobResult],
) -> results.LinkUse | None:
    """Who used the link when, left to right, from the first iteration's start on; nothing for isolated runs."""
    if policy.isolated:
        return None
    (_, use) = uses[0]
    first = int((_span(measured)[0] * 1e9 - use.epoch_ns) // use.bin_ns)
    bins = use.directions[0].bytes_by_job
    return results.LinkUse(
        use.bin_ns / 1e9, {name: list(bins[index][first:]) for index, (name, _) in enumerate(contest.jobs)}
    )


def named_jobs(works: Sequence[Work], names: Sequence[str]) -> tuple[tuple[str, Work], ...]:
    """Give every job a name of its own: ``vgg16`` twice becomes ``vgg16-1`` and ``vgg16-2``."""
    named = []
    for position, (name, work) in enumerate(zip(names, works, strict=True)):
        own = f"{name}-{names[: position + 1].count(name)}" if names.count(name) > 1 else name
        named.append((own, replace(work, name=name) if isinstance(work, Profile) else work))
    return tuple(named)
