from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from mltcp.core.demand import Demand, Phase
from mltcp.core.errors import MltcpError, UsageError
from placement.experiments.thesis_traces import dynamic, poisson
from placement.policies.schedulers.registry import SCHEDULERS, named_scheduler
from placement.policies.schedulers.scheduling_policy import SchedulingPolicy, scheduling_policy, traffic
from placement.simulator.fluid_executor import FluidSettings
from placement.simulator.scheduled_cluster import run_trace, two_tier
from placement.traces.sets import JobSet, TracedJob
from tests.unit.placement.policies.schedulers import check_complete

pytestmark = pytest.mark.slow

MS, S, GBPS = 10**6, 10**9, 10**9
ACROSS = two_tier(2, 2)
"""Two racks of two GPUs each; an uplink is as fast as a NIC."""


@dataclass(frozen=True)
class Fixed:
    """A scheduler with nothing to decide: the candidates from each time on."""

    plan: dict
    lease_ns: int | None = None
    asked: list = field(default_factory=list)
    name: str = "fixed"

    def candidates(self, cluster, now_ns, jobs, most=10):
        self.asked.append((now_ns, tuple(jobs)))
        listed = self.plan[max(time for time in self.plan if time <= now_ns)]
        here = {job.name for job in jobs}
        return tuple({name: gpus for name, gpus in each.items() if name in here} for each in listed)

    def next_ns(self, now_ns, jobs):
        return min((time for time in self.plan if time > now_ns), default=None)


def demand(silent_ms, sending_ms, gbps=50):
    return Demand((Phase(silent_ms * MS, 0), Phase(sending_ms * MS, gbps * GBPS)))


def pair(*demands, iterations=400):
    jobs = tuple(TracedJob(f"j{number}", 2, iterations, 0, each) for number, each in enumerate(demands))
    return JobSet("pair", "", 50.0, jobs)


CROSSED = ({"j0": (0, 2), "j1": (1, 3)},)
APART = ({"j0": (0, 1), "j1": (2, 3)},)


def slowdowns(outcome, skipped=0):
    return np.concatenate([job.slowdown[skipped:] for job in outcome.jobs])


def test_compatible_jobs_that_share_links_run_as_alone_with_cassini_only():
    settings = FluidSettings(ACROSS, noise=0.0, threshold=0.0001)
    jobs = pair(demand(84, 60), demand(78, 66))  # an angle of the circle is 2 ms
    found = {
        cassini: [
            run_trace(jobs, settings, SchedulingPolicy(Fixed({0: CROSSED}), cassini), seed)
            for seed in range(6)
        ]
        for cassini in (False, True)
    }
    # at random offsets they overlap in most seeds, and stay so
    alone = [slowdowns(outcome, 50).mean() for outcome in found[False]]
    assert max(alone) > 1.2
    for outcome in found[True]:
        # within the first second the shift has come; from then on nobody slows anybody down
        assert slowdowns(outcome, 50) == pytest.approx(1.0, abs=1e-4)
        assert outcome.scores[0] == 1.0
        assert sum(job.delayed for job in outcome.jobs) <= 2


@pytest.mark.parametrize("seed", [1, 2])
def test_jobs_that_drift_are_brought_back(seed):
    jobs = pair(demand(60, 40), demand(60, 40), iterations=2000)
    kept, left = (
        run_trace(
            jobs, FluidSettings(ACROSS, noise=0.005), SchedulingPolicy(Fixed({0: CROSSED}), cassini), seed
        )
        for cassini in (True, False)
    )
    assert slowdowns(kept, 50).mean() < 1.02
    assert slowdowns(left, 50).mean() > 1.1
    assert sum(job.delayed for job in kept.jobs) > 2
    marks = [np.mean([job.marked_bits.mean() for job in outcome.jobs]) for outcome in (kept, left)]
    assert marks[0] < marks[1] / 5


def test_cassini_takes_the_candidate_whose_jobs_do_not_meet():
    jobs = pair(demand(20, 80), demand(20, 80))
    settings = FluidSettings(ACROSS, noise=0.0)
    both = Fixed({0: CROSSED + APART})
    assert slowdowns(run_trace(jobs, settings, SchedulingPolicy(both, True))) == pytest.approx(1, abs=1e-9)
    assert slowdowns(run_trace(jobs, settings, SchedulingPolicy(both, False))).mean() > 1.5


def test_incompatible_jobs_are_not_held_back_for_nothing():
    # Their times have nothing in common, so that they pass each other at random whatever is done.
    jobs = pair(demand(67, 40), demand(91, 60))
    settings = FluidSettings(ACROSS, noise=0.0)
    outcome = run_trace(jobs, settings, SchedulingPolicy(Fixed({0: CROSSED}), True))
    assert sum(job.delayed for job in outcome.jobs) == 0
    plain = run_trace(jobs, settings, SchedulingPolicy(Fixed({0: CROSSED}), False))
    assert slowdowns(outcome).mean() == slowdowns(plain).mean()


def test_links_that_jobs_use():
    one = demand(1, 1)
    found = traffic(ACROSS, {"a": (0, 2), "b": (1, 2, 3), "c": (0, 1), "d": (3,)}, dict.fromkeys("abc", one))
    assert found == {
        "rack0": ("a", "b"),
        "rack1": ("a", "b"),
        "s0": ("a", "c"),
        "s1": ("b", "c"),
        "s2": ("a", "b"),
        "s3": ("b",),
    }


def test_moving_a_job_costs_its_time_and_the_iteration_it_was_in():
    jobs = JobSet("one", "", 50.0, (TracedJob("j0", 2, 100, 0, demand(60, 40)),))
    settings = FluidSettings(ACROSS, noise=0.0, migration_ns=3 * S)
    moved = run_trace(
        jobs, settings, SchedulingPolicy(Fixed({0: ({"j0": (0, 1)},), 5 * S: ({"j0": (2, 3)},)}))
    )
    stayed = run_trace(jobs, settings, SchedulingPolicy(Fixed({0: ({"j0": (0, 1)},)})))
    (job,) = moved.jobs
    assert job.moved == 1
    assert len(job.iteration_ns) == 100
    assert (job.iteration_ns == 100 * MS).all()
    late_ns = job.completion_ns - stayed.jobs[0].completion_ns
    # at most the iteration that was lost, and the moment at which it begins anew
    assert 3 * S <= late_ns <= 3 * S + 2 * 100 * MS


def test_a_job_with_fewer_workers_does_more_iterations_that_send_less():
    job = TracedJob("j0", 4, 100, 0, demand(60, 60), min_workers=2, noise_scale=16.0)
    jobs = JobSet("one", "", 50.0, (job,))
    outcome = run_trace(
        jobs, FluidSettings(ACROSS, noise=0.0), SchedulingPolicy(Fixed({0: ({"j0": (0, 1)},)}))
    )
    # A ring of 2 sends 1/2 of twice the size instead of 3/4: 40 ms. Two workers make half as many samples, each of them
    # worth (16 + 4) / (16 + 2) as much.
    (done,) = outcome.jobs
    assert done.iteration_ns == pytest.approx(100 * MS)
    assert len(done.iteration_ns) == 180


def test_ideal_is_the_demand_itself():
    trace = poisson(1, jobs=20)
    outcome = run_trace(trace, FluidSettings(ACROSS, noise=0.0), None)
    for job, done in zip(trace.jobs, outcome.jobs, strict=True):
        assert done.iteration_ns == pytest.approx(job.demand.iteration_ns, rel=1e-9)
        assert len(done.iteration_ns) == job.iterations
        # it starts at once, but for the moment of its iteration
        assert (
            0
            <= done.completion_ns - job.iterations * job.demand.iteration_ns
            <= job.demand.iteration_ns * 1.001
        )


@pytest.mark.parametrize("name", ["themis", "themis+cassini", "pollux", "pollux+cassini", "random+cassini"])
def test_all_jobs_of_a_trace_come_to_their_end_on_gpus_of_their_own(name):
    cluster = two_tier()
    chosen = scheduling_policy(name, seed=1)
    seen = []

    @dataclass(frozen=True)
    class Watched:
        inner: object

        def __getattr__(self, attribute):
            return getattr(self.inner, attribute)

        def candidates(self, cluster, now_ns, jobs, most=10):
            found = self.inner.candidates(cluster, now_ns, jobs, most)
            for each in found:
                check_complete(cluster, each, jobs)
                for job in jobs:
                    if job.holds(now_ns) and self.inner.name != "pollux":
                        assert each[job.name] == job.gpus
            seen.append(len(found))
            return found

    trace = poisson(1, jobs=25)
    outcome = run_trace(
        trace, FluidSettings(cluster), SchedulingPolicy(Watched(chosen.scheduler), chosen.cassini), 1
    )
    assert len(seen) == len(outcome.decision_ns) >= 2 * 25
    assert max(seen) == 10
    for job, done in zip(trace.jobs, outcome.jobs, strict=True):
        assert done.completion_ns > 0
        assert len(done.iteration_ns) >= job.iterations * 0.99
        # nothing makes an iteration faster but its noise
        assert done.slowdown.min() > 0.95


def test_the_same_seed_is_the_same_run_and_decisions_do_not_depend_on_the_clock():
    runs = [
        run_trace(dynamic(2), FluidSettings(two_tier()), scheduling_policy("themis+cassini", seed=2), 2)
        for _ in range(2)
    ]
    for one, other in zip(runs[0].jobs, runs[1].jobs, strict=True):
        assert np.array_equal(one.iteration_ns, other.iteration_ns)


@pytest.mark.parametrize("name", ["themis", "pollux"])
def test_cassini_gains_on_the_dynamic_traces(name):
    settings = FluidSettings(two_tier())
    pairs = [
        [
            run_trace(dynamic(seed), settings, scheduling_policy(name + suffix, seed=seed), seed)
            for suffix in ("", "+cassini")
        ]
        for seed in range(5)
    ]
    # By slowdowns: iterations of GPT-3 take thirty times as long as most others, so that a mean time is that of GPT-3.
    plain, augmented = ([slowdowns(each) for each in outcomes] for outcomes in zip(*pairs, strict=True))
    means, tails = (
        [np.mean([statistic(each) for each in runs]) for runs in (plain, augmented)]
        for statistic in (np.mean, lambda each: np.percentile(each, 99))
    )
    assert means[0] / means[1] > 1.03
    assert tails[0] / tails[1] > 1.1


def test_a_job_that_is_never_placed_is_said():
    jobs = pair(demand(60, 40), iterations=10)
    with pytest.raises(MltcpError, match="fixed never places j0"):
        run_trace(jobs, FluidSettings(ACROSS), SchedulingPolicy(Fixed({0: ({},)})))


def test_a_job_larger_than_the_cluster_is_refused():
    jobs = JobSet("one", "", 50.0, (TracedJob("wide", 5, 1, 0, demand(1, 1)),))
    with pytest.raises(
        UsageError, match="wide: min_workers: expected at most the 4 GPUs of the cluster, got 5"
    ):
        run_trace(jobs, FluidSettings(ACROSS), scheduling_policy("themis"))


def test_settings_that_cannot_be():
    for wrong in ({"noise": 1.0}, {"nic_bps": 0}, {"migration_ns": -1}, {"check_ns": 0}):
        with pytest.raises(UsageError, match="expected"):
            FluidSettings(ACROSS, **wrong)
    with pytest.raises(UsageError, match=r"scheduler: expected .* got 'best'"):
        scheduling_policy("best")
    with pytest.raises(UsageError, match="racks"):
        two_tier(0)


@pytest.mark.parametrize("name", [*SCHEDULERS, "jsq-chunk-2", "lwf-1", "first-fit", "list-scheduling"])
def test_every_scheduler_runs_on_shared_links(name):
    """They run where jobs have deadlines, and give a job no more GPUs than it can use."""
    drawn = poisson(0, jobs=8, gpus=8).jobs
    jobs = tuple(
        replace(job, deadline_ns=job.arrival_ns + 2 * job.iterations * job.demand.iteration_ns)
        for job in drawn
    )
    outcome = run_trace(
        JobSet("due", "", 50.0, jobs),
        FluidSettings(two_tier(2, 1, 4)),
        SchedulingPolicy(named_scheduler(name)),
    )
    assert all(np.isfinite(job.completion_ns) for job in outcome.jobs)


def test_a_scheduler_that_goes_by_deadlines_needs_them():
    with pytest.raises(UsageError, match="deadline: expected one under this scheduler, got none"):
        run_trace(
            poisson(0, jobs=2, gpus=8),
            FluidSettings(two_tier(4, 2)),
            SchedulingPolicy(named_scheduler("edf")),
        )
