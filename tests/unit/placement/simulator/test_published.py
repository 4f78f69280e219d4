"""The published simulator's rules, against what it gave, and against a slow telling of the same rules."""

import json
import random
import statistics
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mltcp.core.errors import UsageError
from placement.model.compiled import compiled
from placement.model.job import Job, Model
from placement.simulator.published import placing
from placement.simulator.published import simulation as published
from placement.simulator.published.simulation import run_to_end
from placement.simulator.published.state import ADA_DUAL, PlacementRule, PublishedRules, initial_state
from placement.traces.job_trace import PUBLISHED, fresh
from tests.unit.placement.simulator.long_tests import ALL, everything
from tests.unit.placement.simulator.published_reference import Reference

pytestmark = pytest.mark.slow

RESULTS = json.loads((Path(__file__).parents[1] / "data" / "published_results.json").read_text())


@dataclass(frozen=True)
class Published:
    """A line of the results."""

    policy: str
    defect: bool
    scale: int
    seed: int = 0
    seeds: int = 0
    total_ms: int = 0
    jct_ms: tuple[int, ...] = ()
    values: tuple[float, ...] = ()

    def __str__(self):
        traces = f"{self.seeds}-traces" if self.seeds else f"seed{self.seed}"
        return f"{self.policy}{'-defect' if self.defect else ''}-scale{self.scale}-{traces}"

    def run(self, seed=None):
        seed = self.seed if seed is None else seed
        placement, communication = self.policy.split("+")
        jobs = trace_of(seed, self.scale).jobs
        return published.run(jobs, placement, 1, communication, defect=self.defect, seed=seed)


@cache
def trace_of(seed, scale):
    return fresh(seed, scale)


def lines(name):
    return [Published(**each) for each in RESULTS[name]]


def statistics_of(run, scale):
    """As the results have them: seconds of the paper's scale."""
    jct_s = run.jct_ms / scale
    return run.average_gpu_utilization, np.mean(jct_s), np.median(jct_s), np.percentile(jct_s, 95)


def job(number, gpus=1, arrival_ms=0, iterations=1, model=None, **changes):
    model = replace(model or PUBLISHED["lstm"], **changes)
    return Job(number, arrival_ms * 10**6, gpus, iterations, model)


# -- what the published simulator gave ---------------------------------------------------------------------------------


@pytest.mark.parametrize("line", lines("jobs"), ids=str)
def test_every_job_ends_in_the_published_millisecond(line):
    run = line.run()
    assert run.jct_ms.tolist() == list(line.jct_ms)
    assert run.total_ms == line.total_ms


def check_statistics(line):
    run = line.run()
    utilization, *jcts_s, makespan_ms = line.values
    found, *found_jcts_s = statistics_of(run, line.scale)
    assert run.total_ms == makespan_ms
    assert found == pytest.approx(utilization, rel=0, abs=6e-10)
    assert found_jcts_s == pytest.approx(jcts_s, rel=0, abs=6e-7)


@pytest.mark.parametrize("line", [line for line in lines("traces") if line.scale == 10], ids=str)
def test_the_published_statistics_at_a_tenth_of_the_length(line):
    check_statistics(line)


@pytest.mark.parametrize(
    "line", [line for line in lines("traces") if line.scale == 1000 and (line.seed == 0 or ALL)], ids=str
)
def test_the_published_statistics_at_full_length(line):
    check_statistics(line)


@everything
@pytest.mark.parametrize("line", lines("summaries"), ids=str)
def test_the_published_statistics_of_many_traces(line):
    runs = [statistics_of(line.run(seed), line.scale) for seed in range(line.seeds)]
    for column, (mean, sd, least, most) in zip(zip(*runs, strict=True), line.values, strict=True):
        assert statistics.fmean(column) == pytest.approx(mean, rel=1e-7)
        assert statistics.stdev(column) == pytest.approx(sd, rel=1e-7)
        assert (min(column), max(column)) == pytest.approx((least, most), rel=1e-7)


def test_the_defect_moves_more_bytes_than_the_links_could_carry():
    defect, without = (Published("lwf+ada-srsf", which, 10).run() for which in (True, False))
    assert defect.transfers.tolist() == without.transfers.tolist()
    # What the published code was seen to spend on communication.
    assert defect.communication_ms.sum() == 186_627
    assert defect.alone_ms.sum() == without.alone_ms.sum() == 279_393
    assert defect.contention_ms.min() < 0 == without.contention_ms.min()


# -- what was told slowly ----------------------------------------------------------------------------------------------


def models(most_ms, least_mb):
    return st.builds(
        Model,
        name=st.just("any"),
        size_bytes=st.integers(1, 40 * most_ms).map(lambda tenths: tenths * 100_000),
        forward_ns=st.integers(1, most_ms).map(lambda ms: ms * 10**6),
        backward_ns=st.integers(1, most_ms).map(lambda ms: ms * 10**6),
        memory_mb=st.integers(least_mb, 4),
    )


@st.composite
def mixes(draw):
    """A small cluster, and jobs that fight for it; they may be much alike, so that ties are common."""
    servers, gpus = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    most_ms, least_mb, latest_ms = draw(st.sampled_from([(9, 0, 40), (2, 3, 10)]))
    each = st.builds(
        Job,
        st.just(0),
        st.integers(0, latest_ms).map(lambda ms: ms * 10**6),
        st.integers(1, servers * gpus),
        st.integers(1, 5),
        models(most_ms, least_mb),
    )
    jobs = draw(st.lists(each, min_size=1, max_size=12))
    return servers, gpus, [replace(each, job_id=number) for number, each in enumerate(jobs)]


def small(number, gpus, backward_ms, memory_mb):
    return job(
        number,
        gpus,
        size_bytes=100_000,
        forward_ns=10**6,
        backward_ns=backward_ms * 10**6,
        memory_mb=memory_mb,
    )


# The last job gets its GPUs in the order that its vain attempts before left the servers in.
SORTED_IN_VAIN = (2, 1, [small(0, 1, 1, 0), small(1, 1, 2, 0), small(2, 1, 3, 4), small(3, 2, 1, 1)])

policies = st.sampled_from(["random", "first-fit", "list-scheduling", "lwf"])
communications = st.sampled_from(["srsf-1", "srsf-2", "srsf-3", "ada-srsf"])


@given(
    mixes(), policies, st.integers(1, 4), communications, st.booleans(), st.integers(0, 99), st.integers(4, 9)
)
@example(SORTED_IN_VAIN, "lwf", 1, "srsf-1", False, 0, 4)
@settings(max_examples=300, deadline=None)
def test_the_same_as_a_millisecond_at_a_time(mix, placement, kappa, communication, defect, seed, memory_mb):
    servers, gpus, jobs = mix
    options = {"defect": defect, "seed": seed, "servers": servers, "gpus": gpus, "memory_mb": memory_mb}
    run = published.run(jobs, placement, kappa, communication, **options)
    jct_ms, chosen, total_ms, active_ms = Reference(jobs, placement, kappa, communication, **options).run()
    assert run.jct_ms.tolist() == jct_ms
    assert list(run.gpus) == chosen
    assert (run.total_ms, run.active_ms.tolist()) == (total_ms, active_ms)


@pytest.mark.parametrize("placement", PlacementRule)
@pytest.mark.parametrize("most", [1, 2, ADA_DUAL])
@pytest.mark.parametrize("defect", [True, False])
def test_steps_are_left_out_for_nothing_but_speed(placement, most, defect):
    jobs = trace_of(5, 10).jobs
    states = [initial_state(jobs, PublishedRules(placement, 1, most, defect), seed=5) for _ in range(2)]
    totals = [run_to_end(state, every) for state, every in zip(states, (True, False), strict=True)]
    assert totals[0] == totals[1]
    assert states[0].jobs["ended"].tolist() == states[1].jobs["ended"].tolist()
    assert states[0].workload.tolist() == states[1].workload.tolist()


# -- what a run tells --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["lwf+ada-srsf", "random+srsf-3", "first-fit+srsf-1"])
def test_a_jobs_parts_are_its_time(policy):
    run = Published(policy, False, 10, seed=1).run()
    parts = (run.queue_ms, run.compute_ms, run.gpu_wait_ms, run.link_wait_ms, run.communication_ms)
    assert (sum(parts) == run.jct_ms).all()
    for part in (*parts, run.contention_ms):
        assert part.min() >= 0
    spread = np.array([len({gpu // 4 for gpu in gpus}) > 1 for gpus in run.gpus])
    assert (run.communication_ms[~spread] == 0).all()
    assert (run.communication_ms[spread] > 0).all()


def test_parts_of_two_jobs_that_meet_on_a_link():
    # Two servers of one GPU, room for two workers each; both jobs compute in turns and then want the link.
    both = [job(number, gpus=2, model=PUBLISHED["resnet50"]) for number in range(2)]
    options = {"defect": False, "servers": 2, "gpus": 1}
    run = published.run(both, "first-fit", 1, "srsf-1", **options)
    # Of equals each GPU begins the first; its service is then less, so it ends before the second begins, with a
    # millisecond between them, as the second is placed in the step after. 99.2 MB alone take 84.9 ms: 85 steps.
    assert run.placed_ms.tolist() == [0, 1]
    assert run.compute_ms.tolist() == [62, 62]
    assert run.gpu_wait_ms.tolist() == [0, 61]
    assert run.link_wait_ms.tolist() == [0, 147 - 124]
    assert run.communication_ms.tolist() == run.alone_ms.tolist() == [85, 85]
    assert run.ended_ms.tolist() == [147, 232]
    together = published.run(both, "first-fit", 1, "srsf-2", **options)
    # The first is alone for 62 ms; its remaining 26.77 MB take 52.1 ms beside the second, which then goes on alone.
    assert together.ended_ms.tolist() == [177, 239]
    assert together.contention_ms.tolist() == [30, 30]


def test_the_outcome_is_in_seconds():
    run = Published("lwf+ada-srsf", True, 1000).run()
    outcome = run.outcome()
    assert outcome.makespan_s == 5986.884
    assert [round(each.jct_s * 1000) for each in outcome.jobs] == run.jct_ms.tolist()
    assert [each.job_id for each in outcome.jobs] == list(range(160))
    assert outcome.median_jct_s == pytest.approx(np.median(run.jct_ms) / 1000)
    assert outcome.p95_jct_s == pytest.approx(np.percentile(run.jct_ms, 95) / 1000)
    for each in outcome.jobs:
        parts = (each.queue_s, each.compute_s, each.gpu_wait_s, each.link_wait_s, each.communication_s)
        assert each.jct_s == pytest.approx(sum(parts))
    simulated = published.run(trace_of(0, 1000).jobs, "lwf", 1, "ada-srsf", defect=True).outcome()
    assert simulated.jobs == outcome.jobs


def test_the_order_of_the_jobs_does_not_matter():
    jobs = list(trace_of(0, 10).jobs)
    straight = published.run(jobs, "random", 1, "ada-srsf", defect=True, seed=3)
    random.Random(0).shuffle(jobs)
    shuffled = published.run(jobs, "random", 1, "ada-srsf", defect=True, seed=3)
    assert straight.jct_ms.tolist() == shuffled.jct_ms.tolist()
    assert straight.gpus == shuffled.gpus


def test_list_scheduling_is_lwf_that_keeps_no_job_together():
    jobs = trace_of(0, 10).jobs
    runs = [
        published.run(jobs, placement, kappa, "srsf-2", defect=False)
        for placement, kappa in (("list-scheduling", 1), ("lwf", 32), ("lwf", 1))
    ]
    assert runs[0].gpus == runs[1].gpus != runs[2].gpus


@pytest.mark.parametrize("megabytes", ["526.4", "99.2", "103.0", "251.8"])
def test_sizes_are_the_floats_that_the_published_code_read(megabytes):
    jobs = [job(0, size_bytes=round(float(megabytes) * 10) * 100_000)]
    state = initial_state(jobs, PublishedRules(PlacementRule.LWF, 1, 1, False), seed=0)
    assert state.jobs["size"][0] == float(megabytes)


# -- the generator -----------------------------------------------------------------------------------------------------


@compiled
def draw(state, numbers):
    for at in range(len(numbers)):
        numbers[at] = placing.random(state)


@given(st.integers(0, 2**64), st.lists(st.integers(0, 2000), min_size=1, max_size=4))
@settings(max_examples=50, deadline=None)
def test_numbers_are_those_of_python(seed, skipped):
    state = initial_state([job(0)], PublishedRules(PlacementRule.RANDOM, 1, 1, False), seed)
    reference = random.Random(seed)
    for count in skipped:
        placing.skip(state, count)
        numbers = np.zeros(700)
        draw(state, numbers)
        for _ in range(count):
            reference.random()
        assert numbers.tolist() == [reference.random() for _ in numbers]


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("jobs", "options", "message"),
    [
        ([], {}, "no jobs"),
        (
            [job(0)],
            {"placement": "lwf-1"},
            "placement of .*expected random, first-fit, list-scheduling, lwf, got 'lwf-1'",
        ),
        (
            [job(0)],
            {"communication": "srsf-0"},
            r"communication of .*srsf-N \(N: 1 to 1000000\), got 'srsf-0'",
        ),
        ([job(0)], {"kappa": 0}, "kappa: expected 1 or more, got 0"),
        ([job(0)], {"servers": 0}, "servers: expected 1 or more, got 0"),
        ([job(7, gpus=65)], {}, "job 7: .*64 GPUs, got 65"),
        ([job(7)], {"memory_mb": 2750}, "job 7: .*expected 0 to 2750 MB, got 2751"),
        ([job(7), job(7)], {}, "job 7: the number is used more than once"),
        ([job(7, forward_ns=35_800_000)], {}, "job 7: forward_ns is 35800000: .*whole milliseconds"),
        ([job(7, backward_ns=0)], {}, "job 7: backward_ns is 0: .*1 or more"),
        ([job(7, size_bytes=0)], {}, "job 7: size_bytes of lstm: expected 1 or more, got 0"),
        ([replace(job(7), arrival_ns=1)], {}, "job 7: arrival_ns is 1: .*whole milliseconds"),
    ],
)
def test_jobs_and_policies_that_it_does_not_know(jobs, options, message):
    arguments = {"placement": "lwf", "kappa": 1, "communication": "ada-srsf", "defect": False, **options}
    with pytest.raises(UsageError, match=message):
        published.run(jobs, **arguments)
