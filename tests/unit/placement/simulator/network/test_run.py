"""Properties of the compiled model: line rate, work conservation, the base, symmetry, seeds, and the closed form."""

from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mltcp.control.aggressiveness import Aggressiveness, Shape, Start
from mltcp.control.fluid import closed_form_shift
from placement.simulator.network.laws import state
from placement.simulator.network.laws.network_law import WINDOW_CONTROLS, Control, WindowLaw
from placement.simulator.network.laws.run import RunSettings, isolated_s, simulate
from placement.simulator.network.laws.state import burst_scale, factor, learn_sending
from placement.simulator.network.laws.steps import finish_pieces
from placement.simulator.network.laws.windows import (
    CUBIC,
    grow,
    look,
    reduce,
    restart,
    transmission_starts,
)
from placement.simulator.network.laws.workload import (
    ModelLink,
    buckets_in_backward,
    bursts,
    one_burst,
    phased,
)

LAB = ModelLink()
PERIOD_S, LINE_S = 0.386, 0.166
VGG = one_burst(LINE_S, PERIOD_S - LINE_S)
QUIET = RunSettings(iterations=12, noise_s=0, overhead_s=0)
LAWS = {
    f"{base.label} {law.__name__}": law(base)
    for base in WINDOW_CONTROLS
    for law in (WindowLaw.unmodified, WindowLaw.paper, WindowLaw.remaining)
}
every_law = pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
every_base = pytest.mark.parametrize("base", WINDOW_CONTROLS, ids=lambda base: base.label)


@every_law
@pytest.mark.parametrize(
    "link",
    [ModelLink(50e6, 300e3, 15e3), LAB, ModelLink(200e6, 40e3, None), ModelLink(1e9, 1e6, 150e3)],
    ids=["50 Mbit/s", "lab", "drop-tail", "1 Gbit/s"],
)
def test_a_job_alone_reaches_line_rate(link, law):
    durations_s = simulate(link, [VGG], law, QUIET).durations_s(0)[2:]
    assert max(durations_s) < PERIOD_S + 0.02 * LINE_S
    assert min(durations_s) >= PERIOD_S - link.burst_s - 2 * link.rtt_s  # the bucket's burst is on the wire


@every_law
@pytest.mark.parametrize(
    "job", [bursts(LINE_S, 0.22, 4), phased([(0.2, 0.2, 0.6)]), buckets_in_backward(0.0965, 0.22)]
)
def test_other_jobs_alone_take_their_period(job, law):
    durations_s = simulate(LAB, [job], law, QUIET).durations_s(0)[2:]
    assert durations_s == [pytest.approx(job.period_s, rel=0.02)] * len(durations_s)


@every_law
def test_work_is_conserved(law):
    """Jobs that always send share the link and leave nothing of it."""
    jobs = [one_burst(0.2, 0.0), one_burst(0.1, 0.0), one_burst(0.3, 0.0)]
    outcome = simulate(LAB, jobs, law, QUIET)
    end_s = max(job[-1].end_s for job in outcome.jobs)
    carried_s = sum(len(each) * job.line_s for each, job in zip(outcome.jobs, jobs, strict=True))
    assert end_s - max(job.line_s for job in jobs) * 3 <= carried_s <= end_s
    assert outcome.dropped == 0


@every_base
@pytest.mark.parametrize("start", [Start.KERNEL, Start.AVOID, Start.KEEP, Start.PROBE])
def test_with_f_1_everything_is_the_base(base, start):
    """Iteration by iteration, to the last bit: F = 1 by its shape, or by slope 0, and then with the kernel's start."""
    jobs, run = [VGG, one_burst(0.1, 0.2)], RunSettings(iterations=12, seed=3)
    unmodified = simulate(LAB, jobs, WindowLaw.unmodified(base), run)
    for f, first in ((Aggressiveness(Shape.ONE), start), (Aggressiveness(Shape.LINEAR, 0, 1), Start.KERNEL)):
        law = WindowLaw(base, f, first, decrease=1.0, increase=2.0)
        assert simulate(LAB, jobs, law, run) == unmodified


@every_law
def test_jobs_that_change_places_change_their_times(law):
    """Neither job is preferred for its number: over many seeds, they are slowed down alike."""
    run = RunSettings(iterations=10)
    outcomes = [simulate(LAB, [VGG, VGG], law, replace(run, seed=seed)) for seed in range(24)]
    totals = np.array([[sum(each.durations_s(job)) for job in (0, 1)] for each in outcomes])
    difference = totals[:, 0] - totals[:, 1]
    assert abs(difference.mean()) < 4 * difference.std() / np.sqrt(len(difference)) + 1e-3


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_seed_gives_one_outcome(seed):
    run, law = RunSettings(iterations=6, seed=seed), WindowLaw.paper(Control.CUBIC)
    assert simulate(LAB, [VGG, VGG], law, run) == simulate(LAB, [VGG, VGG], law, run)


def test_seeds_differ():
    law = WindowLaw.paper(Control.CUBIC)
    outcomes = [simulate(LAB, [VGG, VGG], law, RunSettings(iterations=6, seed=seed)) for seed in (1, 2)]
    assert outcomes[0] != outcomes[1]


@every_base
def test_equal_jobs_part_within_five_iterations(base):
    run = RunSettings(iterations=30)
    alone_s = isolated_s(LAB, [VGG, VGG], run)
    law = WindowLaw.remaining(base)
    outcomes = [simulate(LAB, [VGG, VGG], law, replace(run, seed=seed)) for seed in range(5)]
    assert sorted(each.converged_at(alone_s) for each in outcomes)[2] <= 5
    assert all(each.mean_slowdown(alone_s, second_half=True) < 1.03 for each in outcomes)


def test_a_falling_f_drives_jobs_together():
    law = WindowLaw(Control.RENO, Aggressiveness(Shape.FALLING_LINEAR))
    run = RunSettings(iterations=30, starts_s=(0.0, 0.1))
    assert simulate(LAB, [VGG, VGG], law, run).mean_slowdown([PERIOD_S] * 2, second_half=True) > 1.35


@pytest.mark.parametrize("part", [0.1, 0.2, 0.3, 0.5, 0.7, 0.9])
def test_many_packets_give_the_closed_form(part):
    """shift(d) of the paper, within 4 % of the communication time, on a link of many packets an iteration."""
    line_s, link = 0.5, ModelLink(3e9, 3e6, 30e3, burst_s=0, rtt_s=1e-4)
    law = WindowLaw.paper(Control.RENO).with_known_iterations()
    shifts_s = []
    for seed in range(8):
        run = RunSettings(2, seed, noise_s=0, overhead_s=0, starts_s=(0.0, part * line_s))
        first, second = simulate(link, [one_burst(line_s, 0.7)] * 2, law, run).jobs
        offsets_s = [late.begin_s - early.begin_s for early, late in zip(first, second, strict=False)]
        shifts_s.append(offsets_s[1] - offsets_s[0])
    expected_s = closed_form_shift(part * line_s, line_s, 1.75, 0.25)
    assert fmean(shifts_s) == pytest.approx(expected_s, abs=0.04 * line_s)


def test_holds_do_not_count():
    run = replace(QUIET, holds_s=((0.0, 0.0, 0.0, 0.5),))
    iterations = simulate(LAB, [VGG], WindowLaw.unmodified(Control.RENO), run).jobs[0]
    assert iterations[3].begin_s - iterations[2].end_s == pytest.approx(0.5)
    assert iterations[3].duration_s == pytest.approx(PERIOD_S, rel=0.01)


def record(dtype, **values):
    made = np.zeros(1, dtype)[0]
    for name, value in values.items():
        made[name] = value
    return made


@given(shape=st.sampled_from(Shape), slope=st.floats(0, 10), intercept=st.floats(0.01, 3), x=st.floats(0, 1))
def test_f_is_that_of_the_controls(shape, slope, intercept, x):
    f = Aggressiveness(shape, slope, intercept)
    law = record(state.LAW, shape=int(shape), slope=slope, intercept=intercept)
    assert factor(law, x, 1.0) == pytest.approx(f(x))


def test_the_scale_is_a_root_within_its_limits():
    law = record(state.LAW, reference=0.1)
    for took_s, scale in ((0.1, 1.0), (0.4, 0.5), (0.025, 2.0), (1e-4, 4.0), (10.0, 0.25)):
        job = record(
            state.JOB, first_sent=1.0, last_acked=1.0 + took_s, iteration=2, total=8.0, burst_packets=8.0
        )
        assert burst_scale(law, job) == 1
        learn_sending(law, job)
        assert burst_scale(law, job) == pytest.approx(scale)
    # Of two bursts one takes half of the time that is left without the silence between them.
    job = record(
        state.JOB, first_sent=1.0, last_acked=1.1, silent=0.05, iteration=2, total=8.0, burst_packets=4.0
    )
    learn_sending(law, job)
    assert burst_scale(law, job) == pytest.approx(2.0)


def test_reno_and_the_scaled_steps():
    flow = record(state.FLOW, cwnd=10, ssthresh=5, left=100.0, factor=1.0)
    grow(record(state.LAW), flow, 25, 1.0)
    assert (flow["cwnd"], flow["count"]) == (12, 5)
    for queued, expected in ((1, (11, 0)), (0, (13, 7))):  # F below 1 gives way to a queue only
        flow = record(state.FLOW, cwnd=10, ssthresh=5, left=100.0, factor=0.25, queued=queued)
        for _ in range(8):
            grow(record(state.LAW), flow, 5, 1.0)
        assert (flow["cwnd"], flow["count"]) == expected
    limited = record(state.FLOW, cwnd=10, ssthresh=5, left=0.0, factor=1.0)
    grow(record(state.LAW), limited, 100, 1.0)
    assert limited["cwnd"] == 10


@pytest.mark.parametrize(
    ("base", "cwnd", "f", "d", "expected"),
    [
        (Control.RENO, 21, 1.0, 0.0, 10),
        (Control.RENO, 21, 4.0, 1.0, 19),  # loses 11 / 4 packets, of which 0.75 is carried
        (Control.RENO, 21, 0.25, 1.0, 10),
        (Control.CUBIC, 100, 1.0, 1.0, 70),
        (Control.CUBIC, 100, 2.0, 1.0, 85),
        (Control.DCTCP, 100, 1.0, 0.0, 75),  # alpha is 1/2
        (Control.RENO, 3, 1.0, 0.0, 2),
    ],
)
def test_the_decrease(base, cwnd, f, d, expected):
    law = record(state.LAW, base=int(base), decrease=d)
    flow = record(state.FLOW, cwnd=cwnd, factor=f, alpha=512, signal=state.MARK)
    reduce(law, flow)
    assert (flow["cwnd"], flow["ssthresh"]) == (expected, expected)
    assert flow["lost_carry"] == pytest.approx(0.75 if f == 4.0 else 0.0)


def test_cubic_remembers_its_largest_window():
    flow = record(state.FLOW, cwnd=100, factor=1.0, epoch=7)
    law = record(state.LAW, base=CUBIC)
    reduce(law, flow)
    assert (flow["last_max"], flow["epoch"]) == (100, state.NEVER)
    reduce(law, flow)  # 70 packets: below the last maximum, so 85 % of it
    assert flow["last_max"] == 59


@pytest.mark.parametrize(
    ("start", "cwnd", "ssthresh"),
    [(Start.KERNEL, 10, 30), (Start.AVOID, 10, 30), (Start.KEEP, 40, 30), (Start.PROBE, 4, 30)],
)
def test_the_first_window_of_an_iteration(start, cwnd, ssthresh):
    flow = record(state.FLOW, cwnd=40, ssthresh=20, factor=0.25, epoch=3)
    restart(flow, 0.2, 0.005)
    assert (flow["cwnd"], flow["ssthresh"]) == (10, 30)
    transmission_starts(record(state.LAW, base=CUBIC, start=int(start)), flow, True, True, 0.2, 1.0)
    assert (flow["cwnd"], flow["ssthresh"]) == (cwnd, ssthresh)
    assert (flow["epoch"] == state.NEVER) == (start is Start.PROBE)


def test_slow_start_waits_while_others_fill_the_queue():
    """The first round trip of an iteration tells; a later one that is short ends the waiting."""
    flow, law = record(state.FLOW, left=9.0, factor=0.5), record(state.LAW, start=int(Start.AVOID))
    seen = []
    for rtt in (0.012, 0.012, 0.030):
        transmission_starts(law, flow, True, True, 0.2, 1.0)
        look(law, flow, True, rtt, 0.010)
        seen.append(int(flow["holds"]))
    assert seen == [0, 0, 1]
    flow["cwnd"], flow["ssthresh"] = 10, 40
    grow(law, flow, 10, 1.0)
    assert (flow["cwnd"], flow["ssthresh"]) == (10, 40)  # half a packet a round trip, by F
    look(law, flow, True, 0.019, 0.010)
    grow(law, flow, 10, 1.0)
    assert (flow["cwnd"], flow["ssthresh"]) == (20, 40)


@pytest.mark.parametrize(
    ("ended", "drops", "begin"), [(1.004, 0, 1.005), (1.009, 0, 1.005), (1.020, 0, 1.015), (1.020, 1, 1.020)]
)
def test_a_late_piece_is_made_up_for_by_at_most_one(ended, drops, begin):
    pieces = np.array([(0.0, 1.0, 0.005, 2.0, 0.0)] * 2, state.PIECE)
    job = record(state.JOB, pieces=2, sending=1, begin=1.0, drops_lateness=drops)
    flow = record(state.FLOW)
    assert finish_pieces(record(state.LAW), job, flow, pieces, ended, 0.0) == state.NEVER
    assert job["begin"] == pytest.approx(begin)
    assert job["due"] == pytest.approx(max(begin, ended))


def test_f_by_the_burst_parts_jobs_of_several_bursts():
    """By that of the iteration they do not part: of bursts that collide it differs by an eighth at most."""
    jobs = [bursts(0.215, 0.285, 8)] * 2
    runs = RunSettings(iterations=40, starts_s=(0.0, 0.003))
    alone_s = isolated_s(LAB, jobs, replace(runs, starts_s=()), Control.RENO)
    burst, iteration = (
        simulate(LAB, jobs, replace(WindowLaw.paper(Control.RENO), whole=whole), runs).mean_slowdown(
            alone_s, True
        )
        for whole in (False, True)
    )
    assert burst < 1.05 < 1.1 < iteration
