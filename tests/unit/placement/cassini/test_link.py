import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mltcp.core.errors import UsageError
from placement.cassini.circle import groups
from placement.cassini.compatibility import fit_link, score_link
from tests.unit.placement.cassini.demands import MS, demands, up_down


def test_jobs_with_a_common_circle_have_the_score_of_table_4_1():
    jobs = [up_down(30, 10), up_down(50, 10)]
    found, table = fit_link(jobs, 100, angles=360), score_link(jobs, 100, angles=360)
    assert (found.score, found.bound, found.shifts_ns) == (table.score, table.bound, table.shifts_ns)
    assert len(found.groups) == 1


def test_jobs_without_one_meet_in_every_way():
    # 100 and 137 ms: no multiple within a hundredth in reach; each sends a fifth of its time at 80 of 100
    jobs = [up_down(80, 20, 80), up_down(137 * 0.8, 137 * 0.2, 80)]
    found = fit_link(jobs, 100)
    assert [group.jobs for group in found.groups] == [(0,), (1,)]
    # both at once for a twenty-fifth of the time, and then 60 of 100 too much
    assert found.score == pytest.approx(1 - 0.6 / 25, abs=0.002)
    assert found.shifts_ns == (0, 0)
    assert found.score_at((5 * MS, 33 * MS)) == found.score


def test_the_score_without_a_common_circle_is_what_comes_of_a_long_time_side_by_side():
    jobs = [up_down(60, 40, 70), up_down(137.3 * 0.5, 137.3 * 0.5, 60)]
    at = np.linspace(0, 137.3 * 100 * 10, 2_000_001)[:-1]
    sending = np.where(at % 100 >= 60, 70, 0) + np.where(at % 137.3 >= 137.3 / 2, 60, 0)
    simulated = 1 - np.maximum(sending - 100, 0).mean() / 100
    assert fit_link(jobs, 100).score == pytest.approx(simulated, abs=0.003)


def test_two_that_fit_are_still_rotated_beside_a_third_that_does_not():
    jobs = [up_down(50, 50), up_down(50, 50), up_down(137 * 0.9, 137 * 0.1, 50)]
    found = fit_link(jobs, 100)
    assert [group.jobs for group in found.groups] == [(0, 1), (2,)]
    assert abs(found.shifts_ns[0] - found.shifts_ns[1]) == 50 * MS
    # the link is full, and the third adds 50 of 100 for a tenth of the time
    assert found.score == pytest.approx(0.95, abs=0.003)
    assert found.score_at((0, 0, 0)) < found.score


@pytest.mark.parametrize(
    ("sends", "gain", "free", "timed"),
    [(0.2, 0.035, False, False), (0.3, 0.081, False, True), (0.4, 0.146, True, True)],
)
def test_jobs_are_held_to_their_shifts_if_that_is_worth_their_drift(sends, gain, free, timed):
    # 100 and 95.5 ms on one circle: the second drifts by 4.5 %
    jobs = [up_down(100 - 100 * sends, 100 * sends), up_down(95.5 - 95.5 * sends, 95.5 * sends)]
    for keeps_time, tied in ((False, free), (True, timed)):
        (group,) = fit_link(jobs, 100, tolerance=0.05, worthwhile=0.02, timed=keeps_time).groups
        assert group.drift == pytest.approx(0.045)
        assert group.compatibility.score - group.at_random == pytest.approx(gain, abs=0.001)
        assert group.tied == tied


@given(st.lists(st.integers(10**6, 10**9), min_size=1, max_size=8), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_groups_part_the_jobs_and_do_not_depend_on_their_order(times, numbers):
    found = groups(times, 0.01)
    assert sorted(job for group in found for job in group) == list(range(len(times)))
    order = list(range(len(times)))
    numbers.shuffle(order)
    again = groups([times[each] for each in order], 0.01)
    by_time = sorted(sorted(times[job] for job in group) for group in found)
    assert by_time == sorted(sorted(times[order[at]] for at in group) for group in again)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.one_of(demands(), demands(137), demands(223)), min_size=1, max_size=6),
    st.randoms(use_true_random=False),
)
def test_scores_are_reached_below_their_bounds_and_in_any_order(shapes, numbers):
    found = fit_link(shapes, 100)
    assert found.score_at(found.shifts_ns) == pytest.approx(found.score, abs=1e-9) or any(
        group.circles.angles % repeats for group in found.groups for repeats in group.circles.repeats
    )
    assert found.score <= found.bound <= 1
    order = list(range(len(shapes)))
    numbers.shuffle(order)
    again = fit_link([shapes[each] for each in order], 100)
    assert again.score == pytest.approx(found.score, abs=1e-12)
    assert again.bound == pytest.approx(found.bound, abs=1e-12)


def test_what_cannot_be():
    with pytest.raises(UsageError, match="demands: expected one or more"):
        fit_link([], 100)
    with pytest.raises(UsageError, match="capacity_bps: expected more than 0, got 0"):
        fit_link([up_down(1, 1)], 0)
