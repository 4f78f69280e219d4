"""Jobs that come to a network and leave it: against the fluid simulation, exact courses, and Cassini on routes."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from mltcp.control.aggressiveness import Aggressiveness
from mltcp.core.demand import Demand, Phase
from mltcp.core.errors import MltcpError, UsageError
from placement.experiments.network_traces import placing_policy
from placement.experiments.thesis_traces import poisson
from placement.model.job import Contention
from placement.policies.gate_state import GateState, gate_policy
from placement.policies.schedulers.non_preemptive import FixedScheduler
from placement.policies.schedulers.scheduling_policy import SchedulingPolicy, scheduling_policy, traffic
from placement.simulator.auto_run import AutoRun
from placement.simulator.fluid_executor import FluidSettings
from placement.simulator.network.control_names import ControlMix, parse_controls, split_controls
from placement.simulator.network.failures import NO_FAILURES, LinkFailures, Outage
from placement.simulator.network.laws.network_law import Control, NetworkLaw
from placement.simulator.network.network_cluster import NetworkCluster
from placement.simulator.network.parallelism import demand_traffic
from placement.simulator.network.shares import ShareSettings
from placement.simulator.network.simulation import SimulationSettings, simulate
from placement.simulator.network.topologies import network_named
from placement.simulator.network_executor import TRACE_MODES, TrafficControl
from placement.simulator.scheduled_cluster import run_trace, two_tier
from placement.simulator.share_run import ShareRun
from placement.simulator.step_run import StepRun
from placement.traces import sets
from placement.traces.sets import TracedJob

MS = 10**6
GBPS = 10**9
BASE = NetworkLaw(Control.DCTCP)
SETTINGS = FluidSettings(two_tier(2, 4, oversubscription=6.0), noise=0.0)
"""Two racks: a job that spans them uses all links between them alike, as the fluid simulation has it."""


def short_trace(seed):
    """Twelve jobs of a tenth of the length, as close together."""
    jobs = poisson(seed, jobs=12, load=1.2, gpus=16)
    shorter = (
        replace(job, iterations=job.iterations // 10, arrival_ns=job.arrival_ns // 10) for job in jobs.jobs
    )
    return replace(jobs, jobs=tuple(shorter))


def brief_trace(seed):
    """Up to four iterations of each of the first six."""
    jobs = short_trace(seed)
    return replace(jobs, jobs=tuple(replace(job, iterations=min(4, job.iterations)) for job in jobs.jobs[:6]))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["random", "themis", "themis+cassini"])
def test_without_f_a_trace_on_two_tiers_is_that_of_the_fluid_simulation(name):
    for seed in range(1, 3):
        jobs = short_trace(seed)
        expected, found = (
            run_trace(jobs, SETTINGS, scheduling_policy(name, seed=seed), seed, control)
            for control in (None, TrafficControl(ControlMix(BASE)))
        )
        for theirs, ours in zip(expected.jobs, found.jobs, strict=True):
            assert ours.name == theirs.name
            assert (ours.moved, ours.delayed) == (theirs.moved, theirs.delayed)
            assert ours.completion_ns == pytest.approx(theirs.completion_ns, rel=1e-6)
            np.testing.assert_allclose(ours.iteration_ns, theirs.iteration_ns, rtol=1e-6)
            assert np.isnan(ours.marked_bits).all()
        assert max(job.slowdown.max() for job in found.jobs) > 1.1


# -- a share run -------------------------------------------------------------------------------------------------------

DUMBBELL = NetworkCluster.of(network_named("dumbbell:3,rate=8gbit,delay_us=0"))
DEMAND = Demand((Phase(10 * MS, 0), Phase(20 * MS, 8 * GBPS)))
TRAFFIC = demand_traffic(DEMAND, 2)


def share_run(jobs=2, gate=None, **settings):
    widest = [(f"j{k}", TRAFFIC) for k in range(jobs)]
    return ShareRun(DUMBBELL.network, widest, [BASE] * jobs, ShareSettings(**settings), gate)


def start(run, number, iterations=100, hold_ms=0.0, noise_ms=0):
    job = DUMBBELL.placed(f"j{number}", TRAFFIC, (2 * number, 2 * number + 1))
    job = replace(job, iterations=iterations, noise_ns=noise_ms * MS)
    run.start(number, job, DUMBBELL.routes_of(job), silence_ns=10 * MS, hold_ns=hold_ms * MS)


def ended_ms(run, number):
    found = run.iterations()
    return (found[number].ended_ns / MS).tolist() if number in found else []


def test_a_job_that_comes_takes_half_and_one_that_leaves_gives_it_back():
    run = share_run()
    start(run, 0)
    assert run.run(50 * MS) == ()
    assert run.now_ns == 50 * MS
    start(run, 1)
    # Job 0 sends from 40 to 60; job 1 from 60 on, alone until 70; then both at half their rate.
    assert run.run(75 * MS) == ()
    run.stop(1)
    assert not run.runs(1)
    run.run(200 * MS)
    # Job 0 has 20 ms to send at 70, of which 2.5 are done at 75.
    assert ended_ms(run, 0) == pytest.approx([30, 60, 92.5, 122.5, 152.5, 182.5])
    assert run.iterations_left(0) == 94
    sent = {link.name: link.sent_bytes for link in run.links()}
    # Six times 20 ms, and of job 1 10 ms alone and 5 ms at half.
    assert sent["left->right"] == pytest.approx((6 * 20 + 10 + 2.5) * MS)


def test_a_job_ends_after_its_iterations_and_may_come_again_elsewhere():
    run = share_run()
    start(run, 1, iterations=2, hold_ms=5)
    assert run.run(10**12) == (1,)
    assert (run.now_ns, run.iterations_left(1)) == (65 * MS, 0)
    job = replace(DUMBBELL.placed("j1", TRAFFIC, (0, 2)), iterations=1)  # both on the left: no trunk
    run.start(1, job, DUMBBELL.routes_of(job))
    assert run.run(10**12) == (1,)
    assert ended_ms(run, 1) == [35, 65, 95]
    sent = {link.name: link.sent_bytes for link in run.links()}
    assert sent["left->right"] == pytest.approx(2 * 20 * MS)


def test_a_delay_is_a_part_of_the_next_iteration_and_of_no_other():
    run = share_run()
    start(run, 0)
    run.run(35 * MS)
    assert run.reference_ns(0) == 0  # the second iteration has not sent yet
    run.run(45 * MS)
    assert run.reference_ns(0) == 30 * MS
    run.delay(0, 7 * MS)
    assert run.reference_ns(0) is None
    run.run(200 * MS)
    assert ended_ms(run, 0) == [30, 60, 97, 127, 157, 187]
    assert run.reference_ns(0) == 187 * MS


def test_a_gate_admits_one_job_at_a_time_the_one_with_the_least_left_first():
    alone = Contention(Fraction(0), Fraction(1), Fraction(0))
    run = share_run(3, GateState(gate_policy("srsf-1"), alone))
    start(run, 0, iterations=3)
    start(run, 1, iterations=2)
    start(run, 2, iterations=1)
    # All ask at 10; job 2 has the least left, then job 1. None shares the link with another.
    assert run.run(10**12) == (2,)
    assert run.now_ns == 30 * MS
    assert run.run(60 * MS) == ()
    run.stop(1)  # it has sent once, until 50, and asks again at 60, while job 0 sends
    assert run.run(10**12) == (0,)
    found = run.iterations()
    assert {number: (each.ended_ns / MS).tolist() for number, each in found.items()} == {
        0: [70, 100, 130],
        1: [50],
        2: [30],
    }


def test_what_a_share_run_refuses():
    run = share_run()
    start(run, 0)
    with pytest.raises(UsageError, match="job j0 runs already"):
        start(run, 0)
    wide = replace(DUMBBELL.placed("j1", demand_traffic(Demand((Phase(1, GBPS),)), 4), (0, 1, 2, 3)))
    with pytest.raises(UsageError, match="job 1: messages: expected at most 2, got 4"):
        run.start(1, wide, DUMBBELL.routes_of(wide))


# -- a step run --------------------------------------------------------------------------------------------------------

CLOS = NetworkCluster.of(network_named("leaf-spine:2x4:2:1,rate=8gbit"))
LAWS = (NetworkLaw(Control.DCQCN, Aggressiveness()), BASE)


def step_run(laws):
    widest = [(f"j{k}", demand_traffic(DEMAND, 3)) for k in range(4)]
    return StepRun(CLOS.network, widest, laws, 3, 2000)


@pytest.mark.parametrize("laws", [[LAWS[0]] * 4, [*LAWS, *LAWS]], ids=["alike", "mixed"])
def test_jobs_that_join_at_their_times_are_those_with_fixed_starts(laws):
    jobs = [
        replace(
            CLOS.placed(f"j{k}", TRAFFIC, (k, 4 + k)),
            law=law,
            iterations=6,
            noise_ns=MS // 10,
            start_ns=k * 17 * MS,
        )
        for k, law in enumerate(laws)
    ]
    routes = [CLOS.routes_of(job) for job in jobs]
    expected = simulate(CLOS.network, jobs, routes, SimulationSettings("steps", 3, step_ns=2000)).jobs
    run = step_run(laws)
    for number, job in enumerate(jobs):
        if number < 2:  # the first two are told before, the others come
            run.start(number, job, routes[number], hold_ns=job.start_ns)
            continue
        assert run.run(job.start_ns) == ()
        run.start(number, job, routes[number])
    ended = []
    while len(ended) < 4:
        ended += run.run(10**12)
    found = run.iterations()
    for number, course in enumerate(expected):
        assert found[number].began_ns.tolist() == course.begins_ns.tolist()
        assert found[number].ended_ns.tolist() == course.ends_ns.tolist()
        assert found[number].marked_bits.sum() == pytest.approx(8 * course.marked_bytes)
    assert ended == sorted(range(4), key=lambda number: expected[number].ends_ns[-1])


def test_in_steps_a_job_that_leaves_gives_back_its_share_and_may_come_again():
    run = step_run([BASE] * 4)
    jobs = [replace(CLOS.placed(f"j{k}", TRAFFIC, (k, 4 + k)), iterations=100) for k in range(2)]
    for number, job in enumerate(jobs):
        run.start(number, job, CLOS.routes_of(job))
    run.run(65 * MS)
    run.stop(1)
    run.delay(0, 7 * MS)
    run.run(200 * MS)
    assert run.reference_ns(0) is not None
    found = run.iterations()
    # Alone an iteration takes 30 ms; the delay is a part of one.
    assert found[1].duration_ns / MS == pytest.approx([50], abs=2) or len(found[1].duration_ns) == 2
    assert sorted(found[0].duration_ns[-3:] / MS)[0] == pytest.approx(30, abs=0.2)
    wide = replace(
        CLOS.placed("j1", demand_traffic(DEMAND, 3), (1, 2, 6)),
        iterations=2,
    )
    run.start(1, wide, CLOS.routes_of(wide))
    with pytest.raises(UsageError, match="job j1 runs already"):
        run.start(1, wide, CLOS.routes_of(wide))
    assert run.run(10**9) == (1,)
    assert run.iterations()[1].began_ns[0] == 200 * MS


@pytest.mark.parametrize("mode", TRACE_MODES)
def test_a_trace_goes_on_when_its_links_are_back_and_says_when_it_cannot(mode):
    trace = sets.JobSet("two", "", 8.0, tuple(TracedJob(f"j{k}", 2, 20, 0, DEMAND) for k in range(2)))
    settings = FluidSettings(CLOS, CLOS.nic_bps, noise=0.0)
    policy = SchedulingPolicy(FixedScheduler("fixed", {"j0": (0, 4), "j1": (1, 2)}))

    def ran(*outages):
        control = TrafficControl(ControlMix(BASE), mode=mode, failures=LinkFailures(outages, reroute_ns=MS))
        return run_trace(trace, settings, policy, 1, control)

    usual, late = ran(), ran(Outage("h0->leaf0", 100 * MS, 350 * MS))
    assert usual.outages == {"outages": [], "cut_off": []}
    gained = late.jobs[0].completion_ns - usual.jobs[0].completion_ns
    assert gained == pytest.approx(250 * MS, abs=30 * MS)
    assert late.jobs[1].completion_ns == pytest.approx(usual.jobs[1].completion_ns, abs=MS)
    assert late.outages["outages"] == [{"link": "h0->leaf0", "from_s": 0.1, "until_s": 0.35}]
    assert late.outages["cut_off"] == [{"job": "j0", "link": "h0->leaf0", "from_s": 0.101, "until_s": 0.35}]
    with pytest.raises(MltcpError, match="j0: cannot go on: h0->leaf0 down, and it is to stay so"):
        ran(Outage("h0->leaf0", 100 * MS))


@pytest.mark.slow
def test_a_trace_in_steps_is_near_that_in_shares():
    """Four jobs that start together on the links between two racks or more."""
    whole = short_trace(2)
    several = [replace(job, iterations=12, arrival_ns=0) for job in whole.jobs if job.workers > 1]
    trace = replace(whole, jobs=tuple(several[:4]))
    settings = FluidSettings(NetworkCluster.of(network_named("two-tier:4x4:8:1")), noise=0.0)
    found = {}
    for mode in ("shares", "steps"):
        control = TrafficControl(ControlMix(LAWS[0]), mode=mode)
        found[mode] = run_trace(trace, settings, scheduling_policy("random", seed=2), 2, control)
    means = {mode: outcome.document()["slowdown"]["mean"] for mode, outcome in found.items()}
    assert means["shares"] > 1.5
    assert means["steps"] == pytest.approx(means["shares"], rel=0.15)
    assert sum(job.marked_bits.sum() for job in found["steps"].jobs) > 0


# -- the network as a cluster ------------------------------------------------------------------------------------------


def test_hosts_are_in_the_rack_of_their_first_switch():
    cluster = NetworkCluster.of(network_named("leaf-spine:3x2:2:1,gpus=4"))
    assert [server.switch for server in cluster.servers] == ["leaf0"] * 2 + ["leaf1"] * 2 + ["leaf2"] * 2
    assert len(cluster.gpus) == 24
    assert [link.name for link in cluster.links] == [link.name for link in cluster.network.links]
    assert {float(link.speed) for link in cluster.links} == {1.0}


def test_in_a_tree_the_links_of_a_job_are_those_of_the_cluster_in_both_directions():
    tree = two_tier(3, 2, 2)
    cluster = NetworkCluster.of(network_named("two-tier:3x2:2:1,gpus=2"))
    for gpus in ((0, 1), (0, 2), (1, 4, 9), (0, 1, 2, 3, 4)):
        ends = {f"s{n}": f"h{n}" for n in range(6)} | {f"rack{n}": f"leaf{n}" for n in range(3)}
        expected = {ends[tree.links[link].name] for link in tree.links_of("j", gpus)}
        found = [cluster.links[link].name.split("->") for link in cluster.links_of("j", gpus)]
        lower = [min(ends, key=lambda name: "hls".index(name[0])) for ends in found]
        assert sorted(lower) == sorted([*expected, *expected])


def test_cassini_sees_the_links_of_routes():
    """Two jobs between the same leaves share uplinks only where ECMP takes them over the same spine."""
    demand = Demand((Phase(10 * MS, 0), Phase(20 * MS, 50 * GBPS)))
    shared = []
    for seed in range(20):
        cluster = replace(NetworkCluster.of(network_named("leaf-spine:2x4,spines=4")), seed=seed)
        users = traffic(cluster, {"a": (0, 4), "b": (1, 5)}, {"a": demand, "b": demand})
        assert all(users[name] == ("a",) for name in ("h0->leaf0", "leaf1->h4"))
        shared.append(sum(len(jobs) > 1 for jobs in users.values()))
        links = {cluster.links[link].name for link in cluster.links_of("a", (0, 4))}
        assert links == {name for name, jobs in users.items() if "a" in jobs}
    assert {0, 2} <= set(shared) <= {0, 2, 4}


@pytest.mark.parametrize("mode", ["steps", "shares"])
def test_what_is_made_below_the_rate_of_links_takes_its_time_on_links_and_within_a_host(mode):
    demand = Demand((Phase(10 * MS, 0), Phase(20 * MS, 2 * GBPS)))
    cluster = NetworkCluster.of(network_named("dumbbell:1,rate=8gbit,gpus=2"))
    law = NetworkLaw(Control.CONSTANT, constants=(("rate_bps", 8e9),))
    jobs = [
        replace(cluster.placed(name, demand_traffic(demand, 2), gpus), iterations=2, law=law)
        for name, gpus in (("apart", (0, 2)), ("together", (0, 1)))
    ]
    routes = [cluster.routes_of(job) for job in jobs]
    for job in simulate(cluster.network, jobs, routes, SimulationSettings(mode)).jobs:
        assert (job.ends_ns - job.begins_ns) / MS == pytest.approx([30, 30], abs=0.05)


def test_a_hold_before_an_iteration_is_no_part_of_it():
    jobs = [replace(DUMBBELL.placed("j0", TRAFFIC, (0, 1)), iterations=3, holds_ns=(0, 7 * MS))]
    routes = [DUMBBELL.routes_of(job) for job in jobs]
    (found,) = simulate(DUMBBELL.network, jobs, routes, SimulationSettings("steps")).jobs
    assert (found.begins_ns[1:] - found.ends_ns[:-1]).tolist() == [7 * MS, 0]
    with pytest.raises(UsageError, match="holds_ns: expected none in the mode shares"):
        simulate(DUMBBELL.network, jobs, routes, SimulationSettings("shares"))


# -- lost time ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "policy",
    [
        "random+mltcp_dcqcn",
        "random+ada-srsf+dctcp",
        "random+crux+dctcp",
        "random+dcqcn@failing",
        "random+mltcp_dcqcn@steps,failing",
        "random+dcqcn@auto",
    ],
)
def test_what_iterations_of_a_trace_took_is_conserved(policy):
    """Gates, routes and classes that change on the way, and links that fail."""
    name, _, how = policy.partition("@")
    mode, failing = next((mode for mode in TRACE_MODES if mode in how), "shares"), "failing" in how
    chosen, controls = split_controls(name)
    scheduler, gate, rival = placing_policy(chosen, 2, 2 * 10**9)
    # So many that one of them comes as the link is used.
    outages = tuple(Outage("leaf0->spine0", at * MS, (at + 100) * MS) for at in range(1000, 31000, 200))
    failures = LinkFailures(outages, reroute_ns=MS) if failing else NO_FAILURES
    settings = FluidSettings(NetworkCluster.of(network_named("leaf-spine:2x8:4:1,spines=2")), noise=0.01)
    control = TrafficControl(
        parse_controls(controls), gate, mode, 20_000, rival=rival, failures=failures, attributes=True
    )
    trace = short_trace(4) if mode == "shares" else brief_trace(7)
    outcome = run_trace(trace, settings, scheduler, 2, control)
    iterations_s = {job.name: job.iteration_ns.sum() / 1e9 for job in outcome.jobs}
    lost_s = dict.fromkeys(iterations_s, 0.0)
    for entry in outcome.losses["lost"]:
        assert entry["lost_s"] > 0 or entry["job"] == entry["neighbour"]
        lost_s[entry["job"]] += entry["lost_s"]
    assert sum(lost_s.values()) > 0.2
    for found in outcome.losses["lost_by_job"]:
        parts_s = found["unhindered_s"] + found["waited_s"] + lost_s[found["job"]]
        assert found["took_s"] == pytest.approx(parts_s, abs=1e-8)
        assert found["took_s"] == pytest.approx(iterations_s[found["job"]], abs=1e-8)
    waited_s = sum(found["waited_s"] for found in outcome.losses["lost_by_job"])
    assert (waited_s > 0) is (gate is not None)
    if failing:
        assert any(entry["neighbour"] is None for entry in outcome.losses["lost"])


def test_lost_time_is_kept_over_restarts_and_has_no_part_of_what_was_cut_off_or_delayed():
    run = share_run(attributes=True)
    start(run, 0)
    start(run, 1)
    run.run(25 * MS)
    run.stop(1)  # in its first iteration: job 0 has lost 7.5 ms to it, of 15
    run.delay(0, 7 * MS)
    run.run(80 * MS)  # in the second iteration of job 0, after its delay
    start(run, 1, iterations=1)
    run.run(200 * MS)
    lost, found = run.lost_time, run.iterations()
    took_ms = [each.duration_ns.sum() / MS for _, each in sorted(found.items())]
    assert lost.took_ns / MS == pytest.approx(took_ms)
    assert lost.waited_ns / MS == pytest.approx([7, 0])
    ended = [len(each.ended_ns) for _, each in sorted(found.items())]
    assert lost.unhindered_ns / MS == pytest.approx([30 * count for count in ended])
    of_jobs = [lost.lost_ns[lost.job == number].sum() / MS for number in range(2)]
    assert of_jobs == pytest.approx(
        [took - 30 * count for took, count in zip(took_ms, ended, strict=True)] - np.array([7, 0])
    )
    assert set(lost.neighbour) == {0, 1}


# -- the mode auto -----------------------------------------------------------------------------------------------------


def auto_run(laws):
    widest = [(f"j{k}", demand_traffic(DEMAND, 2)) for k in range(len(laws))]
    shares = ShareRun(CLOS.network, widest, laws, ShareSettings(3))
    return AutoRun(CLOS.network, shares, StepRun(CLOS.network, widest, laws, 3, 2000))


def test_auto_takes_steps_for_the_jobs_that_share_a_link_while_they_do():
    """Jobs 0 and 1 meet on the uplink of the first leaf, from the second iteration of job 0 until job 1 has ended."""
    run, jobs = auto_run([BASE] * 3), []
    for k, gpus in enumerate(((0, 4), (1, 5), (2, 3))):
        placed = CLOS.placed(f"j{k}", TRAFFIC, gpus)
        jobs.append(replace(placed, iterations=12 if k == 0 else 3, noise_ns=MS // 10))
    run.start(0, jobs[0], CLOS.routes_of(jobs[0]))
    run.start(2, jobs[2], CLOS.routes_of(jobs[2]), hold_ns=7 * MS)
    assert run.run(40 * MS) == ()
    run.start(1, jobs[1], CLOS.routes_of(jobs[1]))
    assert [run.iterations_left(k) for k in range(3)] == [11, 3, 2]
    with pytest.raises(UsageError, match="job j1 runs already"):
        run.start(1, jobs[1], CLOS.routes_of(jobs[1]))
    ended = []
    while len(ended) < 3:
        ended += run.run(10**12)
        assert not any(run.iterations_left(number) for number in ended)
    assert run.is_still
    found = run.iterations()
    assert [len(found[number].ended_ns) for number in range(3)] == [12, 3, 3]
    assert ended == sorted(range(3), key=lambda number: found[number].ended_ns[-1])
    for each in found.values():  # iterations follow each other, whatever the mode
        assert each.began_ns[1:] == pytest.approx(each.ended_ns[:-1], abs=1)
    in_steps = ~np.isnan(found[0].marked_bits)
    assert in_steps[2:4].all()
    assert not in_steps[[0, 1, 5, -1]].any()
    assert not np.isnan(found[1].marked_bits).any()
    assert np.isnan(found[2].marked_bits).all()
    # Alone each iteration takes what it computes, with its noise, and sends.
    alone_ms = found[0].duration_ns[~in_steps] / MS
    assert alone_ms == pytest.approx(30 + jobs[0].noise(3, 12)[~in_steps] / MS, abs=0.01)
    assert found[0].duration_ns[2:4].max() > 35 * MS


def test_auto_is_shares_where_no_link_is_shared_and_steps_where_all_is():
    laws = [LAWS[0]] * 3
    apart = [CLOS.placed(f"j{k}", TRAFFIC, gpus) for k, gpus in enumerate(((0, 1), (2, 3), (4, 5)))]
    crossing = [CLOS.placed(f"j{k}", TRAFFIC, (k, 4 + k)) for k in range(3)]
    widest = [(f"j{k}", TRAFFIC) for k in range(3)]
    for placed, alone in (
        (apart, ShareRun(CLOS.network, widest, laws, ShareSettings(3))),
        (crossing, StepRun(CLOS.network, widest, laws, 3, 2000)),
    ):
        found = []
        for run in (alone, auto_run(laws)):
            for number, job in enumerate(placed):
                job = replace(job, iterations=5, noise_ns=MS)
                run.start(number, job, CLOS.routes_of(job), hold_ns=number * MS if placed is apart else 0)
            run.run(110 * MS)
            found.append({number: each.ended_ns.tolist() for number, each in run.iterations().items()})
        assert found[0] == found[1]
        assert len(found[0]) == 3
