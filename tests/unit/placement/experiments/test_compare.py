"""Comparisons: what is kept, that an interrupted one goes on, that no process stays, and the paired statistics."""

import gc
import io
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mltcp.core.errors import MltcpError, UsageError
from placement.experiments import ada_srsf
from placement.experiments.ada_srsf import PLAN, AllReduceJobs, SeededTrace, compare, load, print_comparison
from placement.experiments.comparison import Part, PolicyComparison, TraceRun, run_parts
from placement.experiments.run_journal import NAME, open_journal, read_journal
from placement.experiments.simulation import (
    PARTS,
    PolicyName,
    Setting,
    Simulation,
    SimulationModel,
    parse_policies,
    run_simulation,
)
from placement.experiments.statistics import paired
from placement.experiments.workers import Workers
from placement.model.cluster import Cluster, Gpu
from placement.traces.job_trace import JobTrace, fresh, scaled
from tests.eventually import eventually

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[4]
POLICIES = parse_policies("lwf-1+srsf-1,random+srsf-2,lwf-1+ada-srsf", SimulationModel.PUBLISHED)
PATIENCE_S = 120


def plan_of(traces, policies=POLICIES, jobs=16, setting=None):
    entries = tuple(SeededTrace(scaled(jobs, seed, 10), seed) for seed in range(traces))
    return ada_srsf.plan_of(policies, entries, setting or Setting(), policies[0])


def a_run(key, policy="lwf-1+srsf-1", trace="t", **changes):
    numbers = (2, 1.5, 1.5, 1.9, 0.3, 4.0, 10, 0.01, dict.fromkeys(PARTS, 0.5), [1.0, 2.0], [0.25, 0.35])
    values = dict(zip((*AllReduceJobs.shown, *AllReduceJobs.kept), numbers, strict=True))
    return TraceRun(key, policy, trace, 0, values | changes)


def without_wall(comparison):
    return {
        policy: [replace(run, values={**run.values, "wall_s": 0.0}) for run in runs]
        for policy, runs in comparison.runs.items()
    }


def open_log(folder):
    return open_journal(folder, AllReduceJobs.parse)


def read_log(folder):
    return read_journal(folder, AllReduceJobs.parse)


def key_of(trace, policy, setting=None, seed=0):
    [key] = Part(AllReduceJobs(setting or Setting()), str(policy), (SeededTrace(trace, seed),)).keys
    return key


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A comparison that ran through, and its folder."""
    folder = tmp_path_factory.mktemp("finished") / "deep" / "folder"
    return folder, compare(plan_of(3), 2, folder)


class TestRuns:
    """The record that is kept of a simulation."""

    def test_a_run_survives_its_line(self):
        run = a_run("k")
        assert AllReduceJobs.parse(run.line().encode()) == run

    @pytest.mark.parametrize("line", [b"", b"{}", b"[1]", b"null", b"\xff", b'{"key": 1}'])
    def test_anything_else_is_no_run(self, line):
        with pytest.raises((ValueError, TypeError)):
            AllReduceJobs.parse(line)

    def test_a_run_holds_what_the_outcome_says(self):
        trace = fresh(0, 10)
        policy = "lwf-1+srsf-1@published"
        outcome = run_simulation(Simulation(trace, PolicyName.parse(policy), Setting()))
        run = AllReduceJobs(Setting()).run(SeededTrace(trace, 0), policy)
        assert run["average_jct_s"] == outcome.average_jct_s == pytest.approx(1477.55625, abs=1e-6)
        assert run["makespan_s"] == pytest.approx(99088 / 10)
        assert run["jct_s"] == pytest.approx([job.jct_s for job in outcome.jobs], abs=1e-6)
        assert len(run["gpu_utilization"]) == 64
        assert sum(run["gpu_utilization"]) / 64 == pytest.approx(run["average_gpu_utilization"], abs=1e-6)
        whole = sum(run["parts_s"][name] for name in PARTS if name != "contention_s")
        assert whole == pytest.approx(run["average_jct_s"])

    def test_the_key_tells_everything_apart_that_changes_a_run(self):
        first, second = scaled(8, 0, 10), scaled(8, 1, 10)
        a, b = POLICIES[:2]
        other = Setting(Cluster.star(16, 4, Gpu(40000)))
        keys = [
            key_of(trace, policy, setting, seed)
            for trace in (first, second)
            for policy in (a, b, replace(a, model=SimulationModel.DEFECT))
            for setting in (Setting(), other)
            for seed in (0, 1)
        ]
        assert len(set(keys)) == 24

    def test_the_key_is_that_of_the_jobs_whatever_their_name(self):
        trace = scaled(8, 0, 10)
        again = JobTrace.of(
            "other",
            [(job, "file:1") for job in reversed(trace.jobs)],
            seconds_per_simulated_s=trace.seconds_per_simulated_s,
        )
        assert key_of(again, POLICIES[0]) == key_of(trace, POLICIES[0])
        assert key_of(JobTrace("x", trace.jobs), POLICIES[0]) != key_of(trace, POLICIES[0])


class TestLog:
    """The file of finished runs."""

    def test_every_run_is_in_the_file_when_add_returns(self, tmp_path):
        with open_log(tmp_path) as log:
            for key in "abc":
                log.add(a_run(key))
                assert list(read_log(tmp_path))[-1] == key

    @given(st.data())
    @settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_cut_at_any_byte_it_is_repaired(self, tmp_path, data):
        runs = [
            a_run(key, trace=name) for key, name in zip("abcd", ("x", "ü", "\u2028", "\x00"), strict=True)
        ]
        whole = b"".join(run.line().encode() + b"\n" for run in runs)
        cut = data.draw(st.integers(0, len(whole)))
        (tmp_path / NAME).write_bytes(whole[:cut])
        kept = whole[:cut].count(b"\n")
        assert list(read_log(tmp_path).values()) == runs[:kept]
        assert (tmp_path / NAME).read_bytes() == whole[:cut]
        with open_log(tmp_path) as log:
            assert list(log.runs.values()) == runs[:kept]
            for run in runs[kept:]:
                log.add(run)
        assert (tmp_path / NAME).read_bytes() == whole

    def test_a_broken_line_before_the_last_is_named(self, tmp_path):
        (tmp_path / NAME).write_text(f"{a_run('a').line()}\nnonsense\n{a_run('b').line()}\n")
        with pytest.raises(UsageError, match=rf"{NAME}:2: this is no run"):
            read_log(tmp_path)

    def test_two_cannot_write_at_once(self, tmp_path):
        with open_log(tmp_path):
            with pytest.raises(UsageError, match="another command is at work there"):
                with open_log(tmp_path):
                    pass
        with open_log(tmp_path):
            pass


class TestCompare:
    """Many policies on many traces."""

    def test_every_policy_is_run_on_every_trace(self, finished):
        _, comparison = finished
        assert list(comparison.runs) == [str(policy) for policy in POLICIES]
        for policy, runs in comparison.runs.items():
            assert [(run.policy, run.trace, run.seed) for run in runs] == [
                (policy, f"trace_seed0{seed}_scale10_jobs16_gpus64", seed) for seed in range(3)
            ]

    def test_processes_do_not_change_the_outcome(self, finished):
        _, comparison = finished
        plan = plan_of(3)
        alone = plan.result(run_parts(plan.parts, 1))
        assert without_wall(comparison) == without_wall(alone)

    def test_a_finished_one_is_read_and_not_run_again(self, finished):
        folder, comparison = finished
        before = (folder / NAME).read_bytes()
        assert compare(plan_of(3), 2, folder) == comparison
        assert (folder / NAME).read_bytes() == before
        assert load(folder) == comparison

    @given(share=st.floats(0, 1))
    @settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_stopped_at_any_byte_it_goes_on(self, finished, tmp_path_factory, share):
        folder, comparison = finished
        content = (folder / NAME).read_bytes()
        content = content[: round(share * len(content))]
        stopped = tmp_path_factory.mktemp("stopped")
        (stopped / PLAN).write_bytes((folder / PLAN).read_bytes())
        (stopped / NAME).write_bytes(content)
        plan, done = plan_of(3), []
        with open_log(stopped) as journal:
            kept = list(journal.runs)
            runs = run_parts(plan.parts, 1, journal, lambda part, left: done.append((part.keys[0], left)))
        assert without_wall(plan.result(runs)) == without_wall(comparison)
        assert not set(kept) & {key for key, _ in done}
        assert len(kept) + len(done) == 9
        assert [left for _, left in done] == list(range(len(done)))[::-1]
        assert len((stopped / NAME).read_bytes().splitlines()) == 9

    def test_more_traces_and_policies_are_added(self, tmp_path):
        compare(plan_of(1, POLICIES[:2]), 1, tmp_path)
        before = (tmp_path / NAME).read_bytes()
        comparison = compare(plan_of(2), 1, tmp_path)
        after = (tmp_path / NAME).read_bytes()
        assert after.startswith(before)
        assert after.count(b"\n") - before.count(b"\n") == 4
        assert [len(runs) for runs in comparison.runs.values()] == [2, 2, 2]

    def test_a_folder_of_another_setting_is_refused_and_left_alone(self, finished):
        folder, _ = finished
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        with pytest.raises(UsageError, match="on another cluster or with other constants"):
            compare(plan_of(3, setting=Setting(Cluster.star(32, 4))), 1, folder)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before

    def test_only_traces_that_all_policies_finished_are_loaded(self, finished, tmp_path):
        folder, comparison = finished
        lines = (folder / NAME).read_bytes().splitlines(keepends=True)
        last = comparison.runs["lwf-1+ada-srsf@published"][1].key
        (tmp_path / PLAN).write_bytes((folder / PLAN).read_bytes())
        (tmp_path / NAME).write_bytes(b"".join(line for line in lines if json.loads(line)["key"] != last))
        found = load(tmp_path)
        assert {policy: [run.seed for run in runs] for policy, runs in found.runs.items()} == {
            str(policy): [0, 2] for policy in POLICIES
        }
        (tmp_path / NAME).write_bytes(b"")
        with pytest.raises(MltcpError, match="no trace is finished"):
            load(tmp_path)

    def test_plans_that_make_no_sense_are_refused(self):
        plan = plan_of(2)
        with pytest.raises(UsageError, match="the same jobs as trace_seed00"):
            ada_srsf.plan_of(POLICIES, plan.traces[:1] * 2, Setting(), POLICIES[0])
        with pytest.raises(UsageError, match=r"--baseline: expected one of .* got 'random\+srsf-9'"):
            replace(plan, baseline="random+srsf-9")
        with pytest.raises(UsageError, match="no traces"):
            replace(plan, traces=())


class TestInterrupts:
    """However it ends, no process stays, and what is finished is kept."""

    @pytest.fixture
    def running(self, tmp_path):
        """A long comparison in a session of its own, some runs of which are finished."""
        folder = tmp_path / "kept"
        arguments = ["compare", "--fresh", "60", "--scale", "10", "--model", "published", "--processes", "2"]
        process = subprocess.Popen(
            [sys.executable, "-m", "placement.cli", *arguments, "-o", str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            start_new_session=True,
        )
        try:
            eventually(lambda: process.poll() is not None or lines(folder))
            assert process.poll() is None, process.communicate()
            yield process, folder
        finally:
            if members(process.pid):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def test_interrupt_from_the_terminal(self, running):
        process, folder = running
        assert len(members(process.pid)) >= 3
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 130
        assert out == ""
        assert err == (
            f"mltcp-placement: interrupted; {lines(folder)} of 420 runs are kept in {folder}: "
            "the same command goes on from there\n"
        )
        eventually(lambda: not members(process.pid))

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
    def test_killed(self, running, number):
        process, folder = running
        process.send_signal(number)
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode in (128 + number, -number)
        eventually(lambda: not members(process.pid))
        assert len(read_log(folder)) >= 1

    def test_a_worker_that_dies_is_told_of(self):
        with pytest.raises(MltcpError, match="killed by signal 9: is there enough memory"):
            with Workers(kill, 2) as workers:
                list(workers.results([signal.SIGKILL] * 3))

    def test_errors_of_workers_arrive_with_their_type(self):
        with pytest.raises(UsageError, match="not this one"):
            with Workers(refuse, 1) as workers:
                list(workers.results(["not this one"]))

    def test_forked_workers_finalise_nothing_that_they_inherited(self, tmp_path):
        inherited = FinalisedIn(tmp_path / "finalised")
        inherited.itself = inherited  # garbage from here on, found by a collection only
        del inherited
        with Workers(collect, 1, fork=True) as workers:
            assert [result for _, result in workers.results([0])] == [0]
        assert not (tmp_path / "finalised").exists()
        gc.collect()
        assert (tmp_path / "finalised").read_text() == str(os.getpid())


class FinalisedIn:
    """Writes the process that finalises it to a file."""

    def __init__(self, path):
        self.path = path

    def __del__(self):
        self.path.write_text(str(os.getpid()))


def collect(task):
    gc.collect()
    return task


def kill(number):
    os.kill(os.getpid(), number)


def refuse(message):
    raise UsageError(message)


def lines(folder):
    path = folder / NAME
    return path.read_bytes().count(b"\n") if path.exists() else 0


def members(session):
    """The processes of a session that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, its_session = path.read_text().rpartition(")")[2].split()[:4]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(its_session) == session and state not in "ZX":
            found.append(int(path.parent.name))
    return found


class TestStatistics:
    """On data whose statistics are known."""

    def test_by_hand(self):
        found = paired([90, 110, 100, 80], [100, 100, 100, 100])
        # Differences of -10, 10, 0 and -20 %: mean -5, deviation sqrt(500/3), t of 3 degrees 3.18245.
        assert found.difference_percent == pytest.approx(-5)
        half = 3.1824463 * (500 / 3) ** 0.5 / 2
        assert (found.low_percent, found.high_percent) == pytest.approx((-5 - half, -5 + half))
        assert (found.lower_on, found.higher_on, found.traces) == (2, 1, 4)

    def test_one_trace_has_no_interval(self):
        found = paired([120], [100])
        assert (found.difference_percent, found.low_percent, found.high_percent) == (
            pytest.approx(20),
            None,
            None,
        )

    def test_differences_are_relative_to_each_trace(self):
        found = paired([110, 1100, 11], [100, 1000, 10])
        assert found.difference_percent == pytest.approx(10)
        assert found.high_percent - found.low_percent == pytest.approx(0, abs=1e-9)

    @given(st.lists(st.tuples(st.floats(1, 1e6), st.floats(1, 1e6)), min_size=2, max_size=30), st.randoms())
    def test_neither_order_nor_unit_matters(self, pairs, shuffler):
        values, baseline = zip(*pairs, strict=True)
        shuffled = [(8 * value, 8 * base) for value, base in pairs]
        shuffler.shuffle(shuffled)
        found, again = paired(values, baseline), paired(*zip(*shuffled, strict=True))
        assert again.difference_percent == pytest.approx(found.difference_percent, rel=1e-9, abs=1e-9)
        assert again.low_percent == pytest.approx(found.low_percent, rel=1e-6, abs=1e-6)
        assert (again.lower_on, again.higher_on) == (found.lower_on, found.higher_on)

    @pytest.mark.parametrize(("values", "baseline"), [([], []), ([1], [1, 2]), ([1], [0]), ([1], [-1])])
    def test_what_cannot_be_compared_is_refused(self, values, baseline):
        with pytest.raises(UsageError):
            paired(values, baseline)

    def test_a_comparison_compares_on_the_same_traces(self):
        jcts = {"a": (100.0, 200.0), "b": (110.0, 180.0)}
        comparison = PolicyComparison(
            "a",
            {name: [a_run("k", name, average_jct_s=jct) for jct in values] for name, values in jcts.items()},
        )
        assert comparison.mean("b", "average_jct_s") == 145
        assert comparison.paired("b", "average_jct_s").difference_percent == pytest.approx(0)
        document = ada_srsf.comparison_document(comparison, AllReduceJobs(Setting()))
        (_, second) = document["policies"]
        assert second["against_baseline"]["average_jct_s"]["lower_on"] == 1
        assert list(comparison.only(["b"]).runs) == ["b"]
        assert comparison.only(["b"]).baseline == "b"
        with pytest.raises(UsageError, match="no policy 'c' was compared: a, b were"):
            comparison.only(["c"])


class TestTable:
    """A comparison for people."""

    def comparison(self):
        names = ("lwf-1+srsf-1@published", "list-scheduling+ada-srsf@published-defect")
        jcts = {
            name: [factor * (1000.0 + seed) for seed in range(100)]
            for name, factor in zip(names, (1, 1.25), strict=True)
        }
        return PolicyComparison(
            names[0],
            {name: [a_run("k", name, average_jct_s=jct) for jct in values] for name, values in jcts.items()},
        )

    def test_as_plain_text_it_has_a_line_a_policy(self):
        file = io.StringIO()
        print_comparison(self.comparison(), file)
        lines = file.getvalue().splitlines()
        assert lines[0] == "JCT in seconds, mean over 100 traces"
        assert lines[3].split() == [
            "lwf-1+srsf-1@published",
            "1",
            "050",
            "1.5",
            "1.9",
            "30.0",
            "%",
            "baseline",
        ]
        found = " ".join(lines[4].split())
        assert found == (
            "list-scheduling+ada-srsf@published-defect 1 312 1.5 1.9 30.0 % +25.0 % +25.0..+25.0 0 of 100"
        )

    def test_it_fits_a_terminal_of_80_columns(self, monkeypatch):
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setenv("TERM", "xterm")
        file = Terminal()
        print_comparison(self.comparison(), file)
        assert "\u2026" not in file.getvalue()
        for part in ("list-scheduling", "+ada-srsf", "@published-defect", "0 of 100"):
            assert part in file.getvalue()


class Terminal(io.StringIO):
    """Says that it is one."""

    def isatty(self):
        return True
