"""The scheduler loop against an executor whose times are known exactly."""

import random
from dataclasses import dataclass, field
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mltcp.core.demand import Demand, Phase
from mltcp.core.errors import MltcpError, UsageError
from placement.model.cluster import Cluster
from placement.policies.schedulers.non_preemptive import FixedScheduler, RandomScheduler
from placement.policies.schedulers.pollux import Pollux
from placement.policies.schedulers.scheduling_policy import SchedulingPolicy
from placement.policies.schedulers.themis import Themis
from placement.simulator.cluster_run import IDLE_DECISIONS, ClusterRun
from placement.traces.sets import TracedJob
from tests.unit.placement.simulator.scripted_executor import ScriptedExecutor

CLUSTER = Cluster.star(servers=2, gpus=2)
NIC_BPS = 10**9
DEMAND = Demand((Phase(6, 0), Phase(4, 10**9)))


@dataclass
class PlannedScheduler:
    """The assignment of the latest time that has come; what it is asked with is kept."""

    plan: dict
    lease_ns: int | None = None
    name: str = "planned"
    asked: list = field(default_factory=list)

    def candidates(self, cluster, now_ns, jobs, most=10):
        self.asked.append((now_ns, tuple(jobs)))
        latest = self.plan[max(time for time in self.plan if time <= now_ns)]
        here = {job.name for job in jobs}
        return ({name: gpus for name, gpus in latest.items() if name in here},)

    def next_ns(self, now_ns, jobs):
        return min((time for time in self.plan if time > now_ns), default=None)


def job(name, arrival_ns=0, iterations=10, workers=1, least=0, noise_scale=16.0):
    return TracedJob(name, workers, iterations, arrival_ns, DEMAND, least, noise_scale=noise_scale)


def run_of(jobs, scheduler, **times):
    executor = ScriptedExecutor(**times)
    run = ClusterRun(jobs, CLUSTER, NIC_BPS, SchedulingPolicy(scheduler), executor)
    run.run()
    return run, executor


def test_jobs_start_when_they_arrive_and_give_their_gpus_back_when_they_end():
    scheduler = FixedScheduler("fixed", {"a": (0,), "b": (0, 1), "c": (2,)})
    jobs = [job("a"), job("c", 30), job("b", 100, workers=2)]
    run, executor = run_of(jobs, scheduler)
    assert executor.calls == [
        (0, "start", "a", (0,), 10),
        (30, "start", "c", (2,), 10),
        (100, "end", "a"),
        (100, "start", "b", (0, 1), 10),
        (130, "end", "c"),
        (200, "end", "b"),
    ]
    assert [(each.name, each.completion_ns, each.starts) for each in run.jobs] == [
        ("a", 100, 1),
        ("c", 100, 1),
        ("b", 100, 1),
    ]


def test_one_decision_follows_the_ends_and_arrivals_of_a_moment():
    scheduler = FixedScheduler("fixed", {"a": (0,), "b": (1,), "c": (2,)})
    run, executor = run_of([job("a"), job("b"), job("c", 100)], scheduler)
    assert [now_ns for now_ns, _ in executor.decisions] == [0, 100, 200]
    assert executor.decisions[1][1] == {"c": (2,)}
    assert len(run.decision_ns) == 3


def test_a_move_is_a_stop_and_a_start_with_the_work_that_is_left():
    scheduler = PlannedScheduler({0: {"a": (0,)}, 45: {"a": (3,)}})
    run, executor = run_of([job("a")], scheduler, restart_ns=7)
    assert executor.calls == [
        (0, "start", "a", (0,), 10),
        (45, "stop", "a"),
        (45, "start", "a", (3,), 6),
        (45 + 7 + 60, "end", "a"),
    ]
    assert run.jobs[0].restarts == 1


def test_two_jobs_can_change_places():
    scheduler = PlannedScheduler({0: {"a": (0,), "b": (1,)}, 20: {"a": (1,), "b": (0,)}})
    _, executor = run_of([job("a"), job("b")], scheduler)
    assert executor.calls[2:6] == [
        (20, "stop", "a"),
        (20, "stop", "b"),
        (20, "start", "a", (1,), 8),
        (20, "start", "b", (0,), 8),
    ]


def test_a_job_can_be_stopped_and_wait():
    scheduler = PlannedScheduler({0: {"a": (0,)}, 20: {}, 50: {"a": (0,)}})
    run, executor = run_of([job("a")], scheduler)
    assert executor.calls == [
        (0, "start", "a", (0,), 10),
        (20, "stop", "a"),
        (50, "start", "a", (0,), 8),
        (130, "end", "a"),
    ]
    assert [(view.gpus, view.iterations_left) for _, (view, *_) in scheduler.asked[:3]] == [
        ((), 10),
        ((0,), 8),
        ((), 8),
    ]
    assert run.jobs[0].completion_ns == 130


def test_work_is_counted_by_the_progress_of_each_number_of_workers():
    # With one of two workers an iteration makes half the samples, worth (16 + 2) / (16 + 1) as much each.
    scheduler = PlannedScheduler({0: {"a": (0, 1)}, 40: {"a": (0,)}})
    run, executor = run_of([job("a", iterations=12, workers=2, least=1)], scheduler)
    per_iteration = 18 / 17 / 2
    assert executor.calls[2] == (40, "start", "a", (0,), -(-8 // per_iteration))
    assert run.jobs[0].work_done == 4


def test_an_executor_that_counts_in_fractions_loses_nothing():
    class Exact(ScriptedExecutor):
        def work_done(self, job):
            return Fraction(super().work_done(job), 3)

    scheduler = PlannedScheduler({0: {"a": (0,)}, 30: {"a": (1,)}, 60: {"a": (2,)}})
    executor = Exact()
    run = ClusterRun([job("a")], CLUSTER, NIC_BPS, SchedulingPolicy(scheduler), executor)
    run.run()
    assert run.jobs[0].work_done == Fraction(2)
    assert isinstance(run.jobs[0].work_done, Fraction)
    assert [call[-1] for call in executor.calls if call[1] == "start"] == [10, 9, 8]


def test_an_assignment_that_changes_nothing_restarts_nothing():
    scheduler = PlannedScheduler({at: {"a": (0,)} for at in range(0, 100, 10)})
    run, executor = run_of([job("a")], scheduler)
    assert [call[1] for call in executor.calls] == ["start", "end"]
    assert len(run.decision_ns) == 11


def test_a_lease_begins_when_it_is_given_and_is_renewed_when_it_has_ended():
    scheduler = PlannedScheduler({at: {"a": (0,)} for at in (0, 20, 40, 60)}, lease_ns=40)
    run_of([job("a")], scheduler)
    ends = {now_ns: jobs[0].lease_end_ns for now_ns, jobs in scheduler.asked if jobs}
    assert ends == {0: 0, 20: 40, 40: 40, 60: 80}


def test_without_leases_a_job_holds_its_gpus_to_its_end():
    scheduler = PlannedScheduler({at: {"a": (0,)} for at in (0, 50)})
    run_of([job("a")], scheduler)
    assert scheduler.asked[1][1][0].holds(10**18)


def test_a_job_that_is_never_placed_is_an_error():
    with pytest.raises(MltcpError, match="planned never places a, b: no job runs"):
        run_of([job("a"), job("b")], PlannedScheduler({0: {}}))


def test_a_scheduler_that_asks_for_ever_and_places_nothing_is_an_error():
    class Restless(PlannedScheduler):
        def next_ns(self, now_ns, jobs):
            return now_ns + 5

    scheduler = Restless({0: {"a": (0,)}, 100: {}})
    with pytest.raises(MltcpError, match="planned never places b"):
        run_of([job("a"), job("b")], scheduler)
    idle = [now_ns for now_ns, jobs in scheduler.asked if all(not view.gpus for view in jobs)]
    assert len(idle) >= IDLE_DECISIONS


def test_jobs_may_wait_for_a_timer():
    scheduler = PlannedScheduler({0: {}, 500: {"a": (0,)}})
    run, _ = run_of([job("a")], scheduler)
    assert run.jobs[0].completion_ns == 600


@pytest.mark.parametrize("gpus", [(0,), (4,)])
def test_an_assignment_that_cannot_be_is_refused(gpus):
    with pytest.raises(UsageError, match="GPU"):
        run_of([job("a"), job("b")], PlannedScheduler({0: {"a": (0,), "b": gpus}}))


@st.composite
def traces(draw):
    count = draw(st.integers(1, 6))
    arrivals = sorted(draw(st.lists(st.integers(0, 200), min_size=count, max_size=count)))
    return [
        job(f"j{number}", arrival_ns, draw(st.integers(1, 20)), draw(st.integers(1, 4)), least=1)
        for number, arrival_ns in enumerate(arrivals)
    ]


@dataclass(frozen=True)
class ShuffledScheduler:
    """Gives jobs GPUs that it draws anew at every decision, and now and then none."""

    seed: int
    name: str = "shuffled"
    lease_ns: int | None = 30

    def candidates(self, cluster, now_ns, jobs, most=10):
        draw = random.Random(self.seed * 1_000_003 + now_ns)
        free = draw.sample(range(len(cluster.gpus)), len(cluster.gpus))
        found = {}
        for view in draw.sample(list(jobs), len(jobs)):
            count = draw.randint(view.gpus_min, view.gpus_max)
            if count <= len(free):
                found[view.name], free = tuple(sorted(free[:count])), free[count:]
        return (found,)

    def next_ns(self, now_ns, jobs):
        return now_ns + 40 if jobs else None


@given(
    traces(),
    st.sampled_from([RandomScheduler, ShuffledScheduler, Themis, Pollux]),
    st.integers(0, 99),
    st.integers(0, 15),
)
@settings(max_examples=40, deadline=None)
def test_no_gpu_is_held_by_two_jobs_and_every_job_ends(jobs, scheduler, seed, restart_ns):
    # ScriptedExecutor checks at every start that the GPUs are free.
    run, executor = run_of(jobs, scheduler(seed=seed), restart_ns=restart_ns)
    ended = [call[2] for call in executor.calls if call[1] == "end"]
    assert sorted(ended) == sorted(each.name for each in jobs)
    assert not executor.running
    for each in run.jobs:
        assert each.completion_ns >= 10
        assert each.starts == sum(call[1:3] == ("start", each.name) for call in executor.calls)
        assert each.gpus == ()
