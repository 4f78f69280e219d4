"""The share mode: exact courses, other models' results, the laws of weighted max-min, and conserved bytes and time."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mltcp.control import fluid
from mltcp.control.aggressiveness import Aggressiveness, Shape
from mltcp.core.demand import Phase
from mltcp.core.errors import UsageError
from placement.simulator.fluid import Fluid
from placement.simulator.network.laws.network_law import Control, NetworkLaw
from placement.simulator.network.outcome import lost_lines
from placement.simulator.network.shares import EXPONENTS, ShareSettings, advanced, begun, run_shares
from placement.simulator.network.simulation import SimulationSettings, simulate
from placement.simulator.network.topology import ClassQueues, Marking, Network, NetworkLink
from placement.simulator.network.traffic import IterationStep, Message, NetworkJob, RemainingClass, Traffic

MS = 10**6
GBPS = 10**9
BASE, F = NetworkLaw(Control.DCTCP), NetworkLaw(Control.DCTCP, Aggressiveness())
LAWS = (BASE, F, NetworkLaw(Control.DCQCN, Aggressiveness(), decrease=True))


def network(*rates_gbps, delay_ns=0):
    """Links by number; a test says in its routes which of them a message takes."""
    ends = range(len(rates_gbps))
    links = (NetworkLink(f"a{k}", f"b{k}", rates_gbps[k] * GBPS, delay_ns) for k in ends)
    return Network(tuple(f"a{k}" for k in ends), tuple(links))


def step(compute_ms, *sizes, after=()):
    """A step with a message for each size in bytes, each on a connection of its own."""
    messages = (Message(0, 1, size, number) for number, size in enumerate(sizes))
    return IterationStep(round(compute_ms * MS), tuple(messages), after)


def job(name, *steps, law=BASE, iterations=1, start_ms=0, noise_ms=0):
    traffic = Traffic(2, steps)
    return NetworkJob(name, traffic, (0, 1), law, iterations, round(start_ms * MS), round(noise_ms * MS))


def sent_in(ms, gbps=10):
    """Bytes."""
    return ms * gbps * MS / 8 / 1000 * 1000


def durations_ms(course):
    return ((course.ends_ns - course.begins_ns) / MS).tolist()


def test_a_job_alone_takes_its_time_and_the_delay_of_its_way():
    alone = job("A", step(30, sent_in(20)), iterations=3)
    [course] = run_shares(network(10, 40, delay_ns=1000), [alone], [[(0, 1)]]).jobs
    assert course.ends_ns.tolist() == [50_002_000, 100_004_000, 150_006_000]
    assert course.begins_ns.tolist() == [0, 50_002_000, 100_004_000]
    assert course.slowdowns.tolist() == [1, 1, 1]


@pytest.mark.parametrize(("start", "slowdown"), [(0, 1.4), (0.25, 1.3), (1, 1)])
def test_equal_jobs_at_fair_shares_stay_as_they_are(start, slowdown):
    jobs = [
        job(name, step(60, sent_in(40)), iterations=5, start_ms=at)
        for name, at in (("A", 0), ("B", start * 40))
    ]
    for course in run_shares(network(10), jobs, [[(0,)]] * 2).jobs:
        assert course.slowdowns.tolist() == [slowdown] * 5


def test_steps_wait_for_each_other_and_overlap():
    # The first is sent from 10 to 15 ms, beside the computing of the second, until 20 ms; the third waits for both.
    steps = (step(10, sent_in(5)), step(20, sent_in(2)), step(4, sent_in(3), after=(0, 1)))
    [course] = run_shares(network(10), [job("A", *steps)], [[(0,), (0,), (0,)]]).jobs
    assert durations_ms(course) == [20 + 2 + 4 + 3]


def test_messages_on_one_connection_are_sent_in_turn_and_share_its_bytes_ratio():
    rival = job("B", step(15, sent_in(40)), law=F, iterations=3)
    whole = job("A", step(10, sent_in(40)), law=F, iterations=3)
    parts = IterationStep(10 * MS, (Message(0, 1, sent_in(10)), Message(0, 1, sent_in(30))))
    first = run_shares(network(10), [whole, rival], [[(0,)], [(0,)]], ShareSettings(hold_ns=1000))
    second = run_shares(
        network(10),
        [job("A", parts, law=F, iterations=3), rival],
        [[(0,)] * 2, [(0,)]],
        ShareSettings(hold_ns=1000),
    )
    for one, other in zip(first.jobs, second.jobs, strict=True):
        assert one.ends_ns == pytest.approx(other.ends_ns, abs=2000)


@pytest.mark.parametrize("shape", [Shape.ONE, Shape.LINEAR, Shape.REMAINING])
def test_jobs_on_one_link_are_those_of_the_closed_form(shape):
    f = Aggressiveness.of_shape(shape)
    times = [(30, 20, 0), (25, 15, 5), (20, 30, 12)]
    law = NetworkLaw(Control.RENO, f)
    jobs = [
        job(str(k), step(compute, sent_in(sends)), law=law, iterations=4, start_ms=start)
        for k, (compute, sends, start) in enumerate(times)
    ]
    # There an iteration begins with its communication, and all jobs go on until the last has ended.
    jobs = [replace(each, iterations=12) for each in jobs]
    closed = [fluid.FluidJob(c / 1e3, s / 1e3, (start + c) / 1e3, f) for c, s, start in times]
    found = run_shares(network(10), jobs, [[(0,)]] * 3, ShareSettings(hold_ns=200)).jobs
    for course, iterations in zip(found, fluid.simulate(closed, 4), strict=True):
        assert course.ends_ns[:4] / 1e9 == pytest.approx([each.end_s for each in iterations], abs=1e-6)


RACKS = 4


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_fair_shares_are_those_of_the_fluid_simulation_on_two_tiers(data):
    """Two servers a rack, whose NICs and uplinks have one rate; a job has the same rate on all of its links."""
    servers = st.sets(st.integers(0, 2 * RACKS - 1), min_size=2, max_size=4)
    rates = [50] * (3 * RACKS)
    jobs, ways = [], []
    simulated = Fluid([rate * GBPS for rate in rates], 5)
    for number in range(5):
        used = data.draw(servers)
        racks = {server // 2 for server in used}
        way = sorted(used) + [2 * RACKS + rack for rack in racks if len(racks) > 1]
        compute_ms, send_ms = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 40))
        start_ms = data.draw(st.integers(0, 30))
        simulated.start(
            number, (Phase(compute_ms * MS, 0), Phase(send_ms * MS, 50 * GBPS)), way, 3, hold_ns=start_ms * MS
        )
        jobs.append(job(str(number), step(compute_ms, sent_in(send_ms, 50)), iterations=3, start_ms=start_ms))
        ways.append([way])
    outcome = run_shares(network(*rates), jobs, ways)
    while any(simulated.runs(number) for number in range(5)):
        simulated.run(1e15)
    of_jobs = simulated.iterations()
    for number, course in enumerate(outcome.jobs):
        assert course.ends_ns == pytest.approx(of_jobs[number].ended_ns, abs=1)
    assert [link.sent_bytes * 8 for link in outcome.links] == pytest.approx(simulated.link_bits, rel=1e-9)


# -- laws, of random jobs -----------------------------------------------------------------------

LINKS = 6
ways_of = st.lists(st.integers(0, LINKS - 1), min_size=1, max_size=4, unique=True)


@given(
    st.lists(st.integers(1, 100), min_size=LINKS, max_size=LINKS),
    st.lists(st.tuples(ways_of, st.floats(0.1, 10), st.integers(1, 100)), min_size=1, max_size=12),
    st.sampled_from([Control.RENO, Control.DCQCN]),
    st.sampled_from([(True, False), (False, True), (True, True)]),
)
@settings(max_examples=100, deadline=None)
def test_rates_are_weighted_max_min(rates, flows, control, scaled):
    """Every message has a link that is full, where nobody has more for its weight; nothing else is max-min."""
    factors = np.array([f for _, f, _ in flows])
    (on_increase, on_decrease), (increase, decrease) = EXPONENTS[control], scaled
    weights = factors ** (on_increase * increase) * np.maximum(1, factors) ** (on_decrease * decrease)
    jobs = [
        job(str(k), step(0, 1e12), law=NetworkLaw(control, Aggressiveness(slope=0, intercept=f), *scaled))
        for k, (_, f, _) in enumerate(flows)
    ]
    ways = [[*way, LINKS + k] for k, (way, _, _) in enumerate(flows)]  # the last link is its own
    all_rates = [*rates, *(access for _, _, access in flows)]
    outcome = run_shares(network(*all_rates), jobs, [[way] for way in ways], ShareSettings(duration_ns=MS))
    used = np.array([link.sent_bytes for link in outcome.links]) * 8 / 1e6  # Gbit/s in 1 ms
    assert (used <= np.array(all_rates) * (1 + 1e-9)).all()
    levels = used[LINKS:] / weights
    for number, way in enumerate(ways):
        assert any(
            used[link] >= all_rates[link] * (1 - 1e-9)
            and all(
                levels[other] <= levels[number] * (1 + 1e-9)
                for other in range(len(ways))
                if link in ways[other]
            )
            for link in way
        )


@st.composite
def works(draw):
    """Jobs of several steps, connections and laws on the links of a network, and their ways."""
    jobs, ways = [], []
    for number in range(draw(st.integers(2, 5))):
        steps, of_job = [], []
        for place in range(draw(st.integers(1, 3))):
            sizes = draw(st.lists(st.tuples(st.integers(0, 50_000_000), st.integers(0, 2)), max_size=3))
            after = draw(st.sets(st.integers(0, place - 1), max_size=2)) if place else ()
            messages = tuple(Message(0, 1, size, connection) for size, connection in sizes)
            steps.append(IterationStep(draw(st.integers(1, 20)) * MS, messages, tuple(after)))
            of_job += [tuple(draw(ways_of)) for _ in messages]
        law = draw(st.sampled_from(LAWS))
        jobs.append(
            job(f"job {number}", *steps, law=law, iterations=4, start_ms=draw(st.integers(0, 20)), noise_ms=1)
        )
        ways.append(of_job)
    rates = draw(st.lists(st.integers(5, 20), min_size=LINKS, max_size=LINKS))
    return network(*rates, delay_ns=draw(st.sampled_from([0, 5000]))), jobs, ways


@given(works(), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_bytes_and_lost_time_are_conserved(work, seed):
    net, jobs, ways = work
    outcome = run_shares(net, jobs, ways, ShareSettings(seed=seed, attributes=True))
    carried = [0.0] * LINKS
    for each, of_job in zip(jobs, ways, strict=True):
        sizes = [message.size_bytes for part in each.traffic.steps for message in part.messages]
        for size, way in zip(sizes, of_job, strict=True):
            for link in way:
                carried[link] += 4 * size
    assert [link.sent_bytes for link in outcome.links] == carried
    # Half way every link has carried what its messages have sent, and no more than it can.
    half_ns = outcome.ended_ns // 2
    half = run_shares(net, jobs, ways, ShareSettings(seed=seed, duration_ns=half_ns))
    for link, use in zip(net.links, half.links, strict=True):
        assert use.sent_bytes <= link.rate_bps / 8e9 * half_ns * (1 + 1e-9)
    lost = outcome.lost
    assert (lost.lost_ns > 0).all()
    for number, course in enumerate(outcome.jobs):
        whole_ns = (course.ends_ns - course.begins_ns).sum()
        parts_ns = lost.unhindered_ns[number] + lost.lost_ns[lost.job == number].sum()
        assert parts_ns == pytest.approx(whole_ns, abs=1)


@given(works(), st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None)
def test_the_order_of_jobs_and_links_changes_nothing_but_names(work, random):
    net, jobs, ways = work
    first = run_shares(net, jobs, ways, ShareSettings(seed=1))
    again = run_shares(net, jobs, ways, ShareSettings(seed=1))
    assert [each.ends_ns.tolist() for each in first.jobs] == [each.ends_ns.tolist() for each in again.jobs]
    links, order = random.sample(range(LINKS), LINKS), random.sample(range(len(jobs)), len(jobs))
    swapped = Network(net.hosts, tuple(net.links[links.index(k)] for k in range(LINKS)))
    moved = [[tuple(links[link] for link in way) for way in ways[number]] for number in order]
    found = run_shares(swapped, [jobs[number] for number in order], moved, ShareSettings(seed=1))
    for number, course in zip(order, found.jobs, strict=True):
        assert course.name == first.jobs[number].name
        assert course.ends_ns == pytest.approx(first.jobs[number].ends_ns, abs=10)
    assert sorted((use.name, use.sent_bytes) for use in found.links) == sorted(
        (use.name, use.sent_bytes) for use in first.links
    )


def test_steps_that_have_computed_at_once_send_in_their_order_whoever_else_is_there():
    # On one connection, a byte whose step is waited for, and what keeps the connection for 0.1 ms.
    parts = (
        IterationStep(2 * MS, (Message(0, 1, 1, 0),)),
        IterationStep(MS, (), (0,)),
        IterationStep(2 * MS, (Message(0, 1, 70_000, 0),)),
    )
    of_two = job("two", *parts, iterations=4, noise_ms=1)
    [alone] = run_shares(network(5), [of_two], [[(0,)] * 2], ShareSettings(seed=1)).jobs
    others = [
        job(f"job {each}", step(1, 0), step(1 + each, 0), iterations=4, noise_ms=1) for each in range(3)
    ]
    for place in range(4):
        jobs = [*others[:place], of_two, *others[place:]]
        ways = [[(0,)] * 2 for _ in jobs]
        found = run_shares(network(5), jobs, ways, ShareSettings(seed=1)).jobs[place]
        assert found.ends_ns.tolist() == alone.ends_ns.tolist()


SEEDS = st.integers(0, 2**32 - 1)


def progressive_filling(rates, peaks, weights, ways):
    """Weighted max-min from the start, link by link: the rate of each message."""
    found, left = np.zeros(len(ways)), set(range(len(ways)))
    spare = np.array(rates, float)
    while left:
        on = [[number for number in left if link in ways[number]] for link in range(len(rates))]
        levels = [
            spare[link] / weights[of_link].sum() if of_link else np.inf for link, of_link in enumerate(on)
        ]
        capped = {number: peaks[number] / weights[number] for number in left}
        first = min(capped, key=capped.__getitem__)
        lowest = int(np.argmin(levels))
        if capped[first] <= levels[lowest]:
            settled, level = [first], capped[first]
        else:
            settled, level = on[lowest], levels[lowest]
        for number in settled:
            found[number] = level * weights[number]
            spare[list(ways[number])] -= found[number]
            left.remove(number)
    return found


def crowd(seed, laws=LAWS, classes=False):
    """Many jobs on few links, so that disturbances spread."""
    random = Random(seed)
    jobs, ways = [], []
    for number in range(random.randint(15, 30)):
        sizes = [random.choice([1, 2, 10]) * 1e6 * random.random() for _ in range(random.randint(1, 4))]
        each = job(
            f"job {number}",
            step(random.random() * 3, *sizes),
            law=random.choice(laws),
            iterations=20,
            start_ms=random.randint(0, 4),
            noise_ms=0.5,
        )
        jobs.append(replace(each, traffic_class=random.choice([0, 3, 7])) if classes else each)
        ways.append([tuple(random.sample(range(12), random.randint(1, 4))) for _ in sizes])
    return network(*(random.randint(5, 40) for _ in range(12)), delay_ns=1000), jobs, ways


@given(SEEDS, st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_rates_that_are_kept_up_to_date_are_those_of_a_full_filling(seed, at_ms):
    net, jobs, ways = crowd(seed)
    state, _ = advanced(begun(net, jobs, ways, ShareSettings(hold_ns=300_000)), at_ms * 10**9)
    sending = np.flatnonzero(state.messages["sending"])
    messages = state.messages[sending]
    routes = [way for of_job in ways for way in of_job]
    exact = progressive_filling(
        state.links["rate"], messages["peak"], messages["weight"], [routes[number] for number in sending]
    )
    assert messages["rate"] == pytest.approx(exact, rel=1e-9)
    used = np.zeros(12)
    for number in sending:
        used[list(routes[number])] += state.messages["rate"][number]
    assert state.links["used"] == pytest.approx(used, rel=1e-9, abs=1e-15)


# -- traffic classes ----------------------------------------------------------------------------


def with_queues(net, weights=(), but=()):
    """The network with a queue for each class on all links but some."""
    queues = ClassQueues(weights)
    return replace(
        net,
        links=tuple(link if k in but else replace(link, classes=queues) for k, link in enumerate(net.links)),
    )


def in_class(job, traffic_class):
    return replace(job, traffic_class=traffic_class)


def test_fair_shares_delay_both_of_two_bursts_and_order_only_one():
    first, second = job("A", step(0, sent_in(20))), job("B", step(0, sent_in(20)), start_ms=5)
    net, ways = network(10), [[(0,)]] * 2
    fair = run_shares(net, [first, second], ways).jobs
    assert [durations_ms(course) for course in fair] == [[35], [35]]
    # A class means nothing to a link without queues for classes, and no more to one where all have the same.
    for unordered, classes in ((net, (7, 0)), (with_queues(net), (3, 3))):
        jobs = [in_class(first, classes[0]), in_class(second, classes[1])]
        assert [course.ends_ns.tolist() for course in run_shares(unordered, jobs, ways).jobs] == [
            course.ends_ns.tolist() for course in fair
        ]
    for classes, expected in (((7, 0), [[20], [35]]), ((0, 7), [[40], [20]])):
        jobs = [in_class(first, classes[0]), in_class(second, classes[1])]
        found = run_shares(with_queues(net), jobs, ways, ShareSettings(attributes=True))
        assert [durations_ms(course) for course in found.jobs] == expected
        later = classes.index(0)
        assert found.lost.job.tolist() == [later]
        assert found.lost.lost_ns == pytest.approx([expected[later][0] * MS - 20 * MS])


def test_what_an_iteration_has_left_gives_a_message_its_class():
    remaining = RemainingClass((15 * MS, 25 * MS))
    # B's 20 ms go before A's 30, of which the last 10, a message of its own, are in the highest class.
    long = IterationStep(0, tuple(Message(0, 1, sent_in(10)) for _ in range(3)))
    jobs = [in_class(job("A", long), remaining), in_class(job("B", step(0, sent_in(20))), remaining)]
    late = in_class(job("C", step(0, sent_in(20)), start_ms=45), remaining)
    net, ways = with_queues(network(10)), [[(0,)] * 3, [(0,)], [(0,)]]
    found = run_shares(net, [*jobs, late], ways).jobs
    assert [durations_ms(course) for course in found] == [[50], [20], [25]]


def rates_in_gbps(net, jobs, ways):
    """Of jobs that send for a millisecond, by their own links, which are those behind the first ones."""
    outcome = run_shares(net, jobs, ways, ShareSettings(duration_ns=MS))
    return [link.sent_bytes * 8 / 1e6 for link in outcome.links][-len(jobs) :]


@pytest.mark.parametrize(
    ("classes", "own", "expected"),
    [
        ((7, 7, 0, 0), (100, 100, 100, 100), [30, 30, 10, 10]),
        ((7, 7, 0, 0), (10, 100, 100, 100), [10, 50, 10, 10]),
        ((7, 7, 0, 0), (10, 10, 100, 100), [10, 10, 30, 30]),
        ((7, 5, 0, 0), (100, 8, 100, 100), [54, 8, 9, 9]),
        ((7, 7, 7, 0), (100, 100, 100, 100), [20, 20, 20, 20]),
    ],
)
def test_weighted_queues_divide_a_link_among_classes_and_then_messages(classes, own, expected):
    jobs = [in_class(job(str(k), step(0, 1e12)), each) for k, each in enumerate(classes)]
    net = with_queues(network(80, *own), (1, 1, 1, 1, 1, 2, 1, 3))
    assert rates_in_gbps(net, jobs, [[(0, k + 1)] for k in range(4)]) == pytest.approx(expected)


def test_a_link_that_ignores_classes_keeps_its_fair_shares_before_strict_priorities():
    # A and B leave by link 0, which knows no classes; A and C meet on link 1, which does.
    classes, net = (7, 0, 0), with_queues(network(40, 30, 100, 100, 100), but=(0,))
    jobs = [in_class(job(str(k), step(0, 1e12)), each) for k, each in enumerate(classes)]
    assert rates_in_gbps(net, jobs, [[(0, 1, 2)], [(0, 3)], [(1, 4)]]) == pytest.approx([20, 20, 10])


@given(SEEDS)
@settings(max_examples=25, deadline=None)
def test_the_highest_class_has_what_it_would_have_alone(seed):
    net, jobs, ways = crowd(seed, (BASE,), classes=True)
    everyone = run_shares(with_queues(net), jobs, ways, ShareSettings(duration_ns=20 * MS))
    highest = [number for number, each in enumerate(jobs) if each.traffic_class == 7]
    if highest:
        alone = run_shares(
            net, [jobs[k] for k in highest], [ways[k] for k in highest], ShareSettings(duration_ns=20 * MS)
        )
        for number, course in zip(highest, alone.jobs, strict=True):
            assert everyone.jobs[number].ends_ns == pytest.approx(course.ends_ns, abs=10)


@given(SEEDS, st.sampled_from([(), (1, 1, 1, 2, 1, 1, 1, 4)]), st.booleans())
@settings(max_examples=40, deadline=None)
def test_with_classes_links_stay_busy_and_lost_time_is_conserved(seed, weights, mixed):
    net, jobs, ways = crowd(seed, classes=True)
    net = with_queues(net, weights, but=range(4) if mixed else ())
    work = ShareSettings(attributes=True)
    state, _ = advanced(begun(net, jobs, ways, work), 5 * 10**9)
    rates = state.links["rate"]
    assert (state.links["used"] <= rates * (1 + 1e-9)).all()
    routes = [way for of_job in ways for way in of_job]
    for number in np.flatnonzero(state.messages["sending"]):
        message, way = state.messages[number], list(routes[number])
        assert message["rate"] >= message["peak"] * (1 - 1e-9) or (
            (state.links["used"] >= rates * (1 - 1e-9))[way].any()
        )
    outcome = run_shares(net, jobs, ways, work)
    for number, course in enumerate(outcome.jobs):
        whole_ns = (course.ends_ns - course.begins_ns).sum()
        parts_ns = outcome.lost.unhindered_ns[number] + outcome.lost.lost_ns[outcome.lost.job == number].sum()
        assert parts_ns == pytest.approx(whole_ns, rel=1e-9, abs=1)


# -- the mode auto ------------------------------------------------------------------------------


def test_auto_takes_steps_for_the_jobs_that_contend_and_shares_for_the_others():
    names = ("A", "B", "C", "D", "E", "F")
    ends = [("A", "x"), ("B", "x"), ("x", "y"), ("y", "C"), ("y", "D"), ("E", "F")]
    links = tuple(NetworkLink(*pair, 10 * GBPS, 10_000, marking=Marking(1e5, 1e5)) for pair in ends)
    net = Network(names, links)
    routes = [[(0, 2, 3)], [(1, 2, 4)], [(5,)]]
    jobs = [
        replace(job(name, step(5, sent_in(4)), iterations=8), hosts=hosts)
        for name, hosts in (("first", (0, 2)), ("second", (1, 3)), ("third", (4, 5)))
    ]

    def run(mode, count=3):
        return simulate(net, jobs[:count], routes[:count], SimulationSettings(mode, step_ns=5000)).jobs

    found = run("auto")
    for course, expected in zip(found, [*run("steps", 2), run("shares")[2]], strict=True):
        assert course.ends_ns.tolist() == expected.ends_ns.tolist()
    assert found[0].slowdowns[0] > 1.3
    apart = [jobs[0], replace(jobs[1], start_ns=round(4.5 * MS)), jobs[2]]
    by_turns = simulate(net, apart, routes, SimulationSettings("auto")).jobs
    assert np.array([course.slowdowns for course in by_turns]) == pytest.approx(1, abs=0.01)
    assert by_turns[2].slowdowns.tolist() == [1] * 8


def test_lost_time_is_the_neighbours_by_their_rates_on_the_full_link():
    # A shares link 0 with B, whose weight is 3, and then, after B, link 1 with C; it has 1/4 and 1/2 of them.
    weigh = {
        name: NetworkLaw(Control.RENO, Aggressiveness(slope=0, intercept=w))
        for name, w in (("A", 1), ("B", 3))
    }
    jobs = [
        job("A", step(0, sent_in(10)), step(0, sent_in(10), after=(0,)), law=weigh["A"]),
        job("B", step(0, sent_in(30)), law=weigh["B"]),
        job("C", step(40, sent_in(10))),
    ]
    outcome = run_shares(
        network(10, 10), jobs, [[(0,), (1,)], [(0,)], [(1,)]], ShareSettings(attributes=True)
    )
    lost = outcome.lost
    entries = zip(
        lost.job.tolist(), lost.neighbour.tolist(), lost.link.tolist(), lost.lost_ns.tolist(), strict=True
    )
    expected = [(0, 1, 0, 30 * MS), (0, 2, 1, 10 * MS), (1, 0, 0, 10 * MS), (2, 0, 1, 10 * MS)]
    assert list(entries) == [pytest.approx(each) for each in expected]
    times = {each.name: (sum(durations_ms(each)) / 1e3, each.alone_ns / 1e9) for each in outcome.jobs}
    assert lost_lines(times, outcome.lost_entries(), 1) == [
        "job A lost 200 %: 150 % to B on a0->b0",
        "job B lost 33 %: 33 % to A on a0->b0",
        "job C lost 20 %: 20 % to A on a1->b1",
    ]


@pytest.mark.parametrize(
    ("work", "ways", "message"),
    [
        ([], [], "jobs: expected at least one, got none"),
        (["A", "A"], [[(0,)]] * 2, "jobs: expected different names, got one twice"),
        (["A"], [], "routes: expected those of 1 jobs, got 0"),
        (["A"], [[]], "job A: routes: expected 1, got 0"),
        (["A"], [[(0, 1, 0)]], "job A: route: expected each link once, got [0, 1, 0]"),
        (["A"], [[(7,)]], "job A: route: expected a link that begins at a, got 7"),
    ],
)
def test_bad_input(work, ways, message):
    cable = NetworkLink("a", "b", 10 * GBPS), NetworkLink("b", "a", 10 * GBPS)
    with pytest.raises(UsageError) as error:
        simulate(
            Network(("a", "b"), cable),
            [job(name, step(1, 1000)) for name in work],
            ways,
            SimulationSettings("shares"),
        )
    assert str(error.value) == message


def test_computing_for_longer_than_picoseconds_can_count_is_refused():
    cable = NetworkLink("a", "b", 10 * GBPS), NetworkLink("b", "a", 10 * GBPS)
    with pytest.raises(UsageError, match="job A: start_ns, noise_ns and compute_ns of steps: expected 0 to"):
        simulate(Network(("a", "b"), cable), [job("A", step(10**10))], [[]], SimulationSettings("shares"))


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ((), "job A: steps: expected at least one, and none in a circle, got 0"),
        (
            (step(1, after=(1,)), step(1, after=(0,))),
            "job A: steps: expected at least one, and none in a circle, got 2",
        ),
        ((step(1, after=(7,)),), "job A: step 0: after: expected steps of the job, got 7"),
        ((step(0),), "job A: expected an iteration that takes time, got one that takes none"),
        (
            (step(8e7), step(8e7, after=(0,))),
            "job A: expected an iteration of at most a day, got a longer one",
        ),
    ],
)
def test_bad_steps(steps, message):
    with pytest.raises(UsageError) as error:
        run_shares(network(10), [job("A", *steps)], [[]])
    assert str(error.value) == message
