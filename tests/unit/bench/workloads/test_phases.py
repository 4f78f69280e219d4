"""Demand phases on the lab's link: shares and times as in the set, whatever the link."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.workloads.phases import (
    ComputeChange,
    PhasedWork,
    Stretch,
    next_due_s,
    on_link,
    parse_change,
    time_scale,
)
from bench.workloads.profile import link_time_s
from mltcp.core.demand import Demand, Phase
from mltcp.core.errors import UsageError

RATE_BPS = 300_000_000
CAPACITY_BPS = 50 * 10**9


def demand(*phases):
    return Demand(
        tuple(Phase(round(seconds * 1e9), round(share * CAPACITY_BPS)) for seconds, share in phases)
    )


def placed(demand, ranks=2, scale=1.0):
    return on_link("job", demand, CAPACITY_BPS, RATE_BPS, ranks, scale)


def test_a_phase_at_line_rate_is_one_all_reduce_that_takes_its_time():
    work = placed(demand((0.2, 0), (0.1, 1)), scale=2.0)
    silent, sending = work.stretches
    assert silent == Stretch(0.4)
    assert len(sending.pieces_bytes) == 1
    assert link_time_s(sending.pieces_bytes[0], RATE_BPS, 2) == pytest.approx(0.2, rel=1e-6)
    assert work.isolated_iteration_s(RATE_BPS, 2) == pytest.approx(0.6)


def test_a_phase_below_line_rate_is_sent_in_small_pieces():
    (stretch,) = placed(demand((0.1, 0.4))).stretches
    assert len(stretch.pieces_bytes) == 20
    assert stretch.every_s == pytest.approx(0.005)
    busy_s = sum(link_time_s(size, RATE_BPS, 2) for size in stretch.pieces_bytes)
    assert busy_s == pytest.approx(0.04, rel=1e-3)


def test_a_phase_above_the_capacity_takes_as_much_longer():
    work = placed(demand((0.1, 0), (0.1, 1.5)))
    assert work.isolated_iteration_s(RATE_BPS, 2) == pytest.approx(0.25)


def test_a_single_rank_has_nobody_to_send_to():
    work = placed(demand((0.2, 0), (0.1, 1)), ranks=1)
    assert work.sent_bytes == 0
    assert work.isolated_iteration_s(RATE_BPS, 1) == pytest.approx(0.3)


@given(
    st.lists(st.tuples(st.floats(0.01, 0.5), st.floats(0.05, 1.0)), min_size=1, max_size=6),
    st.integers(2, 12),
    st.floats(0.2, 3.0),
)
def test_every_phase_keeps_its_share_of_the_link(phases, ranks, scale):
    work = placed(demand(*phases), ranks=ranks, scale=scale)
    for (seconds, share), stretch in zip(phases, work.stretches, strict=True):
        assert stretch.duration_s == pytest.approx(seconds * scale, rel=1e-6)
        busy_s = sum(link_time_s(size, RATE_BPS, ranks) for size in stretch.pieces_bytes)
        assert busy_s / stretch.duration_s == pytest.approx(share, rel=0.01)


def test_a_change_stretches_silences_only():
    work = PhasedWork("job", (Stretch(0.2), Stretch(0.1, (1000,))), ComputeChange(3, 2.0))
    assert work.at(2) == work.stretches
    assert work.at(3) == (Stretch(0.4), Stretch(0.1, (1000,)))


def test_one_scale_for_a_set():
    assert time_scale([0.2, 0.2]) == pytest.approx(2.0)  # 0.4 s
    assert 0.17 * time_scale([0.17, 0.06]) == pytest.approx(0.2 * 0.17 / 0.06)  # the shortest becomes 0.2 s
    assert 1.0 * time_scale([1.0, 0.1]) == pytest.approx(0.6)  # no more than that
    with pytest.raises(UsageError):
        time_scale([])


def ended_at(took_s, every_s=1.0):
    """When pieces end that take these times, each sent when it is due and the one before it is done."""
    now_s = due_s = 0.0
    for piece_s in took_s:
        now_s = max(now_s, due_s) + piece_s
        due_s = next_due_s(due_s, every_s, now_s)
    return now_s


def test_pieces_on_time_keep_the_rate():
    assert ended_at([0.5] * 10) == pytest.approx(9.5)


@pytest.mark.parametrize(("late_s", "lost_s"), [(0.9, 0.0), (1.9, 0.0), (2.4, 0.4), (5.0, 3.0)])
def test_lateness_is_made_up_for_up_to_a_piece(late_s, lost_s):
    """A piece that ends by up to two intervals after it was due costs nothing, a later one what exceeds that."""
    assert ended_at([0.5, 0.5, late_s, *[0.5] * 20]) == pytest.approx(22.5 + lost_s)


@given(st.lists(st.floats(0.01, 4.0), min_size=1, max_size=60))
def test_the_rate_exceeds_that_of_the_phase_by_two_pieces_at_most(took_s):
    began, now_s, due_s = [], 0.0, 0.0
    for piece_s in took_s:
        began.append(max(now_s, due_s))
        now_s = began[-1] + piece_s
        due_s = next_due_s(due_s, 1.0, now_s)
    for first in range(len(began)):
        for last in range(first, len(began)):
            assert last - first + 1 <= began[last] - began[first] + 3 + 1e-9


def test_a_change_as_it_is_written():
    assert parse_change("VGG16:40:2") == ("VGG16", ComputeChange(40, 2.0))
    for text in ("VGG16", "VGG16:x:2", "VGG16:0:2", "VGG16:3:0", "VGG16:3:nan"):
        with pytest.raises(UsageError):
            parse_change(text)
