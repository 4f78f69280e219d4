"""Contests in the network simulator instead of a lab: the same jobs, link and controls, and results of the same form.

The bottleneck is a link of the contest's rate, queue and marking between two switches, with the lab's round trip, hosts
of ten times its rate, and the noise of the lab's compute phases. F is in force from the first iteration on: nothing has
to be learned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from bench.compare.approach import Approach, Policy
from bench.compare.contest import Contest
from bench.compare.engine import appended
from bench.compare.model_traffic import model_traffic
from bench.compare.provider import Progress, Turns
from bench.compare.results.journal import Keep
from bench.compare.results.runs import ApproachRun, JobRun, LinkTotals, Measured
from bench.lab.bottleneck import VIRTUAL_QUEUE
from bench.lab.topology import dumbbell
from bench.workloads.job import TrainingOptions, Work
from bench.workloads.model_work import ModelWork
from bench.workloads.phases import PhasedWork, Stretch
from bench.workloads.profile import HEADER_OVERHEAD, Profile, ring_bytes
from mltcp.control.aggressiveness import Aggressiveness, Shape
from mltcp.core.errors import UsageError
from mltcp.core.quantities import NS_PER_S
from mltcp.ebpf.layout import Action
from placement.simulator.network.laws.network_law import Control, NetworkLaw
from placement.simulator.network.outcome import JobCourse, NetworkOutcome
from placement.simulator.network.routing import RoutingTable
from placement.simulator.network.simulation import SimulationSettings, simulate
from placement.simulator.network.topology import Marking, Network, NetworkLink
from placement.simulator.network.traffic import IterationStep, Message, NetworkJob, Traffic

ROUND_TRIP_NS = 150_000
NOISE_NS = 4_000_000
RTO_US = 5e3
"""Of the lab: the round trip without a queue, the standard deviation of an iteration's computing, and the least
retransmission time-out, after which an idle connection shrinks its window."""

CONTROLS: Mapping[str, Control] = {
    "reno": Control.RENO,
    "cubic": Control.CUBIC,
    "dctcp": Control.DCTCP,
    "bpf_dctcp": Control.DCTCP,
    "mltcp_reno": Control.RENO,
    "mltcp_cubic": Control.CUBIC,
    "mltcp_dctcp": Control.DCTCP,
}
"""The simulated control of each congestion control of the kernel; those of ours have F as well."""

_HOST_SPEED = 10


def simulate_contests(contests: Sequence[Contest], progress: Progress, keep: Keep) -> list[Measured]:
    """Simulate contests that `check_simulated` admits; repeats have different noise. Arguments as of `run_contests`."""
    done: list[Measured] = []
    for contest in contests:
        measured = contest.measured()
        measured = replace(measured, setting={**measured.setting, "simulated": "steps"})
        turns = Turns(contest.approaches, None, contest.repeat)
        done.append(turns.run(measured, partial(_run, contest), progress, appended(keep, done)))
    return done


def check_simulated(contest: Contest) -> None:
    """Refuse what the network simulator does not have.

    Raises:
        UsageError: which of the contest's conditions it is.
    """
    for approach in contest.approaches:
        if approach.cassini or approach.gate is not None:
            raise UsageError(f"--simulate: policy {approach.name}: expected a congestion control alone")
        for policy in approach.policy.each:
            simulated_law(policy)
    for name, work in contest.jobs:
        if not isinstance(work, Profile | PhasedWork | TrainingOptions | ModelWork):
            raise UsageError(f"--simulate: job {name}: expected a model, a profile, phases or `train`")
    for name, is_there in (
        ("--change", contest.change is not None),
        ("--device cuda", contest.device != "cpu"),
        (f"--ecn-by {contest.ecn_by}", contest.ecn_by != VIRTUAL_QUEUE),
    ):
        if is_there:
            raise UsageError(f"--simulate: {name}: expected without: it is not simulated")


def simulated_law(policy: Policy) -> NetworkLaw:
    """The simulated control of a policy.

    The first window of an iteration is not simulated: that of a shape is left out, and others are refused.

    Raises:
        UsageError: a control or a modifier that is not simulated.
    """
    where = f"--simulate: policy {policy.name}"
    if policy.pacing is not None or policy.control not in CONTROLS:
        raise UsageError(f"{where}: expected {', '.join(name for name in CONTROLS if name != 'bpf_dctcp')}")
    control = CONTROLS[policy.control]
    constants: tuple[tuple[str, float], ...] = (("rto_us", RTO_US),)
    if not policy.control.startswith("mltcp_"):
        return NetworkLaw(control, Aggressiveness(Shape.ONE), constants=constants)
    acts, usual = policy.law.acts, Action.of_shape(policy.law.aggressiveness.shape)
    if acts.start != usual.start:
        raise UsageError(f"{where}: expected without start=: it is not simulated")
    if acts.decrease not in (0.0, 1.0):
        raise UsageError(f"{where}: decrease: expected 0 or 1 in a simulation, got {acts.decrease:g}")
    if acts.increase:
        constants = (*constants, ("increase_limit", acts.increase))
    return NetworkLaw(
        control,
        policy.law.aggressiveness,
        decrease=bool(acts.decrease),
        constants=constants,
        fair=acts.fair,
        whole=acts.whole,
        reference_s=acts.reference_s,
    )


# -- runs --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Group:
    """Jobs that were simulated together, by their index, and what came of it."""

    jobs: Mapping[int, JobCourse]
    outcome: NetworkOutcome
    frame_bytes: float


def _run(contest: Contest, approach: Approach, repeat: int, progress: Progress) -> ApproachRun:
    groups = [_simulated(contest, approach, repeat, group) for group in contest.groups(approach.isolated)]
    runs = {
        index: _job_run(
            contest, index, course, contest.policy_of(approach.policy, index).control, group.frame_bytes
        )
        for group in groups
        for index, course in group.jobs.items()
    }
    for _ in range(sum(len(run.iteration_s) for run in runs.values())):
        progress(approach.name, repeat)
    jobs = tuple(
        replace(runs.get(index) or runs[contest.first_of_kind(index)], job=name)
        for index, (name, _) in enumerate(contest.jobs)
    )
    trunks = [link for group in groups for link in group.outcome.links if link.name in _TRUNK]
    frame = groups[0].frame_bytes
    shares = [_utilization(contest, group) for group in groups]
    totals = LinkTotals(
        retransmits=sum(run.retransmits for run in runs.values()),
        ecn_marks=round(sum(link.marked_bytes for link in trunks) / frame),
        utilization=sum(shares) / len(shares),
        sole_utilization=None,
    )
    drops = round(sum(link.dropped_bytes for link in trunks) / frame)
    return ApproachRun(approach.name, repeat, jobs, drops=drops, link=totals)


def _simulated(contest: Contest, approach: Approach, repeat: int, group: Sequence[int]) -> _Group:
    network = bottleneck(contest)
    table = RoutingTable(network)
    jobs = []
    for index in group:
        name, work = contest.jobs[index]
        first, ranks = sum(contest.job_ranks[:index]), contest.job_ranks[index]
        start_s = 0.0 if approach.isolated else contest.start_s(repeat, index)
        jobs.append(
            NetworkJob(
                name,
                traffic_of(work, ranks),
                tuple(range(first, first + ranks)),
                simulated_law(contest.policy_of(approach.policy, index)),
                contest.iterations_of(index),
                round(start_s * NS_PER_S),
                NOISE_NS,
                holds_ns=_holds_ns(contest, index, approach),
            )
        )
    routes = [table.routes(job) for job in jobs]
    outcome = simulate(network, jobs, routes, SimulationSettings("steps", repeat))
    return _Group(dict(zip(group, outcome.jobs, strict=True)), outcome, contest.link.frame_bytes)


def _holds_ns(contest: Contest, index: int, approach: Approach) -> tuple[int, ...]:
    if approach.isolated or contest.perturbation is None:
        return ()
    holds_s = (
        contest.perturbation.hold_s(index, len(contest.jobs), iteration)
        for iteration in range(contest.iterations_of(index))
    )
    return tuple(round(each * NS_PER_S) for each in holds_s)


def _job_run(contest: Contest, index: int, course: JobCourse, control: str, frame_bytes: float) -> JobRun:
    begins_s, ends_s = course.begins_ns / NS_PER_S, course.ends_ns / NS_PER_S
    return JobRun(
        contest.jobs[index][0],
        control,
        tuple(float(each) for each in ends_s - begins_s),
        tuple(float(each) for each in begins_s),
        0.0,
        float(ends_s[-1]),
        round(course.marked_bytes / frame_bytes),
        round(course.dropped_bytes / frame_bytes),
    )


def _utilization(contest: Contest, group: _Group) -> float:
    """The share of the link's rate that iterations used which ended while all jobs ran, from left to right."""
    start_ns = min(int(course.begins_ns[0]) for course in group.jobs.values())
    end_ns = min(int(course.ends_ns[-1]) for course in group.jobs.values())
    carried = sum(
        float((course.ends_ns <= end_ns).sum()) * _crossing_bytes(contest, index)
        for index, course in group.jobs.items()
    )
    return carried * 8 / contest.link.rate_bps / max(1, end_ns - start_ns) * NS_PER_S


def _crossing_bytes(contest: Contest, index: int) -> float:
    """What an iteration sends from the left to the right."""
    ranks = contest.job_ranks[index]
    messages = traffic_of(contest.jobs[index][1], ranks).messages
    return sum(each.size_bytes for each in messages if each.source < ranks // 2 <= each.target)


# -- the bottleneck and the jobs ---------------------------------------------------------------------------------------

_TRUNK = ("left->right", "right->left")


def bottleneck(contest: Contest) -> Network:
    """The lab's dumbbell: marks begin where its shaper's burst has passed, which is in no queue."""
    link, delay_ns = contest.link, ROUND_TRIP_NS // 6
    marking = None
    if link.ecn_threshold_bytes is not None:
        lowest, highest = (
            float(max(link.frame_bytes, each - link.burst_bytes))
            for each in (link.ecn_threshold_bytes, link.ecn_highest_bytes or link.ecn_threshold_bytes)
        )
        marking = Marking(lowest, highest, link.ecn_probability)
    trunk = NetworkLink("left", "right", link.rate_bps, delay_ns, link.queue_bytes, marking)
    links = [trunk, replace(trunk, source="right", target="left")]
    hosts = dumbbell(len(contest.jobs), contest.job_ranks, link).hosts
    for host in hosts:
        for ends in ((host.name, host.switch), (host.switch, host.name)):
            links.append(NetworkLink(*ends, _HOST_SPEED * link.rate_bps, delay_ns))
    return Network(tuple(host.name for host in hosts), tuple(links))


def traffic_of(work: Work, ranks: int) -> Traffic:
    """An iteration of a job, with headers: a model's, or all-reduces in a ring of its ranks, one after the other."""
    if isinstance(work, ModelWork):
        return model_traffic(work)
    if isinstance(work, PhasedWork):
        plan = _Iteration(ranks)
        for stretch in work.stretches:
            plan.add(stretch)
        return Traffic(ranks, tuple(plan.steps))
    if isinstance(work, TrainingOptions):
        work = Profile("train", work.compute_s, 0.0, (4 * work.parameters,))
    assert isinstance(work, Profile)
    if work.backward_s == 0:
        whole = _ring(work.gradient_bytes, ranks)
        return Traffic(ranks, (IterationStep(round(work.compute_s * NS_PER_S), whole),))
    steps: list[IterationStep] = []
    ready_s = 0.0
    for size, at_s in zip(work.buckets_bytes, work.ready_s(), strict=True):
        clock = len(steps)
        before = (clock - 2,) if steps else ()
        steps.append(IterationStep(round((at_s - ready_s) * NS_PER_S), (), before))
        # A bucket waits until it is ready, and for the one before it.
        steps.append(IterationStep(0, _ring(size, ranks), (clock, clock - 1) if before else (clock,)))
        ready_s = at_s
    return Traffic(ranks, tuple(steps))


class _Iteration:
    """Collects the steps of the stretches of an iteration."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._last: tuple[int, ...] = ()
        self.steps: list[IterationStep] = []

    def add(self, stretch: Stretch) -> None:
        """A silence, or pieces that are sent at equal distances, each after the one before it."""
        if not stretch.pieces_bytes:
            self._last = (self._add(stretch.duration_s, 0, self._last),)
            return
        clock, done = self._last, self._last
        for number, size in enumerate(stretch.pieces_bytes):
            if number:
                clock = (self._add(stretch.every_s, 0, clock),)
            done = (self._add(0.0, size, tuple(dict.fromkeys((*clock, *done)))),)
        self._last = (*done, self._add(stretch.every_s, 0, clock))

    def _add(self, compute_s: float, size: int, after: tuple[int, ...]) -> int:
        messages = _ring(size, self._ranks) if size else ()
        self.steps.append(IterationStep(round(compute_s * NS_PER_S), messages, after))
        return len(self.steps) - 1


def _ring(size_bytes: int, ranks: int) -> tuple[Message, ...]:
    sent = ring_bytes(size_bytes, ranks) * HEADER_OVERHEAD
    return tuple(Message(each, (each + 1) % ranks, sent) for each in range(ranks))
