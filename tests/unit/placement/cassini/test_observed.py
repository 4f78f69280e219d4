import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltcp.core.demand import Demand, Phase
from placement.cassini.drift import observed
from tests.unit.placement.cassini.demands import demand, demands

KNOWN = demand((60, 0), (40, 100))


def test_longer_communication_is_contention_and_no_change():
    assert observed(demand((60, 0), (80, 50)), KNOWN) == KNOWN
    assert observed(demand((62, 0), (40, 100)), KNOWN) == KNOWN


def test_an_iteration_that_is_shorter_says_more_of_the_job():
    assert observed(demand((60, 0), (36, 110)), KNOWN) == demand((60, 0), (36, 110))
    assert observed(demand((60, 0), (39.5, 101)), KNOWN) == KNOWN


def test_a_doubled_batch_doubles_the_silence():
    found = observed(demand((120, 0), (40, 100)), KNOWN)
    assert found == demand((120, 0), (40, 100))


def test_what_was_measured_while_sharing_is_sent_as_fast_as_before():
    found = observed(demand((120, 0), (80, 50)), KNOWN)
    assert found == demand((120, 0), (40, 100))


def test_more_bits_are_a_change_and_a_faster_link_is_taken_as_it_is():
    assert observed(demand((60, 0), (60, 100)), KNOWN) == demand((60, 0), (60, 100))
    assert observed(demand((60, 0), (40, 200)), KNOWN) == demand((60, 0), (40, 200))


@given(demands(), st.floats(0.05, 1))
def test_stretching_a_job_never_changes_what_is_known_of_it(shape, share):
    known = Demand(tuple(Phase(each.duration_ns, each.bandwidth_bps * 10**6) for each in shape.phases))
    stretched = Demand(
        tuple(
            Phase(round(each.duration_ns / share), round(each.bandwidth_bps * share))
            if each.bandwidth_bps
            else each
            for each in known.phases
        )
    )
    assert observed(stretched, known) is known


@given(demands(), demands())
def test_bits_are_kept(reported, known):
    found = observed(reported, known)
    assert found is known or found is reported or found.bits == pytest.approx(reported.bits, rel=1e-3, abs=1)


BUCKETS = demand((220, 0), (25, 270), (24, 0), (127, 275), (14, 0), (8, 268), (87, 0), (10, 18), (4, 0))
"""Of a VGG-16 in DDP: it computes between its buckets."""


def test_buckets_that_take_longer_fill_the_silences_after_them():
    beside = demand((236, 0), (309, 143), (14, 0))
    assert observed(beside, BUCKETS) == BUCKETS


def test_less_silence_than_stretched_buckets_would_leave_is_another_demand():
    halved = demand((110, 0), (36, 190), (12, 0), (273, 138), (14, 0))
    assert observed(halved, BUCKETS) != BUCKETS
    assert observed(halved, BUCKETS).phases[0].duration_ns == 110 * 10**6


def test_less_silence_beside_communication_as_before_is_another_demand():
    sooner = demand((120, 0), (25, 270), (24, 0), (127, 275), (14, 0), (8, 268), (87, 0), (10, 18), (4, 0))
    assert observed(sooner, BUCKETS).phases[0].duration_ns == 120 * 10**6
