"""The rivals: exact small cases, laws that all keep, and what their decisions do to a running simulation."""

from dataclasses import replace
from itertools import combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mltcp.core.demand import Demand, Phase
from mltcp.core.errors import UsageError
from placement.experiments.network_traces import placing_policy
from placement.policies.schedulers.scheduler import JobView, gpu_owners
from placement.simulator.cluster_run import Start
from placement.simulator.fluid_executor import FluidSettings
from placement.simulator.network.control_names import ControlMix
from placement.simulator.network.laws.network_law import Control, NetworkLaw
from placement.simulator.network.network_cluster import NetworkCluster
from placement.simulator.network.parallelism import demand_traffic
from placement.simulator.network.shares import ShareSettings
from placement.simulator.network.topologies import network_named
from placement.simulator.network_executor import STATE_BYTES, NetworkExecutor, TrafficControl
from placement.simulator.rivals.catalogue import RIVALS
from placement.simulator.rivals.crux import bytes_by_link, intensity
from placement.simulator.rivals.foresight import planned
from placement.simulator.rivals.monkeytree import MonkeyTree, defragmented, edge_colors
from placement.simulator.rivals.priority_levels import priority_levels
from placement.simulator.rivals.rival import SteeredJob
from placement.simulator.scheduled_cluster import run_trace
from placement.simulator.share_run import ShareRun
from placement.traces.sets import JobSet, TracedJob

MS, GBPS = 10**6, 10**9
LAW = NetworkLaw(Control.DCTCP)


def cluster_of(name, **more):
    return replace(NetworkCluster.of(network_named(name)), **more)


def job(name, compute_ms, send_ms, workers=2, iterations=50, gbps=8, arrival_ms=0):
    demand = Demand((Phase(compute_ms * MS, 0), Phase(send_ms * MS, gbps * GBPS)))
    return TracedJob(name, workers, iterations, arrival_ms * MS, demand)


def steered(cluster, traced, gpus, left=50):
    demand = Demand(traced.phases(len(gpus)))
    traffic = demand_traffic(demand, len(gpus), rings=cluster.rings_of(len(gpus)))
    placed = cluster.placed(traced.name, traffic, gpus)
    compute_ns = sum(phase.duration_ns for phase in demand.phases if not phase.bandwidth_bps)
    return SteeredJob(placed, cluster.routes_of(placed), demand.iteration_ns, compute_ns, left)


def ready(name, compute_ms, send_ms, gpus, ready_ms):
    traced = steered(DUMBBELL, job(name, compute_ms, send_ms), gpus)
    return replace(traced, silence_ns=compute_ms * MS, ready_ns=ready_ms * MS)


def run(cluster, jobs, policy, migration_ns=0):
    settings = FluidSettings(cluster, cluster.nic_bps, migration_ns, noise=0.0)
    chosen, gate, rival = placing_policy(policy)
    trace = JobSet("small", "", cluster.nic_bps / GBPS, tuple(jobs))
    return run_trace(trace, settings, chosen, 1, TrafficControl(ControlMix(LAW), gate, rival=rival))


# -- Crux --------------------------------------------------------------------------------------------------------------

DUMBBELL = cluster_of("dumbbell:2,rate=8gbit,delay_us=0")


def test_of_two_jobs_on_a_link_the_one_with_the_higher_intensity_goes_first():
    busy, idle = job("busy", 30, 20), job("idle", 10, 20)
    pair = [steered(DUMBBELL, idle, (2, 3)), steered(DUMBBELL, busy, (0, 1))]
    # Two workers, 10 and 30 ms of computing; 20 ms on the slowest link.
    assert [intensity(DUMBBELL, each, each.routes) for each in pair] == pytest.approx([1, 3])
    assert RIVALS["crux"].steer(DUMBBELL, pair).classes == {"busy": 7, "idle": 6}
    fair, crux = (run(DUMBBELL, [busy, idle], name) for name in ("first-fit", "first-fit+crux"))
    assert crux.jobs[0].slowdown == pytest.approx(1.0)
    assert crux.jobs[1].slowdown.max() > 1.1
    assert max(fair.jobs[0].slowdown) > 1.05


def test_a_class_that_was_told_at_the_launch_stays_and_others_are_chosen_beside_it():
    launch = RIVALS["launch"]
    idle, busy = (
        steered(DUMBBELL, job("idle", 10, 20), (2, 3)),
        steered(DUMBBELL, job("busy", 30, 20), (0, 1)),
    )
    assert launch.steer(DUMBBELL, [idle]).classes == {"idle": 3}
    told = replace(idle, traffic_class=3)
    assert launch.steer(DUMBBELL, [told, busy]).classes == {"idle": 3, "busy": 4}
    found = run(DUMBBELL, [job("busy", 30, 20), job("idle", 10, 20)], "first-fit+launch")
    assert found.jobs[0].slowdown == pytest.approx(1.0)


def test_a_flow_takes_the_spine_that_carries_least():
    cluster = cluster_of("leaf-spine:2x2,rate=8gbit,spines=2")
    pair = [steered(cluster, job(name, 10, 20), gpus) for name, gpus in (("a", (0, 2)), ("b", (1, 3)))]
    for seed in range(5):
        seeded = replace(cluster, seed=seed)
        steering = RIVALS["crux"].steer(seeded, pair)
        used = [{link for route in steering.routes[name] for link in route} for name in ("a", "b")]
        assert not used[0] & used[1]


def test_jobs_without_links_are_left_alone():
    cluster = cluster_of("dumbbell:1,rate=8gbit,gpus=2")
    assert RIVALS["crux"].steer(cluster, [steered(cluster, job("a", 10, 20), (0, 1))]).routes == {}


# -- priorities --------------------------------------------------------------------------------------------------------


def symmetric(count, values):
    weights = np.zeros((count, count))
    weights[np.triu_indices(count, 1)] = values
    return weights + weights.T


def lost(weights, levels):
    return sum(weights[i, j] for i in range(len(weights)) for j in range(i) if levels[i] == levels[j])


def test_the_cut_that_loses_least():
    assert priority_levels(symmetric(3, [5.0, 5.0, 1.0]), 2).tolist() == [0, 1, 1]
    assert priority_levels(symmetric(3, [1.0, 5.0, 5.0]), 2).tolist() == [0, 0, 1]
    assert priority_levels(np.zeros((0, 0)), 8).tolist() == []


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_levels_keep_the_order_of_jobs_that_share_links(data):
    count = data.draw(st.integers(1, 7))
    pairs = count * (count - 1) // 2
    values = data.draw(st.lists(st.sampled_from([0.0, 1.0, 2.5, 10.0]), min_size=pairs, max_size=pairs))
    weights, levels = symmetric(count, values), data.draw(st.integers(1, 4))
    found = priority_levels(weights, levels)
    assert all(0 <= level < levels for level in found)
    assert all(found[i] <= found[j] for i in range(count) for j in range(i + 1, count) if weights[i, j] > 0)
    # All parts of the given order are among those that are tried; where all jobs share links there are no others.
    best = min(lost(weights, each) for each in combinations_with_replacement(range(levels), count))
    assert lost(weights, found) <= best + 1e-9
    if all(values):
        assert lost(weights, found) == pytest.approx(best)


# -- what is left ------------------------------------------------------------------------------------------------------


def test_the_job_with_the_least_left_goes_first():
    pair = [
        steered(DUMBBELL, job(name, 10, 20), gpus, left)
        for name, gpus, left in (("long", (0, 1), 50), ("short", (2, 3), 5))
    ]
    assert RIVALS["srpt"].steer(DUMBBELL, pair).classes == {"short": 7, "long": 6}
    found = run(DUMBBELL, [job("long", 20, 20), job("short", 20, 20, iterations=20)], "first-fit+srpt")
    assert found.jobs[1].slowdown == pytest.approx(1.0)


def test_with_the_shortest_iteration_first_a_short_message_does_not_wait_for_a_long_one():
    jobs = [job("long", 20, 200), job("short", 20, 2, iterations=200)]
    found = run(DUMBBELL, jobs, "first-fit+srpt-iteration")
    assert found.jobs[1].slowdown[:-1] == pytest.approx(1.0, abs=1e-3)
    assert run(DUMBBELL, jobs, "first-fit").jobs[1].slowdown.mean() > 1.05


def test_under_ideal_nobody_is_slowed_down():
    found = run(DUMBBELL, [job("a", 10, 20), job("b", 10, 20)], "first-fit+ideal")
    assert all(each.slowdown == pytest.approx(1.0) for each in found.jobs)


# -- Foresight ---------------------------------------------------------------------------------------------------------


def test_of_two_jobs_that_fit_into_each_other_one_waits_once():
    pair = [ready("a", 30, 20, (0, 1), 30.0), ready("b", 30, 20, (2, 3), 30.0)]
    sends = RIVALS["foresight"].steer(DUMBBELL, pair).sends_ns
    assert [each / MS for each in sends["a"][:3]] == pytest.approx([30, 80, 130])
    assert [each / MS for each in sends["b"][:3]] == pytest.approx([50, 100, 150])
    found = run(DUMBBELL, [job("a", 30, 20), job("b", 30, 20)], "first-fit+foresight")
    assert all(each.slowdown[2:] == pytest.approx(1.0) for each in found.jobs)


def test_jobs_that_do_not_fit_take_turns_and_nothing_overlaps():
    found = run(DUMBBELL, [job("a", 10, 20), job("b", 10, 20)], "first-fit+foresight")
    # Forty milliseconds for what two send, thirty alone.
    assert all(np.median(each.slowdown) == pytest.approx(4 / 3, rel=1e-3) for each in found.jobs)


def test_jobs_that_can_have_paths_of_their_own_do_not_wait():
    cluster = cluster_of("leaf-spine:2x2,rate=8gbit,spines=2,delay_us=0")
    pair = [
        replace(steered(cluster, job(name, 10, 20), gpus), silence_ns=10 * MS, ready_ns=10.0 * MS)
        for name, gpus in (("a", (0, 2)), ("b", (1, 3)))
    ]
    for seed in range(5):
        steering = RIVALS["foresight"].steer(replace(cluster, seed=seed), pair)
        for sends in steering.sends_ns.values():
            assert [each / MS for each in sends[:3]] == pytest.approx([10, 40, 70])


@given(st.data())
@settings(max_examples=20, deadline=None)
def test_no_link_of_a_plan_carries_more_than_it_can(data):
    cluster = cluster_of("leaf-spine:3x3:3:1,rate=8gbit,delay_us=0")
    order = data.draw(st.permutations(range(9)))
    jobs = []
    for number, gpus in enumerate((order[:2], order[2:4], order[4:7], order[7:])):
        compute, send = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 40))
        traced = job(f"j{number}", compute, send, len(gpus), gbps=data.draw(st.sampled_from([2, 4, 8])))
        ready_ns = data.draw(st.floats(0, 1)) * compute * MS
        jobs.append(
            replace(steered(cluster, traced, tuple(gpus)), silence_ns=compute * MS, ready_ns=ready_ns)
        )
    steering = RIVALS["foresight"].steer(cluster, jobs)
    plan = planned(cluster, [each for each in jobs if any(each.routes)], steering.routes)
    events = []
    for each in jobs:
        for link, size in bytes_by_link(each, steering.routes[each.name]).items():
            rate = size / plan.bursts_ns[each.name] / (cluster.network.links[link].rate_bps / 8e9)
            for begins_ns in plan.sends_ns[each.name]:
                events += [
                    (begins_ns + 1, link, rate),
                    (begins_ns + plan.bursts_ns[each.name] - 1, link, -rate),
                ]
    used = {}
    for _, link, rate in sorted(events):
        used[link] = used.get(link, 0.0) + rate
        assert used[link] <= 1 + 1e-6
    for each in jobs:
        apart = np.diff(plan.sends_ns[each.name])
        assert (apart >= plan.bursts_ns[each.name] + each.silence_ns - 1).all()


# -- Metronome ---------------------------------------------------------------------------------------------------------


def test_a_job_of_lower_priority_sends_in_the_middle_of_what_is_left_of_the_circle():
    pair = [ready("a", 30, 20, (0, 1), 30.0), ready("b", 30, 20, (2, 3), 30.0)]
    sends = RIVALS["metronome"].steer(DUMBBELL, pair).sends_ns
    assert [each / MS for each in sends["a"][:3]] == pytest.approx([30, 80, 130])
    # Free from 50 to 80, of which it needs 20.
    assert [each / MS for each in sends["b"][:3]] == pytest.approx([55, 105, 155], abs=0.6)
    found = run(DUMBBELL, [job("a", 30, 20), job("b", 30, 20)], "first-fit+metronome")
    assert found.jobs[0].slowdown == pytest.approx(1.0)
    assert found.jobs[1].slowdown[2:] == pytest.approx(1.0)


def test_a_job_that_collides_with_none_keeps_its_slots():
    pair = [ready("a", 30, 20, (0, 1), 30.0), ready("b", 30, 20, (2, 3), 52.0)]
    assert RIVALS["metronome"].steer(DUMBBELL, pair).sends_ns["b"][0] == 52 * MS


def test_iterations_that_nearly_divide_are_padded():
    found = run(DUMBBELL, [job("a", 30, 20), job("b", 29, 20)], "first-fit+metronome")
    assert found.jobs[0].slowdown == pytest.approx(1.0)
    assert found.jobs[1].slowdown[2:-1] == pytest.approx(50 / 49)


def test_jobs_whose_iterations_do_not_divide_send_when_they_can():
    pair = [ready("a", 30, 20, (0, 1), 30.0), ready("b", 50, 21, (2, 3), 30.0)]
    assert RIVALS["metronome"].steer(DUMBBELL, pair).sends_ns == {}


# -- MonkeyTree --------------------------------------------------------------------------------------------------------


def test_two_racks_of_two_servers_are_defragmented_with_two_moves():
    pytest.importorskip("highspy")
    counts, two, none = np.array([[1, 1], [1, 1]]), np.array([2, 2]), np.array([0, 0])
    found = defragmented(counts, two, np.array([1, 1]), none, np.ones(2))
    assert sorted(found.tolist()) == [[0, 2], [2, 0]]
    assert (
        defragmented(counts, two, np.array([1, 1]), np.array([2, 2]), np.ones(2)).tolist() == counts.tolist()
    )
    # Without a free server three jobs of two cannot all lie in one rack each of three.
    three = np.array([[1, 1], [1, 1], [1, 1]])
    assert defragmented(three, np.array([3, 3]), np.ones(3, int), none, np.ones(3)) is None


def view(name, gpus, wanted=None):
    wanted = wanted or len(gpus)
    return JobView(name, 0, wanted, wanted, wanted, 10, 10, job(name, 1, 1), gpus=gpus)


def crossing(cluster, assignment):
    by_rack = {}
    for name, gpus in assignment.items():
        racks = {cluster.servers[cluster.gpus[gpu][0]].switch for gpu in gpus}
        for rack in racks if len(racks) > 1 else ():
            by_rack.setdefault(rack, set()).add(name)
    return {rack: len(names) for rack, names in by_rack.items()}


def test_the_fewest_gpus_are_moved_and_waiting_jobs_rather_than_running_ones():
    pytest.importorskip("highspy")
    cluster = cluster_of("leaf-spine:2x4:2:1")
    split = {"a": (0, 4), "b": (1, 5), "c": (2, 6)}
    running = [view(name, gpus) for name, gpus in split.items()]
    moved = MonkeyTree().moved(cluster, running, split)
    assert sum(len({*moved[name]} - {*gpus}) for name, gpus in split.items()) == 1
    assert crossing(cluster, moved) == {"leaf0": 2, "leaf1": 2}
    running[1] = view("b", (), 2)
    moved = MonkeyTree().moved(cluster, running, split)
    assert (moved["a"], moved["c"]) == (split["a"], split["c"])
    assert moved["b"] in ((1, 3), (5, 7))
    two = {"a": (0, 4), "b": (1, 5)}
    assert MonkeyTree().moved(cluster, running, two) is two


def test_whole_servers_are_moved_whole():
    pytest.importorskip("highspy")
    cluster = cluster_of("leaf-spine:2x4:2:1,gpus=2")
    servers = {"a": (0, 4), "b": (1, 5), "c": (2, 6)}
    split = {
        name: tuple(2 * each + gpu for each in found for gpu in (0, 1)) for name, found in servers.items()
    }
    moved = MonkeyTree().moved(cluster, [view(*each) for each in split.items()], split)
    for gpus in moved.values():
        assert gpus[::2] == tuple(gpu - 1 for gpu in gpus[1::2])
        assert all(gpu % 2 == 0 for gpu in gpus[::2])
    assert crossing(cluster, moved) == {"leaf0": 2, "leaf1": 2}


@given(st.data())
@settings(max_examples=15, deadline=None)
def test_moves_overfill_no_server_and_leave_jobs_within_a_rack(data):
    pytest.importorskip("highspy")
    cluster = cluster_of("leaf-spine:3x4:2:1")
    order = data.draw(st.permutations(range(12)))
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=6))
    assignment = {}
    for number, size in enumerate(sizes):
        if len(order) >= size:
            assignment[f"j{number}"], order = tuple(sorted(order[:size])), order[size:]
    moved = MonkeyTree().moved(cluster, [view(*each) for each in assignment.items()], assignment)
    assert {name: len(gpus) for name, gpus in moved.items()} == {
        name: len(gpus) for name, gpus in assignment.items()
    }
    gpu_owners(cluster, moved)  # raises if a GPU is held twice
    assert all(tuple(sorted(gpus)) == gpus for gpus in moved.values())
    within = {name for name, gpus in assignment.items() if len({gpu // 4 for gpu in gpus}) == 1}
    assert all(moved[name] == assignment[name] for name in within)
    assert max(crossing(cluster, moved).values(), default=0) <= 2


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("abcd")), max_size=30))
def test_edges_that_meet_have_different_colors_and_there_are_no_more_than_the_largest_degree(edges):
    colors = edge_colors(edges)
    for side in (0, 1):
        at = [(edge[side], color) for edge, color in zip(edges, colors, strict=True)]
        assert len(set(at)) == len(at)
    degree = max((sum(edge[side] == node for edge in edges) for side in (0, 1) for node in "abcd"), default=0)
    assert all(0 <= color < degree for color in colors)


def test_a_moved_job_sends_the_state_of_its_moved_workers_and_then_waits():
    cluster = cluster_of("leaf-spine:2x2,rate=8gbit,delay_us=0")
    traced = job("a", 10, 20)
    control = TrafficControl(ControlMix(LAW), rival=RIVALS["monkeytree"])
    executor = NetworkExecutor(
        [traced], cluster, FluidSettings(cluster, cluster.nic_bps, 100 * MS, noise=0.0), control, 1
    )
    executor.start(Start(traced, (0, 2), 50, 1, 0))
    executor.run(300 * MS)
    done = executor.work_done("a")
    executor.stop("a")
    executor.start(Start(traced, (0, 1), 50 - done, 1, 1))
    assert executor.work_done("a") == 0
    # A worker sends 20 MB of 2 (n-1)/n of its gradients, n = 2, at 1 byte a nanosecond; so it has 20 MB of them.
    state_ms = STATE_BYTES * 20
    executor.run((300 + state_ms - 1) * MS)
    assert executor.work_done("a") == 0
    (end,) = executor.run(None)
    left_ms = (50 - done) * 30
    assert 300 + state_ms + 100 + left_ms <= end.at_ns / MS <= 300 + state_ms + 100 + left_ms + 30
    assert sum(len(each) for each in executor.jobs["a"].iteration_ns) == 50


# -- all of them -------------------------------------------------------------------------------------------------------

SPINES = cluster_of("leaf-spine:2x3,rate=8gbit,delay_us=0,spines=2,classes=strict")
TRAFFIC = demand_traffic(Demand((Phase(10 * MS, 0), Phase(20 * MS, 8 * GBPS))), 2)


@given(
    st.lists(
        st.tuples(st.integers(1, 40), st.integers(0, 2), st.integers(0, 3), st.integers(0, 7)), max_size=12
    )
)
@settings(max_examples=40, deadline=None)
def test_no_steering_changes_the_bytes_of_a_job(steps):
    """Each step: after how many ms which job is given which of its routes, and which class."""
    share_run = ShareRun(
        SPINES.network, [(f"j{k}", TRAFFIC) for k in range(3)], [LAW] * 3, ShareSettings(), traffic_class=0
    )
    placed = [SPINES.placed(f"j{k}", TRAFFIC, (k, 3 + k)) for k in range(3)]
    for number, each in enumerate(placed):
        share_run.start(number, replace(each, iterations=5), SPINES.routes_of(each))
    for after_ms, number, way, traffic_class in steps:
        share_run.run(share_run.now_ns + after_ms * MS)
        if share_run.runs(number):
            ways = SPINES.ways_of(placed[number])
            routes = [of[(way >> k) % len(of)] for k, of in enumerate(ways)]
            share_run.steer(number, routes, traffic_class)
    while any(share_run.runs(number) for number in range(3)):
        share_run.run(share_run.now_ns + 10**12)
    sent = {link.name: link.sent_bytes for link in share_run.links()}
    for name, size in sent.items():
        if name.startswith("h") or "->h" in name:
            assert size == pytest.approx(5 * 20 * MS)
    for leaf in ("leaf0", "leaf1"):
        for ends in (f"{leaf}->spine{{}}", f"spine{{}}->{leaf}"):
            assert sum(sent[ends.format(spine)] for spine in (0, 1)) == pytest.approx(15 * 20 * MS)


@pytest.mark.parametrize("name", sorted(RIVALS))
def test_under_every_rival_all_jobs_do_all_of_their_iterations(name):
    if name == "monkeytree":
        pytest.importorskip("highspy")
    cluster = cluster_of("leaf-spine:4x4:4:1,rate=8gbit,gpus=1")
    jobs = [job(f"j{k}", 20, 20, 2 + k % 3, 10 + k, arrival_ms=40 * k) for k in range(12)]
    found = run(cluster, jobs, f"random+{name}", migration_ns=50 * MS)
    assert [len(each.iteration_ns) for each in found.jobs] == [each.iterations for each in jobs]
    assert min(each.slowdown.min() for each in found.jobs) > 1 - 1e-6
    assert 0 < found.utilization <= 1


def test_routes_longer_than_those_that_a_job_has_are_refused():
    share_run = ShareRun(SPINES.network, [("j0", TRAFFIC)], [LAW], ShareSettings())
    placed = SPINES.placed("j0", TRAFFIC, (0, 1))
    share_run.start(0, replace(placed, iterations=5), SPINES.routes_of(placed))
    far = SPINES.placed("j0", TRAFFIC, (0, 3))
    with pytest.raises(UsageError, match="job 0: routes: expected 2, none longer than before"):
        share_run.steer(0, SPINES.routes_of(far))


@pytest.mark.parametrize("name", ["first-fit+crux+srpt", "first-fit+cassini+cassini", "first-fit+vegas"])
def test_names_that_are_none(name):
    with pytest.raises(UsageError, match=r"--policies: expected SCHEDULER, .*crux, srpt"):
        placing_policy(name)
