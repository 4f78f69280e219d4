"""What jobs on the same link lose to each other, and whether they stand aside: a link that is shared as they say.

The link is the compiled fluid model of `mltcp-bench bound`: under the paper's F, or in equal parts while the jobs stand
aside. Their readings are taken as on a host, at a random time of each interval.
"""

import itertools
import os
import random
import socket
from dataclasses import dataclass, field
from statistics import fmean, pstdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.sensitivity.bound import burst_job
from bench.sensitivity.plan import layouts_of
from mltcp.control.aggressiveness import Aggressiveness
from mltcp.control.link_use import SendReading
from mltcp.daemon.client.status import OTHERS, Contender
from mltcp.daemon.jobs.contention import ASIDE_ABOVE, BACK_BELOW, MOST_NAMED, SAMPLE_S, LinkContention
from mltcp.daemon.jobs.job import Job, Peer
from mltcp.daemon.jobs.job_table import JobTable
from mltcp.pacing.sock_diag import FlowKey
from placement.model.throughput_table import published_table
from placement.simulator.link_order import BurstJob, BurstPhase, LinkRule, LinkSettings, _run, _state

ELSEWHERE = ("192.0.2.77", "192.0.2.78")
"""Addresses of no interface here: those of another network namespace."""

BYTES_PER_S = 1e8
PAIRS = int(os.environ.get("MLTCP_TEST_PAIRS", "12"))


@dataclass
class Readings:
    """A mechanism whose jobs have read what the test says, by name."""

    read: dict = field(default_factory=dict)

    def reading(self, job):
        return self.read.get(job.name, SendReading(False, 0))


def on(jobs, mechanism, name, address):
    """A job with a connection on a link."""
    job = Job(jobs.free_number(Peer(1, 0, 0)), name, "", 0, "root", mechanism, "none", Aggressiveness())
    job.flows[FlowKey(socket.AF_INET, (address, 1), ("192.0.2.1", 2), len(name))] = None
    jobs.add(job)
    return job


class SharedLink:
    """Jobs on a link of the model, and what the daemon knows of them.

    `changes` has the times at which they began or ceased to stand aside.
    """

    def __init__(self, bursts, seed=0, aside_above=ASIDE_ABOVE):
        self.dice = random.Random(seed)
        longest_s = max(each.alone_s for each in bursts)
        offsets_s = [self.dice.uniform(0, longest_s) for _ in bursts]
        self.state = _state(bursts, LinkRule.RATIO, offsets_s, seed, LinkSettings())
        self.mechanism, table = Readings(), JobTable()
        self.jobs = [on(table, self.mechanism, each.name, ELSEWHERE[0]) for each in bursts]
        self.at_s, self.slots = 0.0, 0
        self.found = LinkContention(table, aside_above, lambda: self.at_s)
        self.changes = []

    @property
    def stand_aside(self):
        """Whether they do; never only some of them."""
        (aside,) = {bool(self.found.why_aside(job)) for job in self.jobs}
        return aside

    def run(self, seconds):
        for _ in range(round(seconds / SAMPLE_S)):
            self.at_s = (self.slots + self.dice.random()) * SAMPLE_S
            self.slots += 1
            before = self.stand_aside
            _run(self.state, int(LinkRule.FAIR if before else LinkRule.RATIO), self.at_s)
            self.mechanism.read = {
                job.name: SendReading(bool(each["sending"]), int(BYTES_PER_S * sent_s(each)))
                for job, each in zip(self.jobs, self.state.jobs, strict=True)
            }
            for job, each in zip(self.jobs, self.state.jobs, strict=True):
                if each["iterations"] > job.times.count:
                    job.times.report(int(each["iterations"]) - 1, float(each["ended"] / each["iterations"]))
            self.found.sample()
            if self.stand_aside != before:
                self.changes.append(self.at_s)
        return self


def sent_s(job):
    return job["iterations"] * job["whole"] + job["whole"] - job["iteration_left"]


def one_burst(name, demand, alone_s):
    return BurstJob(name, (BurstPhase((1 - demand) * alone_s, demand * alone_s),))


def pair(demand, first_s=0.4, second_s=0.55, part=0.5):
    """Two jobs that ask for so much together, `part` of it the first."""
    return [one_burst("a", demand * part, first_s), one_burst("b", demand * (1 - part), second_s)]


def test_jobs_that_fit_stay_under_the_law():
    for demand in (0.4, 0.8, 1.0, 1.15):
        link = SharedLink(pair(demand)).run(120)
        assert link.changes == [], demand
        loss = link.found.loss(link.jobs[0])
        assert loss.link_demand == pytest.approx(demand, abs=0.05)


def test_jobs_that_do_not_fit_stand_aside_within_twenty_iterations_and_keep_to_it():
    for demand in (1.4, 1.6, 1.9):
        link = SharedLink(pair(demand)).run(120)
        (began_s,) = link.changes
        assert began_s < 20 * 0.55, demand
        loss = link.found.loss(link.jobs[1])
        assert loss.link_demand == pytest.approx(demand, abs=0.05)
        assert link.found.why_aside(link.jobs[0]) == f"demand {loss.link_demand:.2f} on {ELSEWHERE[0]} > 1.30"


@settings(max_examples=10, deadline=None)
@given(
    st.floats(1.1, 1.4), st.floats(0.4, 0.6), st.floats(0.2, 1.0), st.floats(0.2, 1.0), st.integers(0, 999)
)
def test_near_the_threshold_nothing_flaps(demand, part, first_s, second_s, seed):
    """In two minutes under a constant demand, they change at most once."""
    link = SharedLink(pair(demand, first_s, second_s, part), seed).run(120)
    assert len(link.changes) <= 1


def test_they_come_back_when_one_of_them_asks_for_less():
    bursts = pair(1.5)
    link = SharedLink(bursts).run(30)
    assert link.stand_aside
    link.state.compute[1, 0] *= 4  # it computes for much longer from now on
    link.run(60)
    assert not link.stand_aside
    assert len(link.changes) == 2


def test_with_zero_nobody_stands_aside():
    assert SharedLink(pair(1.9), aside_above=0).run(30).changes == []


def test_between_the_bounds_it_says_until_when():
    link = SharedLink(pair(1.5)).run(20)
    link.found._aside_above = 1.55
    assert link.found.why_aside(link.jobs[0]).endswith(f"until < {1.55 * BACK_BELOW:.2f}")


def test_the_decision_is_that_of_the_demand_for_pairs_of_models():
    """Pairs of the sensitivity table, of one to twelve bursts an iteration; all with MLTCP_TEST_PAIRS=465."""
    table = published_table()
    bursts = [burst_job(layout, table) for layout in layouts_of(table, (), ())]
    dice = random.Random(7)
    pairs = [(one, other) for at, one in enumerate(bursts) for other in bursts[at:]]
    errors, wrong, last_s = [], [], 0.0
    for number, (one, other) in enumerate(dice.sample(pairs, min(PAIRS, len(pairs)))):
        demand = sum(each.send_s / each.alone_s for each in (one, other))
        named = [BurstJob("a", one.phases), BurstJob("b", other.phases)]
        link = SharedLink(named, number).run(max(60, 40 * max(one.alone_s, other.alone_s)))
        errors.append(link.found.loss(link.jobs[0]).link_demand - demand)
        last_s = max([last_s, *link.changes])
        if link.stand_aside != (demand > ASIDE_ABOVE) or len(link.changes) > 1:
            wrong.append(demand)
    print(
        f"{len(errors)} pairs: {fmean(errors):.4f} off, deviation {pstdev(errors):.4f}, last {last_s:.0f} s, {wrong}"
    )
    assert max(map(abs, errors)) < 0.1
    assert all(BACK_BELOW * ASIDE_ABOVE < demand <= ASIDE_ABOVE + 0.05 for demand in wrong)


def test_what_is_lost_is_told_by_job_with_the_rest_together_and_sums_exactly():
    bursts = [one_burst(f"job-{number}", 0.1 + 0.02 * number, 0.3 + 0.05 * number) for number in range(7)]
    link = SharedLink(bursts, aside_above=0).run(60)
    for job in link.jobs:
        loss = link.found.loss(job)
        assert loss.lost == round(sum(each.lost for each in loss.to), 4) > 0
        assert [each.number for each in loss.to][MOST_NAMED:] == [OTHERS]
        named = [each.lost for each in loss.to[:MOST_NAMED]]
        assert named == sorted(named, reverse=True)


def test_the_loss_is_what_the_iterations_show():
    link = SharedLink(pair(1.2), aside_above=0)
    link.run(200)
    for job, each in zip(link.jobs, link.state.jobs, strict=True):
        ratio = each["alone"] * each["iterations"] / (each["ended"] - each["start"])
        assert link.found.loss(job).lost == pytest.approx(1 - ratio, abs=0.05)


def sampled(found, mechanism, times):
    """So many samples, between which all that send have as many bytes acknowledged."""
    for _ in range(times):
        mechanism.read = {
            name: SendReading(each.in_flight, each.acked_bytes + 1000)
            for name, each in mechanism.read.items()
        }
        found.sample()


def test_the_link_is_the_interface_that_has_the_address():
    table, mechanism = JobTable(), Readings({name: SendReading(True, 0) for name in "ab"})
    a, b = (on(table, mechanism, name, "127.0.0.1") for name in "ab")
    found = LinkContention(table, clock=itertools.count(0.0, SAMPLE_S).__next__)
    sampled(found, mechanism, 130)
    loss = found.loss(a)
    assert (loss.link, loss.to, loss.lost) == (
        "lo",
        (Contender(b.number, loss.lost),),
        pytest.approx(0.5, abs=0.01),
    )


def test_a_job_alone_or_new_or_whose_neighbour_has_ended_has_lost_nothing_to_anybody():
    table, mechanism = JobTable(), Readings({name: SendReading(True, 0) for name in ("a", "b", "alone")})
    a, b = (on(table, mechanism, name, ELSEWHERE[0]) for name in "ab")
    alone = on(table, mechanism, "alone", ELSEWHERE[1])
    found = LinkContention(table, clock=itertools.count(0.0, SAMPLE_S).__next__)
    found.sample()
    assert (found.loss(a), found.loss(alone)) == (None, None)
    sampled(found, mechanism, 130)
    assert found.loss(b).lost == pytest.approx(0.5, abs=0.01)
    table.remove(a)
    sampled(found, mechanism, 20)
    assert found.loss(b) is None
    assert found.why_aside(b) == ""
