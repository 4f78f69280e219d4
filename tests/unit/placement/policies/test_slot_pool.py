import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement.policies import catalogue
from placement.policies.placing import seed_placements as seed
from placement.policies.slot_pool import Holder, SlotPool, SlotRequest

RULES = {
    "random": catalogue.RANDOM,
    "first-fit": catalogue.FIRST_FIT,
    "list": catalogue.LIST_SCHEDULING,
    "lwf": catalogue.LWF,
    "least-delay": catalogue.LEAST_DELAY,
}


def pool(*counts, memory_mb=0):
    made = SlotPool()
    made.add(counts, [memory_mb] * len(counts))
    return made


def test_first_fit_takes_the_first_and_lwf_keeps_a_job_on_the_least_loaded_server():
    made = pool(2, 4, 4)
    made.occupy((2,), SlotRequest(1), 1000)
    assert made.choose(catalogue.FIRST_FIT, 1, SlotRequest(3)) == (0, 1, 3)
    assert made.choose(catalogue.LWF, 1, SlotRequest(4)) == (0, 1, 6, 7)
    assert made.choose(catalogue.LIST_SCHEDULING, 1, SlotRequest(2)) == (0, 1)


def test_from_another_server_on_the_same_policy_gives_another_of_its_equals():
    made = pool(4, 4, 4)
    assert made.choose(catalogue.LWF, 1, SlotRequest(4), first_server=1) == (4, 5, 6, 7)
    assert made.choose(catalogue.LWF, 1, SlotRequest(6), first_server=2) == (0, 1, 8, 9, 10, 11)
    made.occupy((4,), SlotRequest(1), 1000)
    assert made.choose(catalogue.LWF, 1, SlotRequest(4), first_server=1) == (8, 9, 10, 11)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("first_server", [0, 1, 2, 3])
def test_a_turned_choice_is_of_free_slots_that_differ(rule, first_server):
    made = pool(3, 0, 2, 4)
    made.occupy((1, 6), SlotRequest(2), 5)
    neighbours = made.neighbours([Holder((1, 6), 5)])
    chosen = made.choose(rule, 1, SlotRequest(6), first_server, 5, neighbours)
    assert len(set(chosen)) == 6
    assert not {1, 6} & set(chosen)
    assert made.choose(rule, 1, SlotRequest(8), first_server, 5, neighbours) is None


def least_delay_beside(held, made, count):
    """The slots that a job of 100 ns gets in a pool beside jobs, by their slots the time that each has left."""
    for slots, left_ns in held.items():
        made.occupy(slots, SlotRequest(len(slots)), left_ns)
    neighbours = made.neighbours([Holder(slots, left_ns) for slots, left_ns in held.items()])
    return made.choose(catalogue.LEAST_DELAY, 1, SlotRequest(count), left_ns=100, neighbours=neighbours)


@pytest.mark.parametrize(
    ("held", "count", "expected"),
    [
        # Two jobs span servers: the links of the one that ends sooner are preferred.
        ({(0, 4): 50, (8, 12): 20}, 6, (9, 10, 11, 13, 14, 15)),
        ({(0, 4): 20, (8, 12): 50}, 6, (1, 2, 3, 5, 6, 7)),
        # Once server 0 is chosen, its job is no reason any more against server 1 (5, and not 35, for server 4's 32).
        (
            {(0, 4): 30, (5, 12, 13, 14, 15): 5, (8, 9, 10, 11): 1000, (16, 20, 21, 22, 23): 32},
            5,
            (1, 2, 3, 6, 7),
        ),
        # A job on one server has no links; where nothing tells servers apart, that with the least room.
        ({(0, 1, 4): 50, (12,): 20}, 2, (2, 3)),
        ({(0, 1, 4): 50, (12,): 20}, 3, (5, 6, 7)),
    ],
)
def test_least_delay_shares_links_with_few_and_with_those_that_end_soon(held, count, expected):
    made = pool(*[4] * (6 if len(held) > 2 else 4))
    assert least_delay_beside(held, made, count) == expected


@pytest.mark.parametrize(
    ("held", "count", "expected"),
    [
        # Servers of two slots, two in a rack. One rack of two servers is better than a full server and one in another.
        ({(0,): 9, (2,): 9, (6, 7): 9}, 2, (4, 5)),
        ({(4,): 9, (6, 7): 9}, 3, (0, 1, 2)),
        # Over two racks: those whose uplinks are used by nobody, or else by who ends soon.
        ({(0, 4): 50, (8, 12): 20}, 5, (9, 10, 11, 14, 15)),
        ({(0, 4): 20, (8, 12): 50}, 5, (1, 2, 3, 6, 7)),
        # What is within a rack uses no uplink, however much it has left.
        ({(0, 2): 900, (4, 8): 20}, 5, (1, 12, 13, 14, 15)),
    ],
)
def test_least_delay_keeps_to_racks_and_counts_who_uses_their_uplinks(held, count, expected):
    made = SlotPool()
    made.add([2] * 8, [0] * 8, [f"r{server // 2}" for server in range(8)])
    assert least_delay_beside(held, made, count) == expected


def test_gpus_are_exclusive_unless_both_jobs_share():
    made = pool(2, memory_mb=100)
    sharing = SlotRequest(2, 40, shares=True)
    made.occupy((0, 1), sharing, 10)
    assert made.choose(catalogue.FIRST_FIT, 1, SlotRequest(1, 10)) is None
    assert made.choose(catalogue.FIRST_FIT, 1, sharing) == (0, 1)
    made.occupy((0, 1), sharing, 10)
    assert made.choose(catalogue.FIRST_FIT, 1, sharing) is None, "20 MB are left of each"
    made.release((0, 1), sharing, 10)
    made.release((0, 1), sharing, 10)
    made.occupy((0,), SlotRequest(1, 10), 10)
    assert made.choose(catalogue.FIRST_FIT, 1, SlotRequest(2, 10, shares=True)) is None


def test_only_allowed_servers_are_used():
    made = pool(2, 2, 2)
    wanted = SlotRequest(3, servers=frozenset({0, 2}))
    assert made.choose(catalogue.FIRST_FIT, 1, wanted) == (0, 1, 4)
    assert (made.capable(wanted), made.available(wanted)) == (4, 4)
    made.occupy((4,), wanted, 1)
    assert (made.capable(wanted), made.available(wanted)) == (4, 3)


def test_servers_that_are_added_later_keep_the_numbers_of_the_others():
    made = pool(2)
    made.occupy((1,), SlotRequest(1), 7)
    made.add([3], [50])
    assert made.by_server((1, 2, 4)) == {0: [1], 1: [0, 2]}
    assert made.number(1, 2) == 4
    assert (made.free, made.free_of(0), made.free_of(1)) == (4, 1, 3)
    assert made.choose(catalogue.FIRST_FIT, 1, SlotRequest(1, 51)) == (0,)


jobs = st.lists(
    st.tuples(st.integers(1, 5), st.integers(1, 60), st.booleans(), st.sampled_from(list(RULES.values()))),
    max_size=12,
)


@given(jobs, st.randoms())
def test_what_is_given_back_is_as_it_was_and_memory_is_never_overdrawn(jobs, random):
    seed(0)
    made = pool(3, 2, 4, memory_mb=100)
    before = made.gpus.copy()
    held = []
    for count, memory, shares, rule in jobs:
        wanted = SlotRequest(count, memory, shares)
        available = made.available(wanted)
        slots = made.choose(rule, 1, wanted)
        assert (slots is not None) == (available >= count)
        if slots is None:
            continue
        made.occupy(slots, wanted, 10 * count)
        held.append((slots, wanted, 10 * count))
        users = np.zeros(9, int)
        for taken, by, _ in held:
            users[list(taken)] += by.memory_mb if by.shares else 1000
        assert (users <= 1000).all()
        assert (users[users < 1000] <= 100).all()
    random.shuffle(held)
    for slots, wanted, work in held:
        made.release(slots, wanted, work)
    assert (made.gpus == before).all()


def test_with_as_many_on_each_server_those_with_fewer_are_left_out():
    made = pool(4, 3, 4, 1)
    made.occupy((0, 8), SlotRequest(2), 1000)
    twos, threes = SlotRequest(4, per_server=2), SlotRequest(6, per_server=3)
    assert made.choose(catalogue.FIRST_FIT, 1, twos) == (1, 2, 4, 5)
    assert (made.available(threes), made.capable(threes)) == (9, 9)
    assert made.choose(catalogue.FIRST_FIT, 1, threes) == (1, 2, 3, 4, 5, 6)
    made.occupy((4,), SlotRequest(1), 1000)
    assert made.choose(catalogue.FIRST_FIT, 1, threes) == (1, 2, 3, 7, 9, 10)
    assert made.suits((1, 2, 7, 9), twos)
    assert not made.suits((1, 2, 3, 7), twos)
    assert made.choose(catalogue.LWF, 1, SlotRequest(8, per_server=4)) is None


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=6),
    st.sets(st.integers(0, 23)),
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from(sorted(RULES)),
    st.integers(0, 5),
)
def test_as_many_on_each_server_is_what_every_policy_gives(counts, taken, per_server, servers, rule, first):
    made = pool(*counts)
    held = tuple(slot for slot in sorted(taken) if slot < sum(counts))
    if held:
        made.occupy(held, SlotRequest(len(held)), 1)
    request = SlotRequest(per_server * servers, per_server=per_server)
    chosen = made.choose(RULES[rule], 1, request, first % len(counts))
    assert (chosen is None) == (made.available(request) < request.count)
    if chosen is not None:
        assert made.suits(chosen, request)
        assert not set(held) & set(chosen)


def test_slots_that_others_use_are_free_ones_and_stay_as_many():
    made = pool(4, 4)
    made.occupy((0,), SlotRequest(1), 1000)
    made.use_outside(0, 2)
    assert (made.free, made.free_of(0), made.available(SlotRequest(1)), made.all_open) == (5, 1, 5, False)
    assert made.choose(catalogue.FIRST_FIT, 1, SlotRequest(5)) == (1, 4, 5, 6, 7)
    assert made.used_outside(SlotRequest(1)) == 2
    made.occupy((2,), SlotRequest(1), 1000)  # one that others were thought to have
    assert made.free_of(0) == 0
    made.release((0,), SlotRequest(1), 1000)
    assert made.free_of(0) == 1
    made.use_outside(0, 9)
    assert (made.free_of(0), made.capable(SlotRequest(8))) == (0, 8)
    made.use_outside(0, 0)
    assert (made.free_of(0), made.all_open) == (3, True)
