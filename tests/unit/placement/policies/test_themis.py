import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mltcp.core.errors import UsageError
from placement.policies.schedulers.candidates import racks_of
from placement.policies.schedulers.themis import Themis, rho
from tests.unit.placement.policies.schedulers import RACKS, S, Steady, check_complete, view


def test_rho_is_the_time_shared_over_the_time_in_a_fair_share():
    # Alone with its 2 GPUs 100 s; 4 jobs contend, so that its fair share of the cluster would take it 400 s.
    job = view("a")
    assert rho(job, 100 * S, 4, RACKS) == pytest.approx(0.25)
    assert rho(job, 800 * S, 4, RACKS) == pytest.approx(2.0)
    # It arrived at 300 s: as much less.
    assert rho(view("b", arrival_ns=300 * S), 700 * S, 4, RACKS) == pytest.approx(1.0)


def test_rho_counts_the_penalty_across_racks():
    # 4 workers never fit under a rack of 2: alone it takes 150 s.
    job = view("a", 4, times=Steady(across=1.5))
    assert rho(job, 300 * S, 1, RACKS) == pytest.approx(2.0)


def test_jobs_keep_what_they_hold_until_their_lease_ends():
    held = view("a", 2, gpus=(0, 5), lease_end_ns=10 * S)
    others = [view("b", 4), view("c", 4)]
    for candidate in Themis().candidates(RACKS, 9 * S, [held, *others]):
        assert candidate["a"] == (0, 5)
    assert Themis().next_ns(9 * S, [held, *others]) == 10 * S
    later = Themis().candidates(RACKS, 10 * S, [held, *others])
    assert {each.get("a") for each in later} != {(0, 5)}
    assert Themis().next_ns(10 * S, [held]) is None


def test_the_jobs_that_are_farthest_from_fair_are_asked_first():
    # 8 GPUs; each job can use all of them. The one that came long ago has the largest rho and takes them.
    jobs = [view(f"j{number}", 4, 4, 8, arrival_ns=number * 1000 * S) for number in range(3)]
    (candidate, *_) = Themis().candidates(RACKS, 3000 * S, jobs)
    assert candidate.keys() == {"j0"}
    assert len(candidate["j0"]) == 8


def test_without_fairness_all_bid_together_and_the_improvements_multiplied_decide():
    # Two equal jobs that can each use 1 to 8 GPUs. rho falls as 1/workers: 4 and 4 have the largest product.
    jobs = [view(name, 1, 1, 8) for name in "ab"]
    (candidate, *_) = Themis(fairness=0).candidates(RACKS, 1, jobs)
    assert sorted(len(gpus) for gpus in candidate.values()) == [4, 4]


def test_what_the_winners_leave_goes_to_the_others():
    jobs = [
        view("large", 5, arrival_ns=0),
        view("small", 3, arrival_ns=5 * S),
        view("late", 2, arrival_ns=9 * S),
    ]
    (candidate, *_) = Themis().candidates(RACKS, 10 * S, jobs)
    assert {name: len(gpus) for name, gpus in candidate.items()} == {"large": 5, "small": 3}


def test_a_job_that_fits_under_a_rack_is_put_there():
    jobs = [view("a", 2), view("b", 2), view("c", 3)]
    candidates = Themis().candidates(RACKS, 0, jobs)
    assert len(candidates) == 10
    for each in candidates:
        assert len(racks_of(RACKS, each["a"])) == len(racks_of(RACKS, each["b"])) == 1


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 3), st.integers(0, 99)), min_size=1, max_size=6),
    st.integers(0, 9),
)
@settings(max_examples=50, deadline=None)
def test_candidates_are_complete_alike_and_waste_nothing(drawn, seed):
    jobs = [
        view(f"j{number}", least, least, least + more, arrival_ns=arrival * S)
        for number, (least, more, arrival) in enumerate(drawn)
    ]
    candidates = Themis(seed=seed).candidates(RACKS, 100 * S, jobs)
    assert candidates == Themis(seed=seed).candidates(RACKS, 100 * S, jobs)
    shares = {job: len(gpus) for job, gpus in candidates[0].items()}
    for each in candidates:
        check_complete(RACKS, each, jobs)
        assert {job: len(gpus) for job, gpus in each.items()} == shares
    left = 8 - sum(shares.values())
    assert all(job.gpus_min > left for job in jobs if job.name not in shares)


def test_gpus_that_two_jobs_hold_are_refused():
    jobs = [view(name, 1, gpus=(3,), lease_end_ns=9) for name in "ab"]
    with pytest.raises(UsageError, match="GPU 3: expected one job, got 'a' and 'b'"):
        Themis().candidates(RACKS, 0, jobs)
    with pytest.raises(UsageError, match="GPU: expected 0 to 7, got 8"):
        Themis().candidates(RACKS, 0, [view("a", 1, gpus=(8,), lease_end_ns=9)])


@pytest.mark.parametrize("arguments", [{"lease_ns": 0}, {"fairness": 1}, {"fairness": -0.1}])
def test_settings_that_cannot_be(arguments):
    with pytest.raises(UsageError, match="expected"):
        Themis(**arguments)
