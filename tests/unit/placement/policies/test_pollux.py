import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mltcp.core.errors import UsageError
from placement.policies.schedulers.non_preemptive import RandomScheduler
from placement.policies.schedulers.pollux import Pollux, speedup
from placement.policies.schedulers.scheduler import progress
from tests.unit.placement.policies.schedulers import RACKS, S, check_complete, view


def test_goodput_is_throughput_times_efficiency():
    # 4 workers of a job that asked for 2, at a noise scale of 8 batches: twice the samples, each worth 9/12 of one in
    # a batch of one worker, where those of 2 workers are worth 9/10.
    job = view("a", 2, 1, 8, noise_scale=8.0)
    assert job.efficiency(1) == 1
    assert job.efficiency(4) == pytest.approx(9 / 12)
    assert job.throughput(4, True) == pytest.approx(2)
    assert job.goodput(4, True) == pytest.approx(2 * (9 / 12) / (9 / 10))
    assert progress(job, 2) == 1


@given(st.floats(0.1, 1e4), st.integers(1, 7))
def test_more_workers_bring_more_but_less_than_as_much_more(noise_scale, workers):
    job = view("a", 1, 1, 8, noise_scale=noise_scale)
    assert job.goodput(workers, True) < job.goodput(workers + 1, True)
    assert job.goodput(workers + 1, True) / job.goodput(workers, True) < (workers + 1) / workers


def test_speedup_is_over_a_fair_share():
    job = view("a", 2, 1, 8, noise_scale=1e9)
    assert speedup(job, 4, 4, RACKS) == pytest.approx(2)  # a quarter of 8 GPUs is 2
    assert speedup(job, 2, 4, RACKS) == pytest.approx(1)


def test_equal_jobs_get_equal_shares():
    jobs = [view(f"j{number}", 1, 1, 8) for number in range(4)]
    (candidate, *_) = Pollux().candidates(RACKS, 0, jobs)
    assert [len(candidate[job.name]) for job in jobs] == [2, 2, 2, 2]


def test_gpus_go_where_the_batch_is_far_from_the_noise_scale():
    jobs = [view("noisy", 1, 1, 8, noise_scale=1000.0), view("calm", 1, 1, 8, noise_scale=0.5)]
    (candidate, *_) = Pollux().candidates(RACKS, 0, jobs)
    assert len(candidate["noisy"]) > len(candidate["calm"]) >= 1


def test_a_job_is_not_moved_for_little_and_stays_where_it_is():
    # Alone 8 GPUs would serve it better than 7; but it is young, and moving costs 30 s.
    young = view("a", 4, 1, 8, gpus=tuple(range(7)), lease_end_ns=0, arrival_ns=0, noise_scale=16.0)
    for candidate in Pollux().candidates(RACKS, 60 * S, [young]):
        assert candidate == {"a": tuple(range(7))}
    old = view("a", 4, 1, 8, gpus=tuple(range(7)), arrival_ns=0, noise_scale=16.0)
    (candidate, *_) = Pollux().candidates(RACKS, 10**6 * S, [old])
    assert len(candidate["a"]) == 8


def test_every_move_makes_the_next_less_likely():
    def workers(restarts):
        job = view("a", 4, 1, 8, gpus=tuple(range(7)), noise_scale=16.0, restarts=restarts)
        return len(Pollux().candidates(RACKS, 5000 * S, [job])[0]["a"])

    assert workers(0) == 8
    assert workers(100) == 7


def test_it_is_asked_every_interval_while_there_are_jobs():
    assert Pollux().next_ns(0, [view("a")]) == 60 * S
    assert Pollux().next_ns(60 * S, [view("a")]) == 120 * S
    assert Pollux().next_ns(61 * S, []) is None


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3)), min_size=1, max_size=6), st.integers(0, 9))
@settings(max_examples=50, deadline=None)
def test_candidates_are_complete_and_alike(drawn, seed):
    jobs = [view(f"j{number}", least, least, least + more) for number, (least, more) in enumerate(drawn)]
    candidates = Pollux(seed=seed).candidates(RACKS, 0, jobs)
    shares = {job: len(gpus) for job, gpus in candidates[0].items()}
    for each in candidates:
        check_complete(RACKS, each, jobs)
        assert {job: len(gpus) for job, gpus in each.items()} == shares


def test_random_places_in_order_of_arrival_and_moves_nobody():
    jobs = [view("c", 3, arrival_ns=2), view("b", 7, arrival_ns=1), view("a", 2, gpus=(1, 6))]
    for candidate in RandomScheduler().candidates(RACKS, 0, jobs):
        assert candidate == {"a": (1, 6)}  # b does not fit, and c does not overtake it
    candidates = RandomScheduler().candidates(RACKS, 0, [jobs[0], jobs[2]])
    assert len({each["c"] for each in candidates}) > 5
    assert all(each["a"] == (1, 6) and len(each["c"]) == 3 for each in candidates)


@pytest.mark.parametrize("arguments", [{"interval_ns": 0}, {"migration_ns": -1}])
def test_settings_that_cannot_be(arguments):
    with pytest.raises(UsageError, match="expected"):
        Pollux(**arguments)
