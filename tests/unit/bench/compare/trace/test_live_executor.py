"""The live executor under `ClusterRun`, with a clock and ranks that follow a script instead of processes."""

import ast
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

import bench.compare.trace.executor as live
from bench.compare.approach import parse_approach
from bench.compare.trace.executor import LiveExecutor, LiveSettings, TraceScale, scale_of
from bench.compare.trace.trace import UntimedScheduler, scheduler
from bench.lab.two_tier import TwoTier, two_tier_cluster
from bench.workloads.job import IterationRecord, JobResult, RankResult
from bench.workloads.rank_pool import Ended, Iterated
from mltcp.core.demand import Demand, Phase
from mltcp.core.errors import MltcpError
from placement.policies.schedulers.scheduling_policy import SchedulingPolicy
from placement.simulator.cluster_run import ClusterRun
from placement.traces.sets import JobSet, TracedJob
from tests.unit.placement.simulator.test_cluster_run import PlannedScheduler

SHAPE = TwoTier(racks=2, servers=1, slots=2)
ITERATION_S = 0.25
CONTROL = "cubic"
S = 10**9


class Clock:
    """A monotonic clock that only the ranks advance."""

    def __init__(self):
        self.now_s = 1000.0

    def monotonic(self):
        return self.now_s


@dataclass
class ScriptedRanks:
    """Jobs whose iterations take `ITERATION_S`."""

    clock: Clock
    control: str = CONTROL
    running: dict = field(default_factory=dict)
    killed: list = field(default_factory=list)

    def start(self, number, name, iterations):
        assert number not in self.running
        self.running[number] = name, iterations, self.clock.now_s, []

    def stop(self, number):
        self.killed.append(self.running.pop(number)[0])

    def kill(self):
        for number in list(self.running):
            self.stop(number)

    def events(self, timeout_s):
        """The next iterations to end, if they do within the time."""
        due = {number: self._due_s(number) for number in self.running}
        first_s = min(due.values(), default=float("inf"))
        if first_s > self.clock.now_s + timeout_s:
            self.clock.now_s += timeout_s
            return []
        self.clock.now_s = first_s
        return [event for number in list(due) if due[number] == first_s for event in self._iterated(number)]

    def _due_s(self, number):
        _, _, began_s, records = self.running[number]
        return began_s + ITERATION_S * (len(records) + 1)

    def _iterated(self, number):
        name, iterations, _, records = self.running[number]
        end_s = self._due_s(number)
        records.append(IterationRecord(end_s - ITERATION_S, end_s, 0.0, 0))
        yield Iterated(number, len(records) - 1, records[-1])
        if len(records) == iterations:
            del self.running[number]
            flow = SimpleNamespace(congestion_control=self.control, retransmits=1, delivered_ce_segments=2)
            yield Ended(number, JobResult(name, 0, (RankResult(0, tuple(records), 0.0, 0.0, (flow,), None),)))


@dataclass
class Launcher:
    """Stands in for `LiveLauncher`: starts jobs on the scripted ranks, and records what they hold."""

    settings: LiveSettings
    approach: object
    coordination: object
    ranks: ScriptedRanks
    held: dict = field(default_factory=dict)

    def share(self, job):
        return self.settings.scale.iterations_of(job, self.approach.isolated) / job.iterations

    def servers(self, gpus):
        return tuple(f"s{gpu // 2}" for gpu in gpus)

    def ideal_s(self, start):
        return ITERATION_S

    def launch(self, start, number, resources):
        assert number not in self.held
        assert not {gpu for gpus in self.held.values() for gpu in gpus} & set(start.gpus)
        self.held[number] = start.gpus
        resources.callback(self.held.pop, number)
        self.ranks.start(
            number, f"{start.job.name}.{start.restarts}", start.iterations(self.share(start.job))
        )


@pytest.fixture
def executor_of(monkeypatch):
    """An executor on scripted ranks; in the lab there are a tenth of the iterations, at 0.25 s for 0.1 s."""
    clock = Clock()
    monkeypatch.setattr(live, "time", clock)
    monkeypatch.setattr(live, "LiveLauncher", Launcher)

    def made(name="fair", control=CONTROL):
        settings = LiveSettings(None, 10**9, TraceScale(ITERATION_S / 0.1, 0.1))
        coordination = SimpleNamespace(decisions_s=(0.5,), shifts=())
        ranks = ScriptedRanks(clock, control)
        approach = parse_approach(name, CONTROL)
        return LiveExecutor(settings, approach, coordination, ranks, lambda: None), ranks

    return made


def job(name, arrival_s=0, iterations=200, workers=1):
    demand = Demand((Phase(60_000_000, 0), Phase(40_000_000, 10**9)))
    return TracedJob(name, workers, iterations, arrival_s * S, demand)


def run_of(executor, jobs, chosen):
    run = ClusterRun(jobs, two_tier_cluster(SHAPE), 10**9, SchedulingPolicy(chosen), executor)
    run.run()
    return run


def test_jobs_run_a_tenth_of_their_iterations_in_the_time_of_the_trace(executor_of):
    executor, _ = executor_of()
    first, second = job("a"), job("b", arrival_s=10, iterations=100, workers=2)
    run = run_of(executor, [first, second], scheduler("first-fit", False, 0).scheduler)
    a, b = executor.job_run(first), executor.job_run(second)
    assert (len(a.iteration_s), len(b.iteration_s)) == (20, 10)
    # 10 s of the trace are 2.5 s in the lab.
    assert (b.arrival_s, b.began_s[0], b.ended_s) == pytest.approx((2.5, 2.5, 5.0))
    assert [each.completion_ns for each in run.jobs] == pytest.approx([20 * S, 10 * S])
    assert (a.marks, a.retransmits, a.servers, b.servers) == (2, 1, ("s0",), ("s0", "s1"))


def test_a_job_that_is_moved_goes_on_with_what_it_has_left(executor_of):
    executor, ranks = executor_of()
    plan = {0: {"a": (0,)}, 5 * S: {}, 8 * S: {"a": (3,)}}
    (moved,) = run_of(executor, [job("a")], PlannedScheduler(plan)).jobs
    assert ranks.killed == ["a.0"]
    measured = executor.job_run(job("a"))
    assert measured.servers == ("s1",)
    assert moved.restarts == 1
    # At 5 s four iterations have ended; the fifth ends at that moment, and may or may not be counted.
    assert len(measured.iteration_s) == 20
    assert measured.ended_s == pytest.approx(2.0 + 16 * ITERATION_S, abs=ITERATION_S + 0.01)


def test_a_run_that_fails_leaves_nothing(executor_of):
    executor, ranks = executor_of()
    with pytest.raises(MltcpError, match="never places b"):
        run_of(executor, [job("a"), job("b")], PlannedScheduler({0: {"a": (0,)}}))
    executor, ranks = executor_of()
    run = ClusterRun([job("a")], two_tier_cluster(SHAPE), 10**9, scheduler("random", False, 0), executor)
    ranks.events = lambda timeout_s: (_ for _ in ()).throw(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        run.run()
    executor.close()
    assert not ranks.running
    assert not executor._launcher.held


def test_another_congestion_control_than_that_of_the_approach_is_an_error(executor_of):
    executor, _ = executor_of(control="reno")
    with pytest.raises(MltcpError, match="reno"):
        run_of(executor, [job("a", workers=2)], scheduler("first-fit", False, 0).scheduler)


def test_isolated_jobs_run_no_more_iterations_than_a_mean_needs(executor_of):
    executor, _ = executor_of("isolated")
    run_of(executor, [job("a")], UntimedScheduler(scheduler("themis", False, 0).scheduler))
    assert len(executor.job_run(job("a")).iteration_s) == 10


def test_the_scale_of_a_trace():
    trace = JobSet("pair", "", 50.0, (job("a"), job("b", iterations=1000)))
    scale = scale_of(trace, 50)
    assert (scale.time, scale.iterations) == pytest.approx((4.0, 0.05))
    assert [scale.iterations_of(each, False) for each in trace.jobs] == [10, 50]
    assert [scale.iterations_of(each, True) for each in trace.jobs] == [10, 10]
    assert scale_of(trace, 6).iterations_of(trace.jobs[0], False) == 5


def _asks(tree):
    """The calls of `next_ns`, but for those of schedulers that pass the question on to another one."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef) and node.name == "next_ns":
            continue
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "next_ns"
        ):
            yield node
        yield from _asks(node)


def test_one_loop_asks_schedulers_and_the_services_live_one():
    """Whoever calls `next_ns` is a scheduler loop: that of runs, simulated or in the lab, and the service's own."""
    root = Path(__file__).parents[5]
    found = [
        str(path.relative_to(root))
        for package in ("placement", "bench")
        for path in sorted((root / package).rglob("*.py"))
        for _ in _asks(ast.parse(path.read_text()))
    ]
    assert found == ["placement/service/decisions/job_scheduling.py", "placement/simulator/cluster_run.py"]
    for path in ("placement/simulator/scheduled_cluster.py", "bench/compare/trace/trace.py"):
        assert "ClusterRun(" in (root / path).read_text()
