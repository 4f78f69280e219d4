"""Advice on jobs that share links: what they want of them, the choice among options, and whole forecasts."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltcp.core.demand import Phase
from mltcp.core.errors import UsageError
from placement.experiments.advice import Outlook, Word, advise, choose, scaled_controls
from placement.experiments.forecast import ForecastEffort, PlacedJobs, by_priority, by_timetable, settled
from placement.experiments.network import parse_jobs
from placement.simulator.network.control_names import parse_control
from placement.simulator.network.laws.network_law import Control
from placement.simulator.network.topologies import network_named
from placement.simulator.network.traffic import IterationStep, Message, NetworkJob, Traffic
from tests.network.against_advice import DATA, AdviceCase, compared

CUBIC = parse_control("cubic")
GBPS = 1e9
MS = 10**6


def bursts(name, hosts, compute_ms, sending_ms, gbps=10):
    """A job of two workers that computes and then sends at a link's rate in one direction."""
    size = sending_ms / 1e3 * gbps * GBPS / 8
    traffic = Traffic(2, (IterationStep(round(compute_ms * MS), (Message(0, 1, size),)),))
    return NetworkJob(name, traffic, hosts, CUBIC, 1)


def dumbbell(*jobs, hosts=4):
    return PlacedJobs.of(network_named(f"dumbbell:{hosts},rate=10gbit,delay_us=5"), jobs)


def pair(compute_ms, sending_ms):
    return dumbbell(*(bursts(f"j{k}", (2 * k, 2 * k + 1), compute_ms, sending_ms) for k in range(2)))


def free_pairs(placed):
    taken = {host for job in placed.jobs for host in job.hosts}
    free = [(host, 0) for host in range(len(placed.network.hosts)) if host not in taken]
    return {job.name: free for job in placed.jobs}


# -- what jobs want of links -------------------------------------------------------------------------------------------


def test_what_equal_bursts_want_of_the_link_that_they_share():
    placed = pair(60, 40)
    (load,) = placed.loads
    assert placed.network.links[load.link].name == "left->right"
    assert (load.jobs, load.load) == ((0, 1), pytest.approx(0.8))
    assert placed.meeting == [(0, 1)]
    demand = placed.timelines[0].demand_on(load.link)
    assert demand.phases == (Phase(60 * MS, 0), Phase(40 * MS, 10 * 10**9))


def test_jobs_that_a_link_carries_together_do_not_meet():
    fits = dumbbell(bursts("a", (0, 1), 50, 50, gbps=5), bursts("b", (2, 3), 50, 50, gbps=5))
    slow = [
        NetworkJob(
            job.name,
            Traffic(
                2, (IterationStep(50 * MS, (Message(0, 1, job.traffic.messages[0].size_bytes),), (), 5e9),)
            ),
            job.hosts,
            CUBIC,
            1,
        )
        for job in fits.jobs
    ]
    assert dumbbell(*slow).meeting == []
    assert fits.meeting == [(0, 1)]  # at line rate they can


@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.integers(0, 10**8), st.booleans()), min_size=1, max_size=6
    ).filter(lambda steps: any(size for _, size, _ in steps))
)
def test_a_links_phases_have_the_iterations_bytes(steps):
    made = tuple(
        IterationStep(compute * MS, (Message(0, 1, size),) if size else (), (k - 1,) if k and waits else ())
        for k, (compute, size, waits) in enumerate(steps)
    )
    placed = dumbbell(NetworkJob("j", Traffic(2, made), (0, 1), CUBIC, 1))
    (timeline,) = placed.timelines
    for link, size in timeline.bytes_on.items():
        assert timeline.demand_on(link).bits / 8 == pytest.approx(size, rel=1e-6, abs=100)
        assert timeline.demand_on(link).iteration_ns == pytest.approx(timeline.duration_ns, abs=1)


# -- simulations -------------------------------------------------------------------------------------------------------


def test_the_first_priority_runs_as_if_alone_and_the_timetable_keeps_jobs_apart():
    placed = pair(60, 40)
    effort = ForecastEffort(10)
    first, second = by_priority(placed, CUBIC, (1, 0), effort).slowdowns()
    assert second == pytest.approx(1, abs=1e-3)
    assert first == pytest.approx(1, abs=0.01)  # it finds the other's silence
    apart = by_timetable(placed, CUBIC, (0, 50 * MS), 100 * MS, (1, 1), effort)
    assert apart.slowdowns() == pytest.approx((1, 1), abs=1e-3)
    together = by_timetable(placed, CUBIC, (0, 0), 100 * MS, (1, 1), effort)
    assert 1.3 < together.slowdowns()[0] == together.slowdowns()[1] < 1.42


def test_a_timetable_makes_the_faster_job_wait():
    placed = dumbbell(bursts("a", (0, 1), 60, 40), bursts("b", (2, 3), 63, 40))
    found = by_timetable(placed, CUBIC, (0, 50 * MS), 103 * MS, (1, 1), ForecastEffort(10))
    assert found.slowdowns() == pytest.approx((1.03, 1), abs=1e-3)


def test_a_small_budget_makes_forecasts_go_by_shares():
    placed = pair(60, 40)
    assert settled(placed, CUBIC, ForecastEffort(10, flow_steps=1)).mode == "shares"
    assert settled(placed, CUBIC, ForecastEffort(10)).mode == "steps"


def test_messages_that_meet_nobody_are_left_out_of_a_forecast_and_change_nothing():
    network = network_named("two-tier:2x4:4:1,rate=10gbit,delay_us=5")
    described = parse_jobs(["2*vgg16:dp=4,megabytes=20,compute_ms=20"], 1, 0)
    jobs = [
        NetworkJob(job.name, job.traffic, hosts, CUBIC, 1)
        for job, hosts in zip(described, ((0, 1, 4, 5), (2, 3, 6, 7)), strict=True)
    ]
    placed = PlacedJobs.of(network, jobs)
    by_shares = ForecastEffort(10, flow_steps=1)
    found = settled(placed, CUBIC, by_shares)
    assert found.mode == "shares"
    assert found.alone_ns == pytest.approx([each.duration_ns for each in placed.timelines], rel=1e-3)


# -- the choice --------------------------------------------------------------------------------------------------------


def outlooks(**means):
    """Options of two jobs that fare alike, unless a pair says otherwise."""
    words = {word.name.lower(): word for word in Word}
    return tuple(
        Outlook(words[name], name, mean if isinstance(mean, tuple) else (mean, mean), "steps")
        for name, mean in means.items()
    )


@pytest.mark.parametrize(
    ("options", "load", "expected"),
    [
        (outlooks(leave=1.3, mltcp=1.0, shift=1.0), 0.8, Word.MLTCP),
        (outlooks(leave=1.3, mltcp=1.1, shift=1.0), 0.8, Word.SHIFT),
        (
            outlooks(leave=1.3, mltcp=1.02, shift=1.0, move=1.0),
            0.8,
            Word.MLTCP,
        ),  # within the margin of the best
        (outlooks(leave=1.3, prioritise=1.0, move=1.0), 0.8, Word.PRIORITISE),
        (outlooks(leave=1.02, mltcp=1.0), 0.8, Word.LEAVE),
        (outlooks(leave=1.3, mltcp=1.28, shift=1.3), 0.8, Word.LEAVE),
        (
            outlooks(leave=2.0, mltcp=1.5, prioritise=(1.0, 2.0)),
            2.0,
            Word.LEAVE,
        ),  # what one gains another loses
        (outlooks(leave=2.0, mltcp=1.5, move=1.0), 2.0, Word.MOVE),
        (outlooks(leave=1.3, prioritise=(1.0, 1.32), mltcp=1.2), 0.8, Word.MLTCP),  # harms nobody
        (outlooks(leave=1.3, prioritise=(1.0, 1.32)), 0.8, Word.PRIORITISE),
    ],
)
def test_the_choice_among_options(options, load, expected):
    assert choose(options, load, 0.03).word is expected


def test_the_laws_of_mltcp_have_the_bases_constants():
    laws = scaled_controls("reno@rto_us=5000")
    assert list(laws) == ["mltcp_reno@rto_us=5000", "mltcp_reno@remaining:rto_us=5000"]
    assert {law.control for law in laws.values()} == {Control.RENO}
    assert [law.decrease for law in laws.values()] == [False, True]
    assert all(law.values["rto_us"] == 5000 for law in laws.values())


# -- whole advice ------------------------------------------------------------------------------------------------------


def test_jobs_that_fit_are_advised_to_run_mltcp_or_to_shift():
    # With half of these times the pair parts under CUBIC by itself: a queue that drops takes most of a kept window.
    placed = pair(120, 80)
    (found,) = advise(placed, "cubic", free_pairs(placed))
    assert (found.score, found.load) == (1, pytest.approx(0.8))
    assert found.outlooks[0].mean > 1.1
    assert found.chosen.word in (Word.MLTCP, Word.SHIFT)
    assert found.chosen.mean < 1.03
    by_word = {each.word: each for each in found.outlooks}
    assert by_word[Word.SHIFT].slowdowns == pytest.approx((1, 1), abs=0.01)
    assert found.harmed == ()


def test_jobs_of_a_full_link_are_moved_where_there_is_room_and_left_elsewhere():
    placed = pair(0, 100)
    (found,) = advise(placed, "cubic")
    assert (found.chosen.word, found.load) == (Word.LEAVE, pytest.approx(2))
    assert "what one gains another loses" in found.reason
    assert Word.MOVE in found.absent
    crossing = [bursts(f"j{k}", (k, 4 + k), 0, 100) for k in range(2)]
    slow = PlacedJobs.of(network_named("two-tier:2x4:4:1,rate=10gbit,delay_us=5"), crossing)
    (found,) = advise(slow, "cubic", free_pairs(slow))
    assert found.chosen.word is Word.MOVE
    assert found.chosen.slowdowns == pytest.approx((1, 1))


def test_jobs_that_do_not_meet_need_no_advice():
    within = dumbbell(bursts("a", (0, 2), 50, 50), bursts("b", (4, 6), 50, 50))
    assert advise(within, "cubic") == ()


@pytest.mark.parametrize("control", ["mltcp_cubic", "constant"])
def test_only_a_base_is_advised_on(control):
    with pytest.raises(UsageError, match="--control: expected a base"):
        advise(pair(60, 40), control)


def test_a_job_that_sends_nothing_is_refused():
    silent = NetworkJob("s", Traffic(2, (IterationStep(MS),)), (4, 5), CUBIC, 1)
    with pytest.raises(UsageError, match="job s: expected one that sends, got a profile without bursts"):
        advise(dumbbell(bursts("a", (0, 1), 50, 50), silent), "cubic")


@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_forecasts_beside_the_simulator_at_full_length(number):
    """The first of the cases whose simulation is kept; `python -m tests.network.against_advice` has all."""
    rows = {row["number"]: row for row in json.loads(DATA.read_text())}
    for each in compared(AdviceCase.drawn(number), rows[number]):
        assert each.is_right
