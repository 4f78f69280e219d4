import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mltcp.core.errors import UsageError
from placement.cassini.circle import unified
from placement.cassini.compatibility import score_at
from placement.cassini.placement_selection import choose_placement
from tests.unit.placement.cassini.demands import MS, demand, demands, up_down

HALF = up_down(50, 50)
LIGHT = up_down(80, 20)
HEAVY = up_down(20, 80)
CAPACITY = dict.fromkeys("klmn", 100)


def score_of(jobs, shapes, shifts, capacity=100):
    """The score of a link from the demands and the time shifts alone."""
    circles = unified([shapes[job] for job in jobs])
    rotations = [round(shifts[job] * circles.angles / circles.perimeter_ns) % circles.angles for job in jobs]
    return score_at(circles, capacity, rotations)


def test_the_candidate_whose_jobs_fit_together_is_chosen():
    shapes = {"a": HALF, "b": HEAVY, "c": HALF, "d": LIGHT}
    found = choose_placement(
        [{"l": ("a", "b"), "m": ("c", "d")}, {"l": ("a", "c"), "m": ("b", "d")}], shapes, CAPACITY
    )
    assert found.candidate == 1
    assert found.score == 1
    assert [each.link for each in found.links] == ["l", "m"]
    assert abs(found.shifts_ns["a"] - found.shifts_ns["c"]) == 50 * MS
    assert [each.candidate for each in found.considered] == [1, 0]
    assert found.considered[1].score < 1


def test_no_shared_link_is_the_best_and_equal_candidates_go_to_the_first():
    shapes = {"a": HALF, "b": HEAVY}
    apart = {"l": ("a",), "m": ("b",)}
    found = choose_placement([{"l": ("a", "b")}, apart, apart], shapes, CAPACITY)
    assert (found.candidate, found.score, found.shifts_ns, found.links) == (1, 1, {}, ())


def test_one_time_shift_serves_all_links_of_a_job():
    # Figure 4.7: j1 with j2 on l, j2 with j3 on m
    shapes = {"j1": HALF, "j2": HALF, "j3": HALF}
    found = choose_placement([{"l": ("j1", "j2"), "m": ("j2", "j3")}], shapes, CAPACITY)
    assert found.score == 1
    for jobs in (("j1", "j2"), ("j2", "j3")):
        assert score_of(jobs, shapes, found.shifts_ns) == 1


def test_two_jobs_that_share_two_links_are_a_loop_which_costs_nothing_when_joined():
    shapes = {"a": HALF, "b": HALF}
    both = {"l": ("a", "b"), "m": ("a", "b")}
    alone = {"l": ("a", "b")}
    thesis = choose_placement([both, alone], shapes, CAPACITY, loops="discard")
    assert thesis.candidate == 1
    assert thesis.considered[1].discarded == "its affinity graph has a loop"
    joined = choose_placement([both, alone], shapes, CAPACITY)
    assert (joined.candidate, joined.score) == (0, 1)
    assert abs(joined.shifts_ns["a"] - joined.shifts_ns["b"]) == 50 * MS


def test_all_discarded_leaves_the_first_without_time_shifts():
    shapes = {"a": HALF, "b": HALF}
    both = {"l": ("a", "b"), "m": ("a", "b")}
    found = choose_placement([both, both], shapes, CAPACITY, loops="discard")
    assert (found.candidate, found.shifts_ns, found.tied) == (0, {}, ())
    assert all(each.discarded for each in found.considered)


def test_the_tail_metric_takes_the_candidate_whose_worst_link_is_best():
    shapes = {"a": HEAVY, "b": HEAVY, "c": LIGHT, "d": LIGHT, "e": HALF}
    # Scores of 0.4, 1 and 1 against 0.7 twice: better on average, worse on the worst link.
    one_bad = {"k": ("a", "b"), "l": ("c", "d"), "m": ("c", "d")}
    all_fair = {"k": ("a", "e"), "l": ("b", "e")}
    mean = choose_placement([one_bad, all_fair], shapes, CAPACITY)
    tail = choose_placement([one_bad, all_fair], shapes, CAPACITY, metric="tail")
    assert (mean.candidate, tail.candidate) == (0, 1)
    first = choose_placement([all_fair, one_bad], shapes, CAPACITY, metric="first")
    assert (first.candidate, len(first.considered)) == (0, 1)


def test_time_shifts_of_one_link_break_the_others_and_joint_ones_do_not():
    shapes = dict.fromkeys(("j1", "j2", "j3"), HALF)
    chain = {"l": ("j1", "j2"), "m": ("j2", "j3")}
    joint = choose_placement([chain], shapes, CAPACITY, shifts="joint")
    assert joint.score == 1
    assert choose_placement([chain], shapes, CAPACITY, shifts="none").tied == ()
    one = choose_placement([chain], shapes, CAPACITY, shifts="link")
    assert one.shifts_ns.keys() == {"j1", "j2", "j3"}
    for shifts_ns in (joint.shifts_ns, choose_placement([chain], shapes, CAPACITY).shifts_ns):
        assert all(score_of(jobs, shapes, shifts_ns) == 1 for jobs in chain.values())


@pytest.mark.slow
def test_a_ring_of_three_that_fits_is_solved_jointly():
    third = up_down(200, 100)
    shapes = {"a": third, "b": third, "c": third}
    ring = {"l": ("a", "b"), "m": ("b", "c"), "n": ("c", "a")}
    found = choose_placement([ring], shapes, CAPACITY)
    assert found.score == 1
    for jobs in ring.values():
        assert score_of(jobs, shapes, found.shifts_ns) == 1


def test_a_ring_that_contradicts_itself_is_scored_as_it_is():
    # each pair would fill its link; three halves cannot all be apart from one another
    shapes = {"a": HALF, "b": HALF, "c": HALF}
    ring = {"l": ("a", "b"), "m": ("b", "c"), "n": ("c", "a")}
    found = choose_placement([ring], shapes, CAPACITY)
    # two apart, and the third anywhere: its overlaps with the two add up to its length, half of a turn over three links
    assert found.score == pytest.approx(1 - 0.5 / 3)
    assert all(each.bound == 1 for each in found.links)
    for each in found.links:
        assert each.score == pytest.approx(score_of(each.jobs, shapes, found.shifts_ns))


def test_a_score_that_reaches_its_bound_does_not_exceed_it_by_rounding():
    # found by the property below
    shapes = {"b": demand((147, 0), (153, 96)), "d": demand((1, 0), (39, 1)), "e": demand((14, 0), (86, 75))}
    found = choose_placement([{"m": ("b", "d", "e"), "n": ("b", "d", "e")}], shapes, CAPACITY)
    assert found.score == found.links[0].bound == pytest.approx(0.72044444)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_the_order_of_jobs_links_and_demands_makes_no_difference(data):
    names = ["a", "b", "c", "d", "e"]
    shapes = {name: data.draw(demands()) for name in names}
    subsets = st.lists(st.sampled_from(names), unique=True, max_size=4)
    candidates = [{link: tuple(data.draw(subsets)) for link in "klmn"} for _ in range(3)]
    first = choose_placement(candidates, shapes, CAPACITY)
    numbers = random.Random(data.draw(st.integers(0, 1000)))

    def shuffled(items):
        items = list(items)
        numbers.shuffle(items)
        return items

    again = choose_placement(
        [dict(shuffled((link, tuple(shuffled(jobs))) for link, jobs in each.items())) for each in candidates],
        dict(shuffled(shapes.items())),
        CAPACITY,
    )
    assert [(each.candidate, each.score) for each in first.considered] == [
        (each.candidate, each.score) for each in again.considered
    ]
    assert first == again
    assert first.score <= max(each.bound for each in first.links) if first.links else first.score == 1


def test_what_cannot_be():
    with pytest.raises(UsageError, match="candidates: expected one or more, got none"):
        choose_placement([], {}, {})
    with pytest.raises(UsageError, match="job 'b' on link 'l' has no demand"):
        choose_placement([{"l": ("a", "b")}], {"a": HALF}, CAPACITY)
    with pytest.raises(UsageError, match="link 'x' has no capacity_bps"):
        choose_placement([{"x": ("a",)}], {"a": HALF}, CAPACITY)
