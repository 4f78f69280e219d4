"""Links, laws, jobs and settings: what they compute, and the values they refuse."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltcp.control.aggressiveness import Aggressiveness, Shape, Start
from mltcp.core.errors import UsageError
from mltcp.ebpf.layout import Action
from placement.simulator.network.laws.network_law import Control, WindowLaw
from placement.simulator.network.laws.run import ModelIteration, ModelOutcome, RunSettings, simulate
from placement.simulator.network.laws.workload import (
    FRAME_BYTES,
    ModelLink,
    PeriodicJob,
    Piece,
    buckets_in_backward,
    bursts,
    one_burst,
    phased,
)

LINK = ModelLink()
JOB = one_burst(0.1, 0.2)
LAW = WindowLaw.paper(Control.RENO)


def test_the_laws_are_those_of_the_kernel():
    assert WindowLaw.unmodified(Control.CUBIC).aggressiveness.shape is Shape.ONE
    assert WindowLaw.paper(Control.DCTCP).aggressiveness == Aggressiveness(Shape.LINEAR, 1.75, 0.25)
    law = WindowLaw.remaining(Control.RENO, increase=1, highest=4)
    assert (law.aggressiveness(0), law.aggressiveness(1)) == (pytest.approx(1 / 3), pytest.approx(4))
    assert (law.start, law.decrease, law.increase, law.reference_s) == (Start.PROBE, 1.0, 1, 0.1)
    assert law.with_known_iterations().learning_iterations == 0


def test_a_link_counts_in_frames():
    link = ModelLink(8 * FRAME_BYTES * 1000, ecn_threshold_bytes=20 * FRAME_BYTES, burst_s=4e-3, rtt_s=1e-4)
    assert link.packets_per_s == 1000
    assert link.window_packets == pytest.approx(0.1 + 20 - 4)
    assert ModelLink(ecn_threshold_bytes=None, queue_bytes=FRAME_BYTES * 7).window_packets == pytest.approx(
        7 + LINK.rtt_s * LINK.packets_per_s
    )


def test_periods_of_jobs():
    assert one_burst(0.1, 0.2).period_s == pytest.approx(0.3)
    assert bursts(0.1, 0.2, 4).period_s == pytest.approx(0.3)
    assert phased([(0.2, 0.1, 0.6)]).period_s == pytest.approx(0.3)
    assert phased([(0.2, 0.1, 0.6)]).line_s == pytest.approx(0.06)
    assert len(phased([(0.2, 0.1, 0.6), (0.1, 0.1, 1.0)]).pieces) == 20 + 1
    assert buckets_in_backward(0.11, 0.2, count=11).period_s == pytest.approx(0.2 + 0.01)
    assert buckets_in_backward(0.2, 0.1, count=10, forward=0.5).period_s == pytest.approx(0.055 + 0.2)


@given(count=st.integers(1, 6), line_s=st.floats(0.01, 1), silence_s=st.floats(0, 1))
def test_bursts_divide_an_iteration(count, line_s, silence_s):
    job = bursts(line_s, silence_s, count)
    assert job.line_s == pytest.approx(line_s)
    assert job.period_s == pytest.approx(line_s + silence_s)


def test_slowdowns_and_convergence():
    iterations = [ModelIteration(k, k + (1.5 if k < 3 else 1.0), 10.0 * k) for k in range(10)]
    outcome = ModelOutcome((tuple(iterations),), 0.0)
    assert outcome.slowdowns([1.0]) == [pytest.approx(1.15)]
    assert outcome.mean_slowdown([1.0], second_half=True) == 1.0
    assert outcome.converged_at([1.0]) == 3
    assert outcome.converged_at([0.9]) is None
    assert outcome.marked_in_second_half() == 40
    with pytest.raises(UsageError, match="isolated_s: expected 1 times, got 2"):
        outcome.slowdowns([1.0, 1.0])


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (lambda: ModelLink(rate_bps=0), "rate_bps"),
        (lambda: ModelLink(queue_bytes=100), "queue_bytes"),
        (lambda: ModelLink(ecn_threshold_bytes=0), "ecn_threshold_bytes"),
        (lambda: ModelLink(rtt_s=float("nan")), "rtt_s"),
        (lambda: ModelLink(rto_s=1e-5), "rto_s"),
        (lambda: WindowLaw(Control.RENO, decrease=1.5), "decrease"),
        (lambda: WindowLaw(Control.RENO, increase=-1), "increase"),
        (lambda: WindowLaw(Control.RENO, reference_s=-1), "reference_s"),
        (lambda: WindowLaw(Control.RENO, learning_iterations=-1), "learning_iterations"),
        (lambda: Piece(-1, 0.1), "after_s"),
        (lambda: Piece(0, 0), "line_s"),
        (lambda: PeriodicJob(()), "pieces"),
        (lambda: bursts(0.1, 0.1, 0), "count"),
        (lambda: phased([(0.1, 0.1, 0.0)]), "share"),
        (lambda: buckets_in_backward(0.1, 0.1, forward=2), "forward"),
        (lambda: RunSettings(iterations=0), "iterations"),
        (lambda: RunSettings(seed=-1), "seed"),
        (lambda: RunSettings(noise_s=-1), "noise_s"),
        (lambda: RunSettings(starts_s=(-1,)), "starts_s"),
        (lambda: RunSettings(holds_s=((float("inf"),),)), "holds_s"),
        (lambda: simulate(LINK, [], LAW), "jobs"),
        (lambda: simulate(LINK, [JOB], [LAW, LAW]), "laws"),
        (lambda: simulate(LINK, [JOB], LAW, RunSettings(starts_s=(0, 0))), "starts_s"),
        (lambda: simulate(LINK, [JOB], LAW, RunSettings(holds_s=((), ()))), "holds_s"),
    ],
)
def test_bad_values_are_refused_in_one_line(wrong, field):
    with pytest.raises(UsageError) as caught:
        wrong()
    assert str(caught.value).startswith(f"{field}: expected ")
    assert "\n" not in str(caught.value)


def test_the_law_by_what_remains_is_the_kernel_s_default():
    law, shape = WindowLaw.remaining(Control.CUBIC), Shape.REMAINING
    assert law.aggressiveness == Aggressiveness.of_shape(shape)
    acts = Action.of_shape(shape)
    assert (law.start, law.decrease, law.increase, law.reference_s) == (
        acts.start,
        acts.decrease,
        acts.increase,
        acts.reference_s,
    )
