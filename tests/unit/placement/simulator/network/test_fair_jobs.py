"""Shares of jobs with several flows beside one of one flow, and `fair=job`, under which each job has one share."""

import math
from dataclasses import replace

import numpy as np
import pytest

from mltcp.control.aggressiveness import Aggressiveness, Shape
from placement.simulator.network.laws.network_law import WINDOW_CONTROLS, NetworkLaw
from placement.simulator.network.laws.state import increase_factor
from placement.simulator.network.simulation import SimulationSettings, simulate
from placement.simulator.network.steps.records import FLOW, LAW
from placement.simulator.network.topology import Marking, Network, NetworkLink
from placement.simulator.network.traffic import IterationStep, Message, NetworkJob, Traffic

RATE_BPS = 300e6
MS = 1_000_000
DROPS, MARKS = (300e3, None), (math.inf, Marking(40e3, 40e3))
every_base = pytest.mark.parametrize("base", WINDOW_CONTROLS, ids=lambda base: base.label)


def network(buffer_bytes, marking):
    """Two hosts on a switch, and one receiver behind it."""
    links = [NetworkLink(f"h{i}", "s", 10 * RATE_BPS, 40_000) for i in range(2)]
    links.append(NetworkLink("s", "r", RATE_BPS, 40_000, buffer_bytes, marking))
    return Network(("h0", "h1", "r"), tuple(links))


def sender(host, flows, law, send_s=4.0, compute_ms=0, iterations=1):
    """A job that sends over so many flows, all from one host."""
    size = send_s * RATE_BPS / 8 / flows
    burst = tuple(Message(0, 1, size, connection) for connection in range(flows))
    traffic = Traffic(2, (IterationStep(compute_ms * MS, burst),))
    return NetworkJob(f"job{host}", traffic, (host, 2), law, iterations)


def run(jobs, bottleneck=DROPS, duration_s=4.0, seed=1):
    routes = [[(job.hosts[0], 2)] * len(job.traffic.messages) for job in jobs]
    settings = SimulationSettings(seed=seed, duration_ns=round(duration_s * 1e9))
    return simulate(network(*bottleneck), jobs, routes, settings)


def share_of_four(law, bottleneck=DROPS):
    """Of what both jobs send, the part of the job with four flows beside one with one."""
    outcome = run([sender(0, 1, law), sender(1, 4, law)], bottleneck)
    one, four = (link.sent_bytes for link in outcome.links[:2])
    return four / (one + four)


def test_of_n_flows_each_has_an_increase_of_one_over_n_squared():
    for flows in (1, 2, 4, 7):
        flow = np.zeros(1, FLOW)[0]
        flow["together"], flow["left"], flow["burst_bytes"] = flows, 0.0, 1.0
        law = np.zeros(1, LAW)[0]
        assert increase_factor(law, flow) == 1
        law["fair"] = 1
        assert increase_factor(law, flow) == 1 / flows**2
        law["shape"], law["scales_increase"] = int(Shape.LINEAR), 1
        law["slope"], law["intercept"] = 1.75, 0.25
        assert increase_factor(law, flow) == 2 / flows**2, "F on top of it, at the iteration's end"


@every_base
@pytest.mark.parametrize("f", [Aggressiveness(Shape.ONE), Aggressiveness()], ids=["base", "F"])
def test_with_one_flow_a_host_fairness_changes_nothing(base, f):
    law = NetworkLaw(base, f)
    outcomes = [
        run([sender(host, 1, each, 0.1, 100, 6) for host in (0, 1)], MARKS, 60)
        for each in (law, replace(law, fair=True))
    ]
    for before, after in zip(*(each.jobs for each in outcomes), strict=True):
        assert np.array_equal(before.ends_ns, after.ends_ns)
    assert outcomes[0].links == outcomes[1].links


@every_base
@pytest.mark.parametrize("bottleneck", [DROPS, MARKS], ids=["drops", "marks"])
def test_a_job_of_four_flows_has_a_half_of_the_link_in_place_of_four_fifths(base, bottleneck):
    """Exact where flows lose as often as they send; small windows lose more often, and so never get more."""
    law = NetworkLaw(base, Aggressiveness(Shape.ONE))
    assert share_of_four(law, bottleneck) == pytest.approx(4 / 5, abs=0.04)
    fair = share_of_four(replace(law, fair=True), bottleneck)
    assert 0.38 < fair < 0.58


@every_base
def test_four_fair_flows_alone_fill_the_link(base):
    law = NetworkLaw(base, Aggressiveness(Shape.ONE), fair=True)
    outcome = run([sender(0, 4, law, 0.2, 100, 6)], duration_s=60)
    # 0.2 s at the link's rate after 0.1 s; the first iteration has to find the window.
    assert (outcome.jobs[0].ends_ns - outcome.jobs[0].begins_ns)[1:].max() < 0.32e9
