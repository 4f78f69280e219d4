"""The exact simulator, against a plain telling of the same rules, hand-worked cases and laws that must hold."""

import os
import random
from collections import defaultdict
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mltcp.core.errors import UsageError
from placement.model.cluster import Cluster, Gpu, Server, Switch
from placement.model.job import PUBLISHED, Contention, Job, Model
from placement.traces import job_trace
from tests.unit.placement.simulator.exact_mixes import (
    COMMUNICATIONS,
    Mix,
    ns,
    random_crowd,
    random_mix,
    results,
)

pytestmark = pytest.mark.slow

CHUNKS = int(os.environ.get("MLTCP_TEST_EXACT", "2"))
"""Of 200 mixes; more take longer and look into more corners."""

anything = st.randoms(use_true_random=False).map(random_mix)
equal_speeds = st.randoms(use_true_random=False).map(lambda chance: random_mix(chance, unequal=False))
few = settings(max_examples=60, deadline=None)


def job(number, gpus=1, arrival=0, iterations=1, size=10, forward=1, backward=1, memory=1):
    return Job(number, arrival, gpus, iterations, Model("any", size, forward, backward, memory))


def pairs(servers=2):
    """Servers of one GPU each, so that every job of two or more sends."""
    return Cluster.star(servers, 1, Gpu(100))


# -- told plainly ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_the_same_as_told_plainly(chunk):
    for number in range(200):
        chance = random.Random(chunk * 200 + number)
        mix = random_mix(chance) if chance.random() < 0.8 else random_crowd(chance)
        assert mix.results(number) == mix.told(number), mix


@given(anything, st.integers(0, 9))
@settings(max_examples=100, deadline=None)
def test_the_same_as_told_plainly_in_corners(mix, seed):
    assert mix.results(seed) == mix.told(seed)


@pytest.mark.parametrize("communication", COMMUNICATIONS)
@pytest.mark.parametrize("placement", ["random", "lwf"])
def test_the_same_as_told_plainly_at_the_size_of_the_paper(placement, communication):
    chance = random.Random(communication)
    table = list(job_trace.PUBLISHED.values())
    jobs = [
        Job(number, chance.randrange(10**9), chance.choice([1, 2, 4, 8, 12]), 2, chance.choice(table))
        for number in range(12)
    ]
    mix = Mix(jobs, Cluster.star(4, 4), placement, 1, communication, PUBLISHED)
    assert mix.results() == mix.told()


def test_jobs_that_need_no_memory_share_a_gpu():
    jobs = [job(number, 2, memory=0, iterations=2) for number in range(5)]
    mix = Mix(jobs, Cluster.star(2, 1, Gpu(1)))
    assert mix.results() == mix.told()


# -- worked by hand ----------------------------------------------------------------------------------------------------


@given(anything)
@few
def test_a_job_alone_takes_its_iterations(mix):
    mix = replace(mix, jobs=[replace(mix.jobs[0], arrival_ns=7)])
    (only,) = mix.jobs
    ((_, result),) = mix.results().items()
    model = only.model
    gpus = [mix.cluster.gpus[number][1] for number in result.gpus]
    compute = max(
        sum(-(-t // gpu.performance) for t in (model.forward_ns, model.backward_ns)) for gpu in gpus
    )
    assert (result.start, result.gpu_wait, result.link_wait) == (7, 0, 0)
    assert result.end == 7 + only.iterations * compute + result.communication
    links = [mix.cluster.links[link] for link in mix.links(result.gpus)]
    if not links:
        assert result.communication == 0
        return
    latency = -(-mix.contention.latency_ns // 1)
    data = (mix.alone(only) - latency) / min(link.speed for link in links)
    least = latency + -(-data // 1)
    assert least * only.iterations <= result.communication <= (least + 1) * only.iterations


@given(
    st.integers(1, 12), st.integers(1, 10**6), st.integers(0, 10**6), st.integers(0, 2000), st.integers(1, 4)
)
@few
def test_jobs_that_share_throughout_take_as_long_as_in_eq_5(transfers, kilobytes, latency, eta, iterations):
    # A GPU for each in both servers: the first job fits only into the largest GPUs, and so on.
    sizes = tuple(Gpu(memory) for memory in range(1, transfers + 1))
    cluster = Cluster((Server("a", sizes), Server("b", sizes)))
    contention = Contention(Fraction(latency), Fraction("0.856"), Fraction(eta, 1000))
    size = kilobytes * 1000
    jobs = [
        job(number, 2, size=size, memory=transfers - number, iterations=iterations)
        for number in range(transfers)
    ]
    mix = Mix(jobs, cluster, communication=f"srsf-{transfers}", contention=contention)
    exact = -(-contention.duration_ns(size, transfers) // 1)
    for result in mix.results().values():
        assert (result.gpu_wait, result.link_wait) == (0, 0)
        # Rates are rounded down to parts, which are as fine as 64 bits allow.
        parts = min(2**40, Fraction(2**59, 1 + mix.alone(jobs[0])))
        rate = parts * contention.ns_per_byte / contention.pace_ns_per_byte(transfers)
        assert 0 <= Fraction(result.communication, iterations) - exact <= 1 + exact / (rate - 1)


def test_a_transfer_goes_on_faster_when_another_ends():
    # 20 bytes and 100 from 2 on, at 2b + eta = 4 ns a byte for two: the small one ends at 82; then 80 are left.
    jobs = [job(0, 2, size=20, memory=2), job(1, 2, size=100)]
    cluster = Cluster((Server("a", (Gpu(1), Gpu(2))), Server("b", (Gpu(1), Gpu(2)))))
    contention = Contention(Fraction(0), Fraction(1), Fraction(2))
    outcome = Mix(jobs, cluster, communication="srsf-2", contention=contention).outcome()
    assert [ns(each.end_s) for each in outcome.jobs] == [82, 162]
    assert [ns(each.contention_s) for each in outcome.jobs] == [60, 60]
    apart = Mix(jobs, cluster, communication="srsf-1", contention=contention).outcome()
    assert [ns(each.end_s) for each in apart.jobs] == [22, 122]
    assert [ns(each.link_wait_s) for each in apart.jobs] == [0, 20]
    assert [ns(each.contention_s) for each in apart.jobs] == [0, 0]


@pytest.mark.parametrize(("left", "starts"), [(41, True), (40, False), (39, False)])
def test_adadual_starts_beside_a_transfer_with_more_than_twice_as_much_left(left, starts):
    # With eta = 0 the acceptance is a half. The new job of 20 bytes asks at 22, when the old, from 2 on, has `left`.
    jobs = [job(0, 2, size=20 + left, memory=2), job(1, 2, arrival=20, size=20)]
    cluster = Cluster((Server("a", (Gpu(2), Gpu(1))), Server("b", (Gpu(2), Gpu(1)))))
    result = Mix(jobs, cluster, communication="ada-srsf").results()
    assert result[1].link_wait == (0 if starts else left)
    assert result[1].end == (22 + 40 if starts else 22 + left + 20)
    assert result[0].end == (22 + 20 + left if starts else 22 + left)


def test_adadual_lets_no_third_in():
    cluster = Cluster(tuple(Server(name, tuple(map(Gpu, (3, 2, 1)))) for name in "ab"))
    jobs = [job(0, 2, size=1000, memory=3), job(1, 2, size=100, memory=2), job(2, 2, size=1, arrival=1)]
    result = Mix(jobs, cluster, communication="ada-srsf").results()
    # The first two are ready at 2, and start, as 100 < 1000 / 2. Each gets half, until the smaller ends at 202.
    assert result[2].link_wait == 202 - 3
    assert [result[number].end for number in range(3)] == [2 + 1000 + 100 + 1, 202, 204]


def test_who_has_least_left_to_compute_comes_first():
    # Two GPUs, three jobs that are there at once; what they send does not count. In the end nothing is left to compute
    # of any, and of equals the first comes first.
    jobs = [job(0, 2, backward=30), job(1, 2, backward=10, size=500), job(2, 2, backward=20)]
    result = Mix(jobs, pairs()).results()
    assert [result[number].gpu_wait for number in range(3)] == [11 + 21, 0, 11]
    assert [result[number].link_wait for number in range(3)] == [511 - 63, 0, 521 - 32]


def test_jobs_that_do_not_fit_are_passed_over():
    jobs = [job(0, backward=50, memory=60), job(1, arrival=1, memory=60), job(2, arrival=2, backward=9)]
    result = Mix(jobs, pairs(1)).results()
    assert [result[number].start for number in range(3)] == [0, 51, 2]
    assert [result[number].end for number in range(3)] == [51, 53, 63]


def test_the_slowest_link_decides():
    switches = (Switch("top"), Switch("rack", "top", Fraction(1, 4)))
    servers = (
        Server("a", (Gpu(),), "top", Fraction(2)),
        Server("b", (Gpu(),), "rack", Fraction(8)),
        Server("c", (Gpu(),), "rack", Fraction(8)),
    )
    cluster = Cluster(servers, switches)
    (result,) = Mix([job(0, 3, size=80)], cluster).results().values()
    assert result.communication == 320
    within = Cluster(servers[1:], switches)
    (result,) = Mix([job(0, 2, size=80)], within).results().values()
    assert result.communication == 10


def test_service_is_what_is_left_on_the_gpus_that_a_job_has():
    # Four nanoseconds an iteration: at 4 the first job has 8 left, as much as the second, which comes then; and of
    # equals the first comes first.
    jobs = [
        job(0, iterations=3, forward=4, backward=4),
        job(1, arrival=4, iterations=2, forward=4, backward=4),
    ]
    cluster = Cluster((Server("a", (Gpu(performance=Fraction(2)),)),))
    result = Mix(jobs, cluster).results()
    assert (result[0].end, result[1].end) == (12, 20)
    # 16 nanoseconds an iteration: at 16 the first has 48 left, and the second, which comes then, only 32.
    slow = Cluster((Server("a", (Gpu(performance=Fraction(1, 2)),)),))
    result = Mix([replace(jobs[0], iterations=4), replace(jobs[1], arrival_ns=16)], slow).results()
    assert result[0].gpu_wait == 32


def test_gpus_have_no_workload_once_their_jobs_have_ended():
    # A fast and a slow GPU: once a job on both has ended they are equals, of which the first comes first.
    gpus = (Gpu(performance=Fraction(2)), Gpu(performance=Fraction(1, 2)))
    jobs = [job(0, 2, iterations=3), job(1, 1, arrival=1000), job(2, 1, arrival=2000)]
    result = Mix(jobs, Cluster((Server("a", gpus),)), "list-scheduling").results()
    assert (result[1].gpus, result[2].gpus) == ((0,), (0,))


# -- laws --------------------------------------------------------------------------------------------------------------


@given(anything)
@few
def test_a_jobs_parts_are_its_time(mix):
    outcome = mix.outcome()
    for told, each in zip(sorted(mix.jobs, key=lambda job: job.job_id), outcome.jobs, strict=True):
        parts = (each.queue_s, each.compute_s, each.gpu_wait_s, each.link_wait_s, each.communication_s)
        assert sum(map(ns, parts)) == ns(each.end_s) - told.arrival_ns
        assert min(parts) >= 0
        assert 0 <= each.contention_s <= each.communication_s
        assert (each.job_id, ns(each.arrival_s)) == (told.job_id, told.arrival_ns)
        assert ns(each.start_s) == told.arrival_ns + ns(each.queue_s)
        assert len(set(each.gpus)) == told.gpus
    assert ns(outcome.makespan_s) == max(ns(each.end_s) for each in outcome.jobs)


@given(equal_speeds)
@few
def test_no_transfer_is_faster_than_alone(mix):
    outcome = mix.outcome()
    for told, each in zip(sorted(mix.jobs, key=lambda job: job.job_id), outcome.jobs, strict=True):
        alone = told.iterations * mix.alone(told) if mix.links(each.gpus) else 0
        assert ns(each.communication_s) - ns(each.contention_s) == alone
        if mix.communication == "srsf-1":
            assert each.contention_s == 0


@given(anything)
@few
def test_no_link_moves_more_than_its_time_allows(mix):
    outcome = mix.outcome(intervals=1)
    senders = defaultdict(list)
    result = results(outcome)
    for each in mix.jobs:
        for link in mix.links(result[each.job_id].gpus):
            senders[link].append(each)
    makespan = max(each.end for each in result.values())
    for link, speed in enumerate(each.speed for each in mix.cluster.links):
        busy = outcome.use.links[link][0] * makespan
        moved = sum(each.iterations * each.model.size_bytes for each in senders[link])
        assert moved * mix.contention.ns_per_byte / speed <= busy * (1 + 1e-9)
        assert busy <= makespan
        if mix.communication == "srsf-1":
            assert busy == pytest.approx(sum(result[each.job_id].communication for each in senders[link]))


@given(anything, st.integers(1, 50))
@few
def test_a_gpu_computes_one_task_at_a_time(mix, intervals):
    outcome = mix.outcome(intervals=intervals)
    result = results(outcome)
    makespan = max(each.end for each in result.values())
    totals = []
    for number, (_, gpu) in enumerate(mix.cluster.gpus):
        here = [each for each in mix.jobs if number in result[each.job_id].gpus]
        busy = sum(
            each.iterations * -(-time // gpu.performance)
            for each in here
            for time in (each.model.forward_ns, each.model.backward_ns)
        )
        totals.append(busy)
        if here:
            spans = [result[each.job_id] for each in here]
            assert busy <= max(span.end for span in spans) - min(span.start for span in spans)
        use = outcome.use.gpus[number]
        assert all(0 <= share <= 1 for share in use)
        assert sum(use) * ns(outcome.use.width_s) == pytest.approx(busy)
    assert outcome.average_gpu_utilization == pytest.approx(sum(totals) / makespan / len(totals))
    assert intervals * ns(outcome.use.width_s) >= makespan


@given(anything)
@few
def test_no_gpu_is_over_its_memory(mix):
    result = mix.results()
    for number, (_, gpu) in enumerate(mix.cluster.gpus):
        here = [each for each in mix.jobs if number in result[each.job_id].gpus]
        for time in (result[each.job_id].start for each in here):
            there = [each for each in here if result[each.job_id].start <= time < result[each.job_id].end]
            assert sum(each.model.memory_mb for each in there) <= gpu.memory_mb


@given(anything)
@few
def test_no_job_waits_while_it_would_fit(mix):
    result = mix.results()
    for waiting in mix.jobs:
        times = {waiting.arrival_ns, *(each.end for each in result.values())}
        for time in (time for time in times if waiting.arrival_ns <= time < result[waiting.job_id].start):
            left = [gpu.memory_mb for _, gpu in mix.cluster.gpus]
            for each in mix.jobs:
                if result[each.job_id].start <= time < result[each.job_id].end:
                    for number in result[each.job_id].gpus:
                        left[number] -= each.model.memory_mb
            assert sum(each >= waiting.model.memory_mb for each in left) < waiting.gpus


@given(anything, st.integers(0, 2**32 - 1), st.randoms())
@few
def test_neither_order_nor_another_run_makes_a_difference(mix, seed, chance):
    first = mix.results(seed)
    shuffled = replace(mix, jobs=chance.sample(mix.jobs, len(mix.jobs)))
    assert mix.results(seed) == first == shuffled.results(seed)


@given(st.randoms(use_true_random=False))
@few
def test_time_has_no_scale(chance):
    # All rates are powers of two, and times multiples of a large one: nothing is rounded.
    mix = random_mix(chance, unequal=False)
    if mix.communication == "srsf-3":
        mix = replace(mix, communication="srsf-2")
    contention = Contention(Fraction(chance.choice([0, 3])), Fraction(1), Fraction(chance.choice([0, 2])))
    once, twice = (scaled(replace(mix, contention=contention), scale) for scale in (2**24, 2**25))
    for number, each in once.results().items():
        other = twice.results()[number]
        assert (other.start, other.end, other.communication) == (
            2 * each.start,
            2 * each.end,
            2 * each.communication,
        )
        assert other.gpus == each.gpus


def scaled(mix, factor):
    def longer(told):
        model = told.model
        times = {name: getattr(model, name) * factor for name in ("size_bytes", "forward_ns", "backward_ns")}
        return replace(told, arrival_ns=told.arrival_ns * factor, model=replace(model, **times))

    latency = mix.contention.latency_ns * factor
    return replace(
        mix, jobs=[longer(told) for told in mix.jobs], contention=replace(mix.contention, latency_ns=latency)
    )


# -- chance ------------------------------------------------------------------------------------------------------------


def test_random_placement_is_as_likely_on_every_gpu():
    mix = Mix([job(0, 2)], Cluster.star(2, 3), "random")
    counts = defaultdict(int)
    for seed in range(600):
        ((_, result),) = mix.results(seed).items()
        counts[result.gpus] += 1
    assert len(counts) == 6 * 5
    assert all(5 <= count <= 40 for count in counts.values())  # 20 each on average


def test_seeds_decide_on_random_placement_only():
    jobs = [job(number, 3, iterations=3) for number in range(8)]
    for placement, ways in (
        ("random", 5),
        ("lwf", 1),
        ("least-delay", 1),
        ("list-scheduling", 1),
        ("first-fit", 1),
    ):
        mix = Mix(jobs, Cluster.star(4, 4), placement)
        outcomes = [mix.results(seed) for seed in range(5)]
        assert sum(each not in outcomes[:index] for index, each in enumerate(outcomes)) == ways
        assert outcomes == [mix.results(seed) for seed in range(5)]


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("jobs", "message"),
    [
        ([], "no jobs"),
        ([job(7), job(7, arrival=5)], "job 7: the number is used more than once"),
        ([job(7, 3)], "job 7 wants 3 GPUs with 1 MB: the cluster has 2"),
        ([job(7, memory=101)], "job 7 wants 1 GPUs with 101 MB: the cluster has 0"),
        ([job(7, arrival=2**61)], "job 7: "),
        ([job(7, forward=2**31, iterations=2**31)], "job 7: "),
        ([job(7, 2, size=2**62)], "job 7: "),
        ([job(7, 2, size=2**40, iterations=2**40)], "job 7: "),
    ],
)
def test_jobs_that_cannot_run(jobs, message):
    with pytest.raises(UsageError, match=message):
        Mix(jobs, pairs()).outcome()


@pytest.mark.parametrize("intervals", [-1, 10**9])
def test_intervals_that_cannot_be(intervals):
    with pytest.raises(UsageError, match="intervals"):
        Mix([job(0)], pairs()).outcome(intervals=intervals)


def slow_star(speed=1, performance=1):
    gpus = (Gpu(100, Fraction(performance)),)
    return Cluster(tuple(Server(name, gpus, "switch", Fraction(speed)) for name in "ab"))


@pytest.mark.parametrize(
    ("jobs", "cluster"),
    [
        ([job(0, 2, size=10**9, iterations=1000)], slow_star(Fraction(1, 10**12))),
        ([job(0, 2, forward=10**9, iterations=10**6)], slow_star(1, Fraction(1, 10**6))),
        ([job(number, 2, forward=2**50, iterations=2**8) for number in range(30)], slow_star()),
        ([job(0, 2, size=10**6)], slow_star(10**9)),
        ([job(0, 2, forward=10**9)], slow_star(1, Fraction(1, 10**12))),
    ],
)
def test_times_that_numbers_cannot_hold(jobs, cluster):
    with pytest.raises(UsageError):
        Mix(jobs, cluster, "lwf").outcome()
