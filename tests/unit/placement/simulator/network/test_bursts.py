"""Which messages are of one burst, and that F by the burst parts jobs that send several an iteration."""

from dataclasses import replace
from statistics import fmean

import pytest

from mltcp.control.aggressiveness import Aggressiveness
from placement.simulator.network.bursts import burst_places
from placement.simulator.network.laws.network_law import Control, NetworkLaw
from placement.simulator.network.shares import ShareSettings, run_shares
from placement.simulator.network.simulation import SimulationSettings, simulate
from placement.simulator.network.topology import Marking, Network, NetworkLink
from placement.simulator.network.traffic import IterationStep, Message, NetworkJob, Traffic

RATE_BPS = 300e6
MS = 1_000_000
MARKED = Network(
    ("a", "b", "c"),
    (
        NetworkLink("a", "s", 10 * RATE_BPS, 40_000),
        NetworkLink("b", "s", 10 * RATE_BPS, 40_000),
        NetworkLink("s", "c", RATE_BPS, 40_000, 300e3, Marking(40e3, 40e3)),
    ),
)
LAW = NetworkLaw(Control.CUBIC, Aggressiveness())


def chain(*steps, host=0, law=LAW, iterations=1, start_ns=0, noise_ns=0):
    """A job whose steps of (computing in ms, bytes on each connection) wait for each other."""
    made = tuple(
        IterationStep(
            round(compute_ms * MS),
            tuple(Message(0, 1, size, connection) for connection, size in enumerate(sizes)),
            (number - 1,) if number else (),
        )
        for number, (compute_ms, sizes) in enumerate(steps)
    )
    return NetworkJob(f"job{host}", Traffic(2, made), (host, 2), law, iterations, start_ns, noise_ns)


def places(job):
    return [
        (each.size_bytes, each.before_bytes)
        for each in burst_places(job, MARKED, [(job.hosts[0], 2)] * len(job.traffic.messages))
    ]


def test_a_silence_of_a_quarter_of_the_longest_parts_bursts():
    job = chain((20, [1e6]), (4.9, [2e6]), (5, [3e6]))
    assert places(job) == [(3e6, 0), (3e6, 1e6), (3e6, 0)]
    assert places(replace(job, law=replace(LAW, whole=True))) == [(6e6, 0), (6e6, 1e6), (6e6, 3e6)]


def test_a_silence_below_a_millisecond_parts_none():
    assert places(chain((0.9, [1e6]), (0.9, [2e6]))) == [(3e6, 0), (3e6, 1e6)]


def test_connections_have_bursts_of_their_own_sizes():
    job = chain((10, [1e6, 4e6]), (1, [2e6, 0]), (10, [3e6, 5e6]))
    assert places(job) == [(3e6, 0), (4e6, 0), (3e6, 1e6), (4e6, 4e6), (3e6, 0), (5e6, 0)]


def test_the_time_of_a_burst_is_that_of_all_that_its_host_sends():
    job = chain((10, [1e6, 2e6]), (10, [3e6]))
    times = [each.time_ns for each in burst_places(job, MARKED, [(0, 2)] * 3)]
    assert times == pytest.approx([8 * MS, 8 * MS, 8 * MS])
    whole = replace(job, law=replace(LAW, whole=True))
    assert [each.time_ns for each in burst_places(whole, MARKED, [(0, 2)] * 3)] == pytest.approx(
        [16 * MS] * 3
    )


@pytest.mark.parametrize("mode", ["steps", "shares"])
def test_jobs_by_shards_part_by_f_of_the_burst_only(mode):
    passes = [(88, [2.7e6])] * 4 + [(180, [5.4e6])] * 4
    slowed = {}
    for whole in (False, True):
        law, late_ms = replace(LAW, whole=whole), 16
        jobs = [
            chain(*passes, host=host, law=law, iterations=24, start_ns=host * late_ms * MS, noise_ns=20 * MS)
            for host in (0, 1)
        ]
        routes = [[(host, 2)] * len(passes) for host in (0, 1)]
        if mode == "steps":
            outcome = simulate(MARKED, jobs, routes, SimulationSettings(seed=1))
        else:
            outcome = run_shares(MARKED, jobs, routes, ShareSettings(seed=1))
        slowed[whole] = fmean(fmean((job.ends_ns - job.begins_ns)[12:]) for job in outcome.jobs) / (1936 * MS)
    assert slowed[False] + 0.015 < slowed[True]
