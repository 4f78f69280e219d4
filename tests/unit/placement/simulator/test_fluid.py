import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mltcp.core.demand import Phase
from mltcp.core.errors import UsageError
from placement.simulator.fluid import Fluid
from tests.unit.placement.simulator import fluid_reference

MS = 10**6
GBPS = 10**9
FAR_NS = 10**15


def phases(*pairs):
    return tuple(Phase(ms * MS, gbps * GBPS) for ms, gbps in pairs)


def run_all(fluid, jobs):
    while any(fluid.runs(job) for job in range(jobs)):
        fluid.run(FAR_NS)
    return fluid.iterations()


def test_a_job_alone_takes_exactly_its_iteration_time():
    fluid = Fluid([50 * GBPS, 70 * GBPS], 1)
    fluid.start(0, phases((17, 0), (29, 50), (3, 0), (11, 13)), [0, 1], 500)
    found = run_all(fluid, 1)[0]
    assert (found.duration_ns == 60 * MS).all()
    assert len(found.duration_ns) == 500
    assert found.marked_bits.sum() == 0


def test_two_jobs_that_overlap_share_a_link_by_halves():
    # Job 0 sends from 60 ms on, job 1 from 70 ms on. Job 0 has sent 10 ms' worth when they begin to share; its other
    # 30 ms' worth takes 60 ms at half the rate, to 130 ms. Job 1 has 10 ms' worth left then, and ends at 140 ms.
    fluid = Fluid([50 * GBPS], 2)
    fluid.start(0, phases((60, 0), (40, 50)), [0], 3)
    fluid.start(1, phases((60, 0), (40, 50)), [0], 3, hold_ns=10 * MS)
    found = run_all(fluid, 2)
    assert found[0].ended_ns.tolist() == [130 * MS, 260 * MS, 390 * MS]
    assert found[1].ended_ns.tolist() == [140 * MS, 270 * MS, 400 * MS]
    assert found[1].duration_ns.tolist() == [130 * MS] * 3
    # fair sharing leaves them as they are: they meet again in every iteration, for 60 ms at 25 Gbit/s
    assert found[0].marked_bits.tolist() == [1.5e9] * 3
    assert fluid.link_bits.tolist() == [12e9]
    assert fluid.link_marked_bits.tolist() == [9e9]


def test_interleaved_jobs_are_as_fast_as_alone():
    fluid = Fluid([50 * GBPS], 2)
    fluid.start(0, phases((60, 0), (40, 50)), [0], 50)
    fluid.start(1, phases((60, 0), (40, 50)), [0], 50, hold_ns=40 * MS)
    found = run_all(fluid, 2)
    assert (found[0].duration_ns == 100 * MS).all()
    assert (found[1].duration_ns == 100 * MS).all()
    assert fluid.link_marked_bits[0] == 0


def test_a_delay_holds_one_iteration_and_interleaves_from_then_on():
    fluid = Fluid([50 * GBPS], 2)
    for job in range(2):
        fluid.start(job, phases((60, 0), (40, 50)), [0], 4)
    fluid.run(10 * MS)
    fluid.delay(1, 40 * MS)
    assert fluid.reference_ns(1) is None  # a delay is still to come
    found = run_all(fluid, 2)
    # together they send from 60 to 140 ms; then job 1 waits for 40 ms
    assert found[0].duration_ns.tolist() == [140 * MS, 100 * MS, 100 * MS, 100 * MS]
    assert found[1].duration_ns.tolist() == [140 * MS, 140 * MS, 100 * MS, 100 * MS]


def test_low_bandwidths_that_fit_together_do_not_slow_each_other():
    fluid = Fluid([50 * GBPS], 3)
    for job, gbps in enumerate((20, 18, 12)):
        fluid.start(job, phases((10, 0), (40, gbps)), [0], 10)
    found = run_all(fluid, 3)
    assert all((found[job].duration_ns == 50 * MS).all() for job in range(3))


def test_shares_are_max_min_over_all_links_of_a_job():
    # Links of 30 and 100. Jobs: a on both, b on the first, c on the second. a and b get 15 each, c the other 85.
    fluid = Fluid([30 * GBPS, 100 * GBPS], 3)
    fluid.start(0, phases((10, 90)), [0, 1], 1)
    fluid.start(1, phases((10, 90)), [0], 1)
    fluid.start(2, phases((10, 90)), [1], 1)
    fluid.run(10 * MS)
    assert fluid.sent_bits(0) == pytest.approx(15 * GBPS * 0.01, rel=1e-12)
    assert fluid.sent_bits(1) == pytest.approx(15 * GBPS * 0.01, rel=1e-12)
    assert fluid.sent_bits(2) == pytest.approx(85 * GBPS * 0.01, rel=1e-12)


def test_a_congested_link_may_lose_capacity():
    fluid = Fluid([50 * GBPS], 2, congestion_loss=0.2)
    for job in range(2):
        fluid.start(job, phases((10, 0), (40, 50)), [0], 1)
    found = run_all(fluid, 2)
    assert found[0].duration_ns[0] == pytest.approx(110 * MS)  # 40 ms at 50 for both, at 40 together: 100 ms


def test_noise_is_that_of_the_job_and_iteration_and_averages_out():
    def durations(seed, other):
        fluid = Fluid([50 * GBPS], 2, seed=seed)
        fluid.start(0, phases((60, 0), (40, 50)), [0], 1000, noise_ns=MS)
        if other:
            fluid.start(1, phases((5, 0), (5, 20)), [], 777, noise_ns=MS)
        return run_all(fluid, 2)[0].duration_ns

    alone = durations(1, False)
    assert np.allclose(alone, durations(1, True), rtol=1e-9)
    assert not np.allclose(alone, durations(2, False), rtol=1e-9)
    assert alone.mean() == pytest.approx(100 * MS, abs=0.2 * MS)
    assert alone.std() == pytest.approx(MS, rel=0.1)


def test_the_reference_point_is_the_first_communication_less_the_silence():
    fluid = Fluid([50 * GBPS], 1)
    fluid.start(0, phases((60, 0), (40, 50), (10, 0), (5, 50)), [0], 10, hold_ns=7 * MS)
    fluid.run(60 * MS)
    assert fluid.reference_ns(0) is None
    fluid.run(120 * MS)
    assert fluid.reference_ns(0) == 7 * MS
    fluid.run(190 * MS)
    assert fluid.reference_ns(0) == 122 * MS


def test_a_job_that_is_stopped_frees_its_links_and_can_start_again():
    fluid = Fluid([50 * GBPS], 2)
    for job in range(2):
        fluid.start(job, phases((100, 50)), [0], 1)
    fluid.run(50 * MS)
    fluid.stop(1)
    assert fluid.run(FAR_NS) == (0,)
    assert fluid.now_ns == pytest.approx(125 * MS)
    fluid.start(1, phases((100, 50)), [0], 2)
    fluid.run(FAR_NS)
    assert fluid.iterations()[1].duration_ns.tolist() == pytest.approx([100 * MS] * 2)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_against_the_reference_in_exact_fractions(data):
    capacities = data.draw(st.lists(st.integers(5, 60), min_size=1, max_size=4))
    phase = st.tuples(st.integers(1, 50), st.one_of(st.just(0), st.integers(1, 60)))
    drawn = data.draw(
        st.lists(
            st.tuples(
                st.lists(phase, min_size=1, max_size=4),
                st.sets(st.integers(0, len(capacities) - 1), min_size=1),
                st.integers(1, 4),
                st.integers(0, 80),
            ),
            min_size=1,
            max_size=5,
        )
    )
    fluid = Fluid([capacity * GBPS for capacity in capacities], len(drawn))
    reference = []
    for job, (pairs, links, iterations, hold_ms) in enumerate(drawn):
        fluid.start(job, phases(*pairs), sorted(links), iterations, hold_ns=hold_ms * MS)
        reference.append(fluid_reference.Job(phases(*pairs), tuple(sorted(links)), iterations, hold_ms * MS))
    found = run_all(fluid, len(drawn))
    expected = fluid_reference.simulate(reference, [capacity * GBPS for capacity in capacities])
    for job, ends in enumerate(expected):
        assert found[job].ended_ns == pytest.approx([float(end) for end in ends], rel=1e-9)
    # what is sent is what the phases say, whatever the rates were
    for job, (pairs, _, iterations, _) in enumerate(drawn):
        bits = iterations * sum(ms * gbps * 1e6 for ms, gbps in pairs)
        assert fluid.sent_bits(job) == pytest.approx(bits, rel=1e-9)


@pytest.mark.parametrize(
    ("capacities", "jobs", "loss"),
    [([], 1, 0), ([0], 1, 0), ([1], 0, 0), ([1], 1, 1), ([1], 1, -0.1)],
)
def test_what_cannot_be_is_refused(capacities, jobs, loss):
    with pytest.raises(UsageError, match="expected"):
        Fluid(capacities, jobs, congestion_loss=loss)


def test_starts_that_cannot_be_are_refused():
    fluid = Fluid([GBPS], 1)
    for arguments in (
        ((), [0], 1),
        (phases((1, 1)), [1], 1),
        (phases((1, 1)), [0, 0], 1),
        (phases((1, 1)), [0], 0),
    ):
        with pytest.raises(UsageError, match="job 0"):
            fluid.start(0, *arguments)
    with pytest.raises(UsageError, match="finite"):
        fluid.run(float("inf"))
    fluid.start(0, phases((1, 1)), [0], 1)
    with pytest.raises(UsageError, match="runs already"):
        fluid.start(0, phases((1, 1)), [0], 1)
