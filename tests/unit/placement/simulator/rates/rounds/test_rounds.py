"""Runs in rounds: published means, the plain reference, the scheduler loop, and the laws."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mltcp.core.errors import UsageError
from placement.model.throughput_table import (
    COMBINATIONS,
    Layout,
    SensitivityTable,
    TableModel,
    published_table,
)
from placement.policies.schedulers.contention.rule import REOPT, RoundsRule, find_rule
from placement.policies.schedulers.registry import named_scheduler
from placement.simulator.rates.rounds.run import RoundsSettings, run_rule, run_scheduler
from placement.traces.contention import (
    MODELS,
    SHIPPED,
    ContentionJob,
    ContentionMix,
    ContentionTrace,
    read_trace,
)
from tests.unit.placement.simulator.rates.rounds import rounds_reference as plain

TABLE = published_table()
SETTINGS = RoundsSettings(TableModel(TABLE))
S = 10**9
FEW = settings(max_examples=15)
SOME = (
    "fifo-packed-none",
    "las-packed-full",
    "tiresias-table-ratio",
    "srtf-head-most-nodes-full",
    "srsf-first-ratio",
    "srsf-first-ratio-80",
    "random-ratio",
    "random-fallback-none",
    "greedy",
    "greedy-ratio",
    "reopt",
    "greedy-look",
    "reopt-look",
)


def run(trace, name, setup=SETTINGS):
    return run_rule(trace, setup, name, find_rule(name))


@st.composite
def traces(draw, most=14):
    jobs = []
    for _ in range(draw(st.integers(1, most))):
        model, gpus = draw(st.sampled_from(MODELS)), draw(st.sampled_from((2, 4, 8)))
        share = draw(st.sampled_from((0.02, 0.3, 1.0, 1.7)))
        arrival_ns = draw(st.sampled_from((0, 0, 300, 451, 3000))) * S
        jobs.append((arrival_ns, model, gpus, share * TABLE.job_samples(model, gpus)))
    jobs.sort(key=lambda each: each[0])
    return ContentionTrace("drawn", tuple(ContentionJob(str(i), *job) for i, job in enumerate(jobs)))


setups = st.builds(
    lambda cost, combination: RoundsSettings(TableModel(TABLE, combination), restart_ns=cost * S),
    st.sampled_from((0, 30, 300, 700)),
    st.sampled_from(COMBINATIONS),
)


@pytest.mark.parametrize(
    ("name", "mean_jct_s"),
    [("srsf-first-none", 72732.019), ("fifo-packed-none", 97265.306), ("srsf-first-ratio", 67868.876)],
)
def test_the_means_of_the_simulate_trace(name, mean_jct_s):
    assert run(read_trace("simulate_trace0", TABLE), name).mean_jct_s == pytest.approx(mean_jct_s, abs=0.01)


@pytest.mark.parametrize(
    ("name", "shipped"),
    [
        ("fifo-head-most-nodes-none", 133_238),
        ("las-packed-full", 134_394),
        ("tiresias-table-ratio", 101_306),
        ("srtf-table-ratio", 108_043),
        ("greedy", 64_679),
        ("greedy-ratio", 66_782),
        ("reopt", 64_886),
        ("reopt-5", 64_043),
    ],
)
def test_the_means_of_the_shipped_traces(name, shipped):
    means = [run(read_trace(trace, TABLE), name).mean_jct_s for trace in SHIPPED]
    assert np.mean(means) == pytest.approx(shipped, abs=1)


@pytest.mark.parametrize(
    ("name", "at_once", "at_half", "restarts"),
    [
        ("fifo-first-none", 99_749, 6_491, 0),
        ("srsf-packed-ratio", 69_928, 5_790, None),
        ("greedy", 66_207, 5_893, 0),
    ],
)
def test_the_means_of_twenty_drawn_traces(name, at_once, at_half, restarts):
    for load, mean_jct_s in ((None, at_once), (0.5, at_half)):
        runs = [run(ContentionMix(load).trace(seed, TABLE), name) for seed in range(20)]
        assert np.mean([each.mean_jct_s for each in runs]) == pytest.approx(mean_jct_s, abs=1)
        assert restarts is None or all(each.restarts == restarts for each in runs)


def reference(trace, setup, name):
    """The plain run of a rule by its name."""
    jobs = [
        plain.PlainJob(i, job.arrival_ns / S, job.model, job.gpus, job.samples)
        for i, job in enumerate(trace.jobs)
    ]
    found = plain.PlainRun(jobs, TABLE, setup.model.combination, restart_s=setup.restart_ns / S)
    name, _, percent = name.partition("-ratio-")
    ratio, name = int(percent or 60) / 100, f"{name}-ratio" if percent else name
    stops = "ratio" if name.endswith("ratio") else "none"
    if name.startswith(("greedy", "reopt")):
        found.run(plain.greedy if name.startswith("greedy") else plain.reopt, stops, ratio)
        return found
    order, *rest = name.removesuffix("-none").removesuffix("-ratio").removesuffix("-full").split("-")
    head = rest[0] == "head"
    decide = plain.ordered(order, "-".join(rest[head:]), "full" if name.endswith("full") else stops, head)
    found.run(decide, stops, ratio)
    return found


@pytest.mark.parametrize("name", [name for name in SOME if "look" not in name and "random" not in name])
@FEW
@given(trace=traces(), setup=setups)
def test_the_compiled_loop_agrees_with_the_plain_one(name, trace, setup):
    fast, slow = run(trace, name, setup), reference(trace, setup, name)
    assert fast.finish_s == pytest.approx([job.finish_s for job in slow.jobs], abs=1e-6)
    assert fast.starts.tolist() == [job.starts for job in slow.jobs]
    assert fast.utilization == pytest.approx(slow.given / (32 * slow.round))


@pytest.mark.parametrize("name", SOME)
@FEW
@given(trace=traces(), setup=setups)
def test_the_scheduler_loop_takes_the_same_decisions(name, trace, setup):
    fast, slow = run(trace, name, setup), run_scheduler(trace, setup, named_scheduler(name))
    assert fast.finish_s == pytest.approx(slow.finish_s, abs=1e-6)
    assert fast.run_s == pytest.approx(slow.run_s, abs=1e-6)
    assert fast.starts.tolist() == slow.starts.tolist()
    assert fast.sensitivity == pytest.approx(slow.sensitivity)
    assert fast.rounds_by_gpus.tolist() == slow.rounds_by_gpus.tolist()


@pytest.mark.parametrize("name", ["las-packed-full", "tiresias-first-full", "srtf-packed-full"])
def test_a_costly_restart_does_not_keep_jobs_from_making_progress(name):
    # Five jobs of eight GPUs for 32: with every round shared out anew, one would be stopped while it restarts.
    jobs = [
        ContentionJob(str(i), 0, MODELS[0], 8, TABLE.job_samples(MODELS[0], 8) * (3 + i)) for i in range(5)
    ]
    setup = RoundsSettings(TableModel(TABLE), restart_ns=700 * S)
    outcome = run(ContentionTrace("drawn", tuple(jobs)), name, setup)
    assert outcome.makespan_s < 86_400


@pytest.mark.parametrize("name", SOME)
@FEW
@given(trace=traces(), setup=setups)
def test_completion_times_are_bounded_and_runs_repeat(name, trace, setup):
    outcome = run(trace, name, setup)
    best_s = np.array(
        [
            job.samples
            / max(
                TABLE.throughput(Layout(job.model, job.gpus, nodes)) for nodes in (2, 4) if nodes <= job.gpus
            )
            for job in trace.jobs
        ]
    )
    assert (outcome.run_s >= best_s * (1 - 1e-9)).all()
    assert (outcome.run_s <= outcome.jct_s + 1e-6).all()
    service_s = np.sort(best_s * [job.gpus for job in trace.jobs]) / 32
    if all(job.arrival_ns == 0 for job in trace.jobs):
        assert outcome.mean_jct_s >= service_s.cumsum().mean() * (1 - 1e-9)
    assert 0 < outcome.utilization <= 1
    again = run(trace, name, setup)
    assert again.finish_s.tobytes() == outcome.finish_s.tobytes()


@pytest.mark.parametrize("name", SOME)
@FEW
@given(trace=traces(8))
def test_a_job_that_arrives_after_all_have_ended_changes_nothing(name, trace):
    alone = run(trace, name)
    late_ns = math.ceil(alone.makespan_s) * S + 900 * S
    later = ContentionJob("late", late_ns, "FSDP", 4, 1000.0)
    both = run(dataclasses.replace(trace, jobs=(*trace.jobs, later)), name)
    assert both.finish_s[:-1].tobytes() == alone.finish_s.tobytes()


@pytest.mark.parametrize("name", ["srsf-first-ratio", "las-packed-full", "fifo-table-none"])
def test_all_times_times_two_give_the_same_schedule(name):
    trace = ContentionMix(0.8, jobs=40).trace(5, TABLE)
    slow = SensitivityTable(
        "half", {key: rate / 2 for key, rate in TABLE.samples_per_s.items()}, TABLE.ratios
    )
    later = tuple(dataclasses.replace(job, arrival_ns=2 * job.arrival_ns) for job in trace.jobs)
    once = run(trace, name)
    setup = RoundsSettings(TableModel(slow), round_ns=600 * S)
    twice = run(dataclasses.replace(trace, jobs=later), name, setup)
    assert twice.finish_s == pytest.approx(2 * once.finish_s, rel=1e-12)
    assert twice.starts.tolist() == once.starts.tolist()


@FEW
@given(trace=traces())
def test_without_contention_and_with_one_layout_the_table_places_like_first_fit(trace):
    rates = {layout: rate for layout, rate in TABLE.samples_per_s.items() if layout.nodes == 2}
    ratios = {(one, other): 1.0 for one in rates for other in rates}
    setup = RoundsSettings(TableModel(SensitivityTable("quiet", rates, ratios)))
    first, table = (run(trace, f"srsf-{placement}-none", setup) for placement in ("first", "table"))
    assert table.jct_s == pytest.approx(first.jct_s)


@FEW
@given(trace=traces())
def test_an_infinite_threshold_makes_reopt_greedy(trace):
    never = run_rule(trace, SETTINGS, "reopt", RoundsRule(REOPT, hysteresis=math.inf))
    assert never.finish_s.tobytes() == run(trace, "greedy").finish_s.tobytes()


def test_a_restart_that_takes_rounds_ends_in_spite_of_the_stop_rule():
    outcome = run(
        read_trace("simulate_trace0", TABLE),
        "srsf-first-ratio",
        dataclasses.replace(SETTINGS, restart_ns=1000 * S),
    )
    assert np.isfinite(outcome.finish_s).all()
    assert outcome.restarts > 0


def test_a_layout_that_a_scheduler_chooses_needs_a_row():
    trace = ContentionTrace("one", (ContentionJob("a", 0, "FSDP", 4, 100.0),))
    with pytest.raises(UsageError, match="FSDP on 4 GPUs: nodes: expected 2 to 4, got 1"):
        run_scheduler(trace, SETTINGS, named_scheduler("lwf-1"))
