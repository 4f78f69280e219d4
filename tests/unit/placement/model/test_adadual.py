"""AdaDUAL: the theorems and the rule for any number of transfers, against a simulation of every start worth trying."""

import random
from bisect import insort
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mltcp.core.errors import UsageError
from placement.model.job import PUBLISHED, Contention
from placement.model.state import JOB, LINK, PLACE
from placement.policies.communication import starts_beside_any as starts
from tests.unit.placement.model.adadual import (
    average_c1,
    average_c2,
    best_start,
    completion_times,
    largest_that_starts,
    starts_now,
    summed_completion,
    theorem_1,
    theorem_2,
)

STEPS = 8
"""Into how many parts the starts that are tried divide each stage; sizes are multiples of it, to stay integers."""

sizes = st.fractions(min_value=Fraction(1, 50), max_value=1000, max_denominator=50)
runnings = st.lists(sizes, min_size=1, max_size=6)
contentions = st.builds(
    Contention,
    st.just(Fraction(0)),
    st.fractions(min_value=Fraction(1, 20), max_value=10, max_denominator=20),
    st.fractions(min_value=0, max_value=10, max_denominator=20),
)


def divided(number, by):
    whole, rest = divmod(number, by)
    return whole if rest == 0 else Fraction(number) / by


def simulated(running, new, start, b, eta):
    """When each ends, the new one last: from event to event, all that run moving alike (Eq. 5), exactly."""
    due = sorted((size, number) for number, size in enumerate(running))
    ends = {}
    now, moved, waits = 0, 0, True
    while due or waits:
        if waits and (not due or now == start):
            waits, now = False, start
            insort(due, (moved + new, len(running)))
        pace = len(due) * b + (len(due) - 1) * eta
        until = now + (due[0][0] - moved) * pace
        if waits and until > start:
            moved += divided(start - now, pace)
            now = start
        else:
            moved, number = due.pop(0)
            now = ends[number] = until
    return [ends[number] for number in range(len(running) + 1)]


def starts_worth_trying(running, new, b, eta):
    """A grid over all stages, completions, when one has as much left as the new one, and later."""
    starts, now, moved = {0}, 0, 0
    for ended, size in enumerate(sorted(running)):
        pace = (len(running) - ended) * b + (len(running) - ended - 1) * eta
        bends = {moved + (size - moved) * step // STEPS for step in range(STEPS + 1)}
        bends |= {other - new for other in running if moved < other - new < size}
        starts |= {now + (bend - moved) * pace for bend in bends}
        now, moved = now + (size - moved) * pace, size
    return starts | {now + 1, now + new * b}


def best_of_all(running, new, b, eta):
    """The latest of the best starts, by trying them."""
    tried = {
        start: sum(simulated(running, new, start, b, eta))
        for start in starts_worth_trying(running, new, b, eta)
    }
    least = min(tried.values())
    return max(start for start, total in tried.items() if total == least), least


def draw_contention(chance):
    """b and eta, whole; no penalty at all in a third of the cases."""
    return chance.randint(1, 9), chance.choice((0, chance.randint(1, 9), chance.randint(1, 30)))


def draw_size(chance, most):
    return chance.randint(1, most) * STEPS


def as_contention(b, eta):
    return Contention(Fraction(0), Fraction(b), Fraction(eta))


class TestTwo:
    """Problem P1: two new transfers."""

    @pytest.mark.slow
    def test_theorems_are_what_trying_every_start_finds(self):
        chance = random.Random(1)
        for _ in range(2_500):
            b, eta = draw_contention(chance)
            smaller, larger = sorted(draw_size(chance, 30) for _ in range(2))
            contention = as_contention(b, eta)
            assert best_of_all([smaller], larger, b, eta)[0] == theorem_1(smaller, larger, contention)
            assert best_of_all([larger], smaller, b, eta)[0] == theorem_2(smaller, larger, contention)

    @pytest.mark.slow
    def test_averages_are_those_of_the_simulation(self):
        chance = random.Random(2)
        for _ in range(1_000):
            b, eta = draw_contention(chance)
            smaller, larger = sorted(draw_size(chance, 30) for _ in range(2))
            contention = as_contention(b, eta)
            for start in starts_worth_trying([smaller], larger, b, eta):
                if start <= b * smaller:
                    average = Fraction(sum(simulated([smaller], larger, start, b, eta)), 2)
                    assert average_c1(smaller, larger, start, contention) == average
            for start in starts_worth_trying([larger], smaller, b, eta):
                if start <= b * larger:
                    average = Fraction(sum(simulated([larger], smaller, start, b, eta)), 2)
                    assert average_c2(smaller, larger, start, contention) == average

    @pytest.mark.slow
    @settings(deadline=None)
    @given(sizes, sizes, contentions)
    def test_the_smaller_one_first_and_alone_is_best_of_all(self, one, other, contention):
        smaller, larger = sorted((one, other))
        b, eta = contention.ns_per_byte, contention.penalty_ns_per_byte
        c1 = average_c1(smaller, larger, theorem_1(smaller, larger, contention), contention)
        c2a = average_c2(smaller, larger, 0, contention)
        c2b = average_c2(smaller, larger, b * larger, contention)
        assert c1 == (2 * b * smaller + b * larger) / 2  # Eq. 14a
        assert c2a == ((3 * b + 2 * eta) * smaller + b * larger) / 2  # Eq. 14b
        assert c2b == (b * smaller + 2 * b * larger) / 2  # Eq. 14c
        assert c1 < c2a
        assert c1 <= c2b

    def test_equation_13_is_strict(self):
        contention = as_contention(2, 1)  # theta = 1/3
        assert theorem_2(99, 300, contention) == 0
        assert theorem_2(100, 300, contention) == 600
        assert starts_now([300], 99, contention)
        assert not starts_now([300], 100, contention)

    def test_refused(self):
        with pytest.raises(UsageError, match=r"^P1: expected M1 <= M2, got 2 and 1 bytes$"):
            theorem_1(2, 1, PUBLISHED)
        with pytest.raises(UsageError, match=r"^P1: start: expected 0 to 2 ns, got 3$"):
            average_c1(2, 5, 3, as_contention(1, 1))


class TestAnyNumber:
    """The rule beside any number of running transfers."""

    @pytest.mark.slow
    def test_the_rule_is_what_trying_every_start_finds(self):
        chance = random.Random(3)
        joined = [0] * 6
        for _ in range(2_500):
            b, eta = draw_contention(chance)
            most = chance.choice((3, 20, 300))  # of the first, many are equal
            running = [draw_size(chance, most) for _ in range(chance.choice((1, 2, 2, 3, 3, 4, 5)))]
            new = draw_size(chance, max(1, most // chance.choice((1, 2, 4))))
            contention = as_contention(b, eta)
            start, least = best_of_all(running, new, b, eta)
            assert best_start(running, new, contention) == start
            assert summed_completion(running, new, start, contention) == least
            assert starts_now(running, new, contention) == (start == 0)
            joined[len(running)] += start == 0
        assert min(joined[1:]) > 50  # it does start beside every number of them: the cases are not all alike

    @pytest.mark.slow
    @settings(deadline=None)
    @given(runnings, sizes, st.fractions(min_value=0, max_value=1, max_denominator=97), contentions)
    def test_completions_are_those_of_the_simulation(self, running, new, part, contention):
        b, eta = contention.ns_per_byte, contention.penalty_ns_per_byte
        last = max(simulated(running, new, 0, b, eta))
        start = part * last
        ends = completion_times(running, new, start, contention)
        assert list(ends) == simulated(running, new, start, b, eta)

    @pytest.mark.slow
    @settings(deadline=None)
    @given(runnings, sizes, contentions)
    def test_no_start_in_between_is_better(self, running, new, contention):
        best = summed_completion(running, new, best_start(running, new, contention), contention)
        ends = sorted({Fraction(0), *completion_times(running, 1, 10**9, contention)[:-1]})
        for before, after in pairwise(ends):
            for step in range(4):
                start = before + (after - before) * step / 4
                assert summed_completion(running, new, start, contention) >= best

    def test_nothing_running(self):
        assert starts_now([], 5, PUBLISHED)
        assert best_start([], 5, PUBLISHED) == 0
        assert completion_times([], 5, 2, as_contention(3, 1)) == (17,)

    def test_waiting_for_the_first_or_for_all(self):
        contention = as_contention(1, 0)
        assert best_start([10, 1000], 30, contention) == 20
        assert best_start([10, 1000], 900, contention) == 1010
        assert best_start([10, 1000], 9, contention) == 0

    def test_it_may_be_larger_than_the_shortest_of_three(self):
        assert starts_now([1, 10, 10], 4, PUBLISHED)
        assert not starts_now([1, 10], 1, PUBLISHED)

    @pytest.mark.parametrize(("running", "new"), [([1, 0], 1), ([1, 2], 0), ([-1], 1)])
    def test_sizes_refused(self, running, new):
        for ask in (starts_now, best_start):
            with pytest.raises(
                UsageError, match=r"^AdaDUAL: transfer: expected more than 0 bytes, got -?\d$"
            ):
                ask(running, new, PUBLISHED)

    def test_others_refused(self):
        with pytest.raises(UsageError, match="start: expected 0 ns or more, got -1"):
            completion_times([1], 1, -1, PUBLISHED)
        with pytest.raises(UsageError, match="expected 1 or more transfers"):
            largest_that_starts([], PUBLISHED)


class TestLaws:
    """Invariances of the rule, and consequences of it."""

    @pytest.mark.slow
    @settings(deadline=None)
    @given(sizes, sizes, contentions)
    def test_beside_one_it_is_theorem_2(self, one, other, contention):
        assert starts_now([one], other, contention) == (other / one < contention.acceptance)
        assert largest_that_starts([one], contention) == contention.acceptance * one
        assert starts_now([one], other, contention) == (
            other <= one and theorem_2(other, one, contention) == 0
        )

    @pytest.mark.slow
    @settings(deadline=None)
    @given(runnings, sizes, contentions, sizes, sizes)
    def test_units_do_not_matter(self, running, new, contention, bytes_unit, ns_unit):
        scaled = replace(
            contention,
            ns_per_byte=contention.ns_per_byte * ns_unit,
            penalty_ns_per_byte=contention.penalty_ns_per_byte * ns_unit,
        )
        grown = [size * bytes_unit for size in running]
        assert starts_now(grown, new * bytes_unit, scaled) == starts_now(running, new, contention)
        start = best_start(running, new, contention)
        assert best_start(grown, new * bytes_unit, scaled) == start * bytes_unit * ns_unit

    @pytest.mark.slow
    @settings(deadline=None)
    @given(runnings, sizes, contentions, st.randoms(use_true_random=False))
    def test_order_and_latency_do_not_matter(self, running, new, contention, chance):
        shuffled = chance.sample(running, len(running))
        late = replace(contention, latency_ns=Fraction(10**6))
        assert starts_now(shuffled, new, late) == starts_now(running, new, contention)
        assert best_start(shuffled, new, late) == best_start(running, new, contention)
        assert largest_that_starts(shuffled, late) == largest_that_starts(running, contention)

    @pytest.mark.slow
    @settings(deadline=None)
    @given(runnings, contentions)
    def test_all_sizes_below_one_start_and_none_above(self, running, contention):
        size = largest_that_starts(running, contention)
        assert 0 < size <= max(running)
        assert not starts_now(running, size, contention)
        assert not starts_now(running, size * 2, contention)
        assert starts_now(running, size * Fraction(999_999, 1_000_000), contention)
        assert starts_now(running, size / 2, contention)

    @pytest.mark.slow
    @settings(deadline=None)
    @given(runnings, sizes, contentions)
    def test_it_never_starts_beside_as_many_smaller_as_larger_ones(self, running, new, contention):
        smaller = sum(size <= new for size in running)
        if 2 * smaller >= len(running):
            assert not starts_now(running, new, contention)

    @pytest.mark.slow
    @settings(deadline=None)
    @given(runnings, contentions)
    def test_the_sum_is_of_pairs(self, running, contention):
        *others, new = running
        b, eta = contention.ns_per_byte, contention.penalty_ns_per_byte
        pairs = sum(min(one, other) for position, one in enumerate(running) for other in running[:position])
        assert summed_completion(others, new, 0, contention) == b * sum(running) + 2 * (b + eta) * pairs

    @pytest.mark.slow
    @settings(deadline=None)
    @given(sizes, st.integers(1, 6), contentions)
    def test_equal_ones(self, size, running, contention):
        theta = contention.acceptance
        assert (
            largest_that_starts([size] * running, contention)
            == size * (theta + Fraction(running - 1, 2)) / running
        )


def placed(per_link, new):
    """Records of a new job on some links, each of which carries transfers with so much left; and its number."""
    lefts = [left for link in per_link for left in link]
    jobs = np.zeros(len(lefts) + 1, JOB)
    links = np.zeros(len(per_link), LINK)
    places = np.zeros(len(per_link) + len(lefts), PLACE)
    number = len(lefts)
    jobs["left"][:number] = lefts
    jobs["left"][number], jobs["places"][number] = new, len(per_link)
    job = 0
    for link, running in enumerate(per_link):
        places[link] = (number, link, -1, -1)
        links["first_running"][link] = -1
        for _ in running:
            place = len(per_link) + job
            places[place] = (job, link, links["first_running"][link], -1)
            links["first_running"][link] = place
            links["running"][link] += 1
            job += 1
    return jobs, links, places, number


def compiled_starts(per_link, new, contention):
    jobs, links, places, number = placed(per_link, new)
    most = max(map(len, per_link)) + 2
    paces = [Fraction(0)] + [contention.pace_ns_per_byte(count) for count in range(1, most)]
    costs = np.array([float(pace / contention.ns_per_byte) for pace in paces])
    return starts(jobs, links, places, costs, number)


class TestCompiled:
    """The same rule on the records of a simulation or a service, in float64."""

    @pytest.mark.slow
    def test_agrees_with_the_exact_rule(self):
        chance = random.Random(4)
        near = 0
        for _ in range(1_500):
            contention = as_contention(*draw_contention(chance))
            scale = chance.choice((10**3, 10**9, 2**60))
            running = [chance.randint(1, scale) for _ in range(chance.randint(1, 6))]
            size = largest_that_starts(running, contention)
            new = max(1, round(size * chance.choice((1, 1 - 1e-9, 1 + 1e-9, chance.random() * 2))))
            if abs(new / size - 1) < Fraction(1, 10**11):
                near += 1
                continue
            assert compiled_starts([running], new, contention) == starts_now(running, new, contention)
        assert near < 2_000

    def test_a_tie_waits(self):
        chance = random.Random(5)
        ties = 0
        for _ in range(2_000):
            contention = as_contention(*draw_contention(chance))
            unit = chance.choice((1, 2**40))
            running = [chance.randint(1, 40) * 2520 * unit for _ in range(chance.randint(1, 4))]
            size = largest_that_starts(running, contention)
            if size.denominator == 1:
                ties += 1
                assert not compiled_starts([running], int(size), contention)
                assert compiled_starts([running], int(size) - max(1, int(size) >> 36), contention)
        assert ties > 200

    def test_nothing_running(self):
        assert compiled_starts([[], []], 5, PUBLISHED)

    def test_one_that_has_nothing_left_is_waited_for(self):
        assert not compiled_starts([[0]], 5, PUBLISHED)
        assert not compiled_starts([[1000, 0]], 5, PUBLISHED)

    def test_every_link_must_agree(self):
        assert compiled_starts([[100], [100, 100], []], 39, PUBLISHED)
        assert compiled_starts([[100, 100]], 44, PUBLISHED)
        assert not compiled_starts([[100, 100], [100]], 44, PUBLISHED)
        assert not compiled_starts([[100], [100, 100]], 44, PUBLISHED)

    def test_sums_beyond_an_integer(self):
        assert compiled_starts([[2**61] * 8], 2**60 - 2**57, PUBLISHED)
        assert not compiled_starts([[2**61] * 8], 2**60, PUBLISHED)
