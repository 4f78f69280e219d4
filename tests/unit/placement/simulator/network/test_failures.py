"""Links that fail and come back: what is down when, the courses of jobs, conserved bytes and time."""

from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mltcp.control.aggressiveness import Aggressiveness
from mltcp.core.errors import UsageError
from placement.simulator.network.failures import (
    LinkFailures,
    Outage,
    OutageLog,
    network_changes,
    parse_outages,
)
from placement.simulator.network.laws.network_law import Control, NetworkLaw
from placement.simulator.network.routing import RoutingTable
from placement.simulator.network.simulation import SimulationSettings, simulate
from placement.simulator.network.topologies import network_named
from placement.simulator.network.traffic import IterationStep, Message, NetworkJob, Traffic

MS = 10**6
BASE, F = NetworkLaw(Control.DCTCP), NetworkLaw(Control.DCQCN, Aggressiveness())
NETWORK = network_named("leaf-spine:2x2:1:1,spines=2,rate=10gbit,delay_us=5")
"""h0 and h1 below leaf0, h2 and h3 below leaf1; a path over each spine."""


def sender(name, hosts=(0, 2), compute_ms=30, send_ms=20, iterations=1, law=BASE, start_ms=0):
    burst = Message(0, 1, send_ms * 1.25e6)
    traffic = Traffic(2, (IterationStep(compute_ms * MS, (burst,)),))
    return NetworkJob(name, traffic, hosts, law, iterations, start_ms * MS)


def run(jobs, outages=(), mode="shares", reroute_ms=5, duration_ms=10_000):
    failures = LinkFailures(tuple(outages), reroute_ns=reroute_ms * MS)
    table = RoutingTable(NETWORK)
    changes = network_changes(failures, NETWORK, jobs, 0, duration_ms * MS)
    routes = [table.routes(job) for job in jobs]
    return simulate(
        NETWORK, jobs, routes, SimulationSettings(mode, 0, duration_ms * MS, attributes=True), changes
    )


def uplink(job):
    """The name of the link from the first leaf that the job's message takes."""
    return NETWORK.links[RoutingTable(NETWORK).routes(job)[0][1]].name


def durations_ms(course):
    return (course.ends_ns - course.begins_ns) / MS


# -- what fails when ---------------------------------------------------------------------------------------------------


def test_the_texts_of_outages():
    assert parse_outages("leaf3->spine1@10:20.5") == (Outage("leaf3->spine1", 10 * 10**9, 20_500_000_000),)
    assert parse_outages("a<->b#2@0") == (Outage("a->b#2", 0), Outage("b->a#2", 0))
    for text in ("a@1:2", "a->b", "a->b@2:1", "a->b@1:1", "a->b@1:2:3", "a->b@x", "a->b@-1"):
        with pytest.raises(UsageError, match="--fail "):
            parse_outages(text)
    with pytest.raises(UsageError, match="failures: expected a link of the network, got 'a->b'"):
        LinkFailures(parse_outages("a->b@1")).events(NETWORK, 0)


def test_routes_follow_each_change_after_the_delay():
    a, b = ("leaf0->spine0", "leaf0->spine1")
    numbers = {link.name: number for number, link in enumerate(NETWORK.links)}
    failures = LinkFailures((Outage(a, 10, 20), Outage(b, 15)), reroute_ns=5)
    states = [(each.at_ns, {*each.down}, each.reroutes) for each in failures.states(NETWORK, 0)]
    down = {numbers[a], numbers[b]}
    assert states == [
        (10, {numbers[a]}, False),
        (15, down, True),
        (20, {numbers[b]}, True),
        (25, {numbers[b]}, True),
    ]


def test_drawn_failures_have_their_means_and_their_seed():
    failures = LinkFailures((), mtbf_ns=1e9, mttr_ns=1e8, reroute_ns=1)
    events = [(each.at_ns, each.link, each.is_up) for each in islice(failures.events(NETWORK, 3), 16_000)]
    assert events == sorted(events, key=lambda event: event[0])
    assert events == [
        (each.at_ns, each.link, each.is_up) for each in islice(failures.events(NETWORK, 3), 16_000)
    ]
    cables = {frozenset((NETWORK.links[link].source, NETWORK.links[link].target)) for _, link, _ in events}
    assert cables == {frozenset((f"leaf{leaf}", f"spine{spine}")) for leaf in (0, 1) for spine in (0, 1)}
    for link in {link for _, link, _ in events}:
        times = np.array([at_ns for at_ns, number, _ in events if number == link])
        down = np.diff(times)[::2].mean(), np.diff(times)[1::2].mean()
        assert down == (pytest.approx(1e8, rel=0.15), pytest.approx(1e9, rel=0.15))


# -- courses -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "within_ms"), [("shares", 1e-6), ("steps", 0.3), ("auto", 1e-6)])
def test_a_message_goes_on_over_what_is_left_or_waits(mode, within_ms):
    job = sender("A")
    first = uplink(job)
    other = "leaf0->spine0" if first.endswith("1") else "leaf0->spine1"
    usual = durations_ms(run([job], mode=mode).jobs[0])

    rerouted = run([job], [Outage(first, 40 * MS)], mode)
    assert durations_ms(rerouted.jobs[0]) == pytest.approx(usual + 5, abs=within_ms)
    sent = {link.name: link.sent_bytes for link in rerouted.links}
    assert sent[first] == pytest.approx(10 * 1.25e6, rel=0.03)
    assert sent[other] == pytest.approx(10 * 1.25e6, rel=0.03)
    assert sent["h0->leaf0"] == pytest.approx(20 * 1.25e6, rel=0.03)

    # Routes do not follow in time: it goes on where it was.
    short = run([job], [Outage(first, 40 * MS, 43 * MS)], mode)
    assert durations_ms(short.jobs[0]) == pytest.approx(usual + 3, abs=within_ms)

    cut_off = run([job], [Outage(first, 40 * MS, 60 * MS), Outage(other, 40 * MS, 70 * MS)], mode)
    assert durations_ms(cut_off.jobs[0]) == pytest.approx(usual + 20, abs=within_ms)

    never = run([job], [Outage("leaf1->h2", 40 * MS)], mode, duration_ms=500)
    assert len(never.jobs[0].ends_ns) == 0
    assert {link.name: link.sent_bytes for link in never.links}["h0->leaf0"] == pytest.approx(
        10 * 1.25e6, rel=0.03
    )


@pytest.mark.parametrize(("mode", "within_ms"), [("shares", 1e-6), ("steps", 0.3)])
def test_what_a_link_cost_is_its_own_and_not_a_neighbours(mode, within_ms):
    jobs = [sender("A"), sender("B", (1, 3))]
    links = {link.name: number for number, link in enumerate(NETWORK.links)}
    outcome = run(jobs, [Outage("h0->leaf0", 40 * MS, 47 * MS)], mode)
    lost = outcome.lost
    of_failure = lost.neighbour == -1
    assert list(lost.job[of_failure]) == [0]
    assert list(lost.link[of_failure]) == [links["h0->leaf0"]]
    assert lost.lost_ns[of_failure] == pytest.approx([7 * MS], abs=within_ms * MS)
    assert outcome.lost_entries()[0]["neighbour"] is None


OUTAGES = st.lists(
    st.tuples(
        st.sampled_from(["leaf0->spine0", "leaf0->spine1", "spine0->leaf1", "spine1->leaf1", "h1->leaf0"]),
        st.integers(1, 150),
        st.integers(1, 40),
    ),
    max_size=4,
    unique_by=lambda each: each[0],
)
JOBS = st.lists(
    st.tuples(
        st.sampled_from([(0, 2), (1, 3), (0, 3), (2, 1)]),
        st.integers(1, 30),
        st.integers(1, 30),
        st.integers(0, 20),
    ),
    min_size=1,
    max_size=4,
)


def work(drawn, law):
    return [
        sender(str(number), hosts, compute, send, 2, law, start)
        for number, (hosts, compute, send, start) in enumerate(drawn)
    ]


def assert_lost_time_is_conserved(outcome):
    lost = outcome.lost
    for number, course in enumerate(outcome.jobs):
        assert len(course.ends_ns) == 2
        took = float((course.ends_ns - course.begins_ns).sum())
        parts = lost.lost_ns[lost.job == number].sum() + lost.unhindered_ns[number]
        assert parts == pytest.approx(took, abs=10)


@given(JOBS, OUTAGES, st.sampled_from([BASE, F]))
@settings(max_examples=40, deadline=None)
def test_bytes_and_lost_time_are_conserved_and_nothing_is_sent_over_a_link_that_is_down(drawn, listed, law):
    jobs = work(drawn, law)
    outages = [Outage(link, at * MS, (at + lasts) * MS) for link, at, lasts in listed]
    outcome = run(jobs, outages)
    assert_lost_time_is_conserved(outcome)
    sizes = dict.fromkeys(NETWORK.hosts, 0.0)
    for job in jobs:
        sizes[NETWORK.hosts[job.hosts[0]]] += 2 * job.traffic.messages[0].size_bytes
    for link in outcome.links:
        if link.name.partition("->")[0] in sizes:
            assert link.sent_bytes == pytest.approx(sizes[link.name.partition("->")[0]], rel=1e-9)
    for name, at, lasts in listed:
        before, after = (
            {link.name: link.sent_bytes for link in run(jobs, outages, duration_ms=ms).links}
            for ms in (at, at + lasts)
        )
        assert after[name] == pytest.approx(before[name], rel=1e-9, abs=1e-3)


PACKET_BYTES = 1500


@given(JOBS, OUTAGES, st.sampled_from([BASE, F]))
@settings(max_examples=10, deadline=None)
def test_in_steps_all_bytes_arrive_and_none_over_a_link_that_is_down(drawn, listed, law):
    jobs = work(drawn, law)
    outages = [Outage(link, at * MS, (at + lasts) * MS) for link, at, lasts in listed]
    outcome = run(jobs, outages, "steps")
    assert all(len(course.ends_ns) == 2 for course in outcome.jobs)
    assert_lost_time_is_conserved(outcome)
    into = {link.name: link.sent_bytes for link in outcome.links if link.name.startswith("leaf")}
    arrived = sum(sent for name, sent in into.items() if "->h" in name)
    # Of a message whose end has arrived, a part of a packet that is in a queue when its route changes counts no more.
    uncounted = (10 + 2 * len(outages) * PACKET_BYTES) * len(jobs)
    assert arrived >= sum(2 * job.traffic.messages[0].size_bytes for job in jobs) - uncounted
    in_a_step = 10e9 / 8e9 * 20_000
    for name, at, lasts in listed:
        before, after = (
            {link.name: link.sent_bytes for link in run(jobs, outages, "steps", duration_ms=ms).links}
            for ms in (at, at + lasts)
        )
        assert after[name] <= before[name] + in_a_step


def test_the_log_has_outages_and_jobs_without_a_way():
    log, names = OutageLog(NETWORK), {link.name: number for number, link in enumerate(NETWORK.links)}
    link = names["h0->leaf0"]
    ways = {"A": ((link, names["leaf0->h1"]),), "B": ((names["h1->leaf0"],),)}
    log.note(10**9, frozenset({link}), ways, False)
    log.note(2 * 10**9, frozenset({link}), ways, True)
    log.note(3 * 10**9, frozenset(), ways, False)
    log.note(4 * 10**9, frozenset({link}), ways, True)
    assert log.document() == {
        "outages": [
            {"link": "h0->leaf0", "from_s": 1, "until_s": 3},
            {"link": "h0->leaf0", "from_s": 4, "until_s": None},
        ],
        "cut_off": [
            {"job": "A", "link": "h0->leaf0", "from_s": 2, "until_s": 3},
            {"job": "A", "link": "h0->leaf0", "from_s": 4, "until_s": None},
        ],
    }
