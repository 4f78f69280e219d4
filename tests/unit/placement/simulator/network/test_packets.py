"""The packet-level reference of the network simulator: what must hold exactly, and a part of what it reproduces."""

import json
from dataclasses import fields

import numpy as np
import pytest

from mltcp.core.errors import UsageError
from placement.simulator.network.laws.network_law import Control
from placement.simulator.network.shares import EXPONENTS
from tests.network import ns3
from tests.network.against_base import course_of_packets, measured
from tests.network.packets import APART, DATA, Case, compared, simulate_long_flows, simulate_packets


@pytest.mark.parametrize("law", ["A", "B", "C", "N"])
def test_a_job_alone_sends_at_line_rate_and_has_no_packet_marked(law):
    run = simulate_packets(Case(law=law, jobs=1, compute=22), 1, 3)
    assert run.slowdowns == pytest.approx(1, abs=1e-9)
    assert (run.largest_queue_bytes, run.pauses) == (4000, 0)


def test_one_seed_has_one_outcome():
    first, again, other = (simulate_packets(Case(compute=22), seed, 4) for seed in (1, 1, 2))
    assert (first.slowdowns == again.slowdowns).all()
    assert (first.slowdowns != other.slowdowns).any()


def test_pauses_keep_the_queue_at_x_off_of_each_sender_and_what_is_on_its_way():
    # alpha is near 0 after a pause, so that cuts do nothing at first: without pauses there are queues of megabytes.
    case = Case(law="C", wred="W2")
    paused = simulate_packets(Case(law="C", wred="W2", xoff=320e3), 1, 2)
    on_its_way = 4e-6 * 50e9 / 8 + 3 * case.packet
    assert simulate_packets(case, 1, 2).largest_queue_bytes > 2e6
    assert paused.pauses > 0
    assert paused.largest_queue_bytes <= 2 * (320e3 + on_its_way)
    assert paused.slowdowns.mean() == pytest.approx(1.44, abs=0.05)  # a paused link loses no capacity


@pytest.mark.parametrize("wanted", ["A W1 1", "A W1 0.25", "N W1 1", "N W3 0.25"])
def test_shares_of_long_flows_are_those_of_the_other_programs(wanted):
    law, wred, factor = wanted.split()
    rows = json.loads(DATA.read_text())["long_flows"]
    [row] = [
        each
        for each in rows
        if (each["law"], each["wred"], each["timers"]) == (law, wred, "55")
        and each["factors"] == [float(factor), 1.0 if factor == "1" else 2.0]
    ]
    here = simulate_long_flows(Case(law=law, wred=wred), tuple(row["factors"]), 1)
    assert here.shares[0] == pytest.approx(row["share"], abs=0.03)
    assert here.rate_bps == pytest.approx(row["gbps"] * 1e9, rel=0.01)
    assert here.queue_bytes == pytest.approx(row["queue_kb"] * 1e3, rel=0.1)


@pytest.mark.parametrize(("on", "within"), [("increase", 0.2), ("both", 0.25)])
def test_shares_of_dcqcn_follow_f_by_the_exponents_of_the_share_mode(on, within):
    on_increase, on_decrease = EXPONENTS[Control.DCQCN]
    expected = on_increase + (on_decrease if on == "both" else 0)
    for wred, factors in (("W1", (1, 1, 4, 4)), ("W2", (1, 1, 8, 8)), ("W3", (1, 8))):
        packets = simulate_long_flows(Case(wred=wred), factors, 1, 0.5, on)
        assert packets.exponent(factors) == pytest.approx(expected, abs=within)


@pytest.mark.parametrize("name", ["law=A,wred=W1", "law=N,wred=W1,f=1,dequeue=1"])
def test_courses_are_those_of_the_other_programs(name):
    [row] = [each for each in json.loads(DATA.read_text())["cases"] if each["case"] == name]
    *_, verdict = compared([row], 3)
    assert verdict == "1 of 1 courses and 1 of 1 of the rest agree."


def test_jobs_lose_by_the_papers_f_and_not_by_one_that_holds_back_only_while_it_is_cut():
    [found] = measured(["law=B,wred=W1,jobs=4,load=0.9,compute=68.9"], 3, course_of_packets, 1)
    assert found.over_base("mltcp_dcqcn") > 1.03
    assert found.over_base("mltcp_dcqcn@recover") < 0.9


def test_under_f_jobs_that_begin_apart_are_those_of_ns3():
    names = {each.name for each in fields(ns3.DumbbellCase)}
    runs = [run for run in json.loads(ns3.DATA.read_text()) if run["f"] and run["offset"]]
    assert len(runs) >= 3
    for run in runs:
        there = np.mean(run["slowdowns"], axis=0)
        here = np.array(ns3.step_means(ns3.DumbbellCase(**{name: run[name] for name in names}), run["seed"]))
        assert here.mean() == pytest.approx(there.mean(), abs=0.03)
        assert abs(np.argmax(here < APART) - np.argmax(there < APART)) <= 2


@pytest.mark.parametrize("control", ["reno", "cubic"])
def test_under_f_a_queue_that_drops_parts_jobs_as_in_ns3(control):
    case = ns3.DumbbellCase(control, True, marks_at=0, limit=100, rto_ms=5)
    names = {each.name for each in fields(case)}
    runs = [run for run in json.loads(ns3.DATA.read_text()) if all(run[n] == getattr(case, n) for n in names)]
    assert len(runs) >= 3
    here = [np.mean(ns3.step_means(case, seed)) for seed in range(1, 9)]
    assert np.mean(here) == pytest.approx(np.mean([run["slowdowns"] for run in runs]), abs=0.04)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("low=A", "case: expected fields of law"),
        ("law=D", "law: expected A or B or C or N, got 'D'"),
        ("packet=-1", "packet: expected"),
        ("f=3", "f: expected 0, 1 or 2, got 3"),
    ],
)
def test_another_case_is_refused(text, message):
    with pytest.raises(UsageError, match=message):
        Case.parse(text)
