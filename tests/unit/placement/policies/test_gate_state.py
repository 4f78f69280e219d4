"""The transfer records of a gate: decisions of the compiled policies, and progress by Eq. 5."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mltcp.core.errors import UsageError
from placement.model.job import Contention
from placement.policies.gate_state import GateState, gate_policy
from tests.unit.placement.model.adadual import starts_now

SIMPLE = Contention(Fraction(1000), Fraction(2), Fraction(1))
"""a = 1000 ns, b = 2 ns/byte, eta = 1 ns/byte: two at once take 5 ns/byte each, three 8."""

SIZES = st.integers(1, 10**9)


def state(policy="ada-srsf", contention=SIMPLE, speeds=None):
    return GateState(gate_policy(policy), contention, speeds)


def started(found, *sizes, links=("l",), now_ns=0):
    for job, nbytes in enumerate(sizes):
        found.put(job, links)
        found.start(job, nbytes, now_ns)
    return len(sizes)


@settings(deadline=None)
@given(st.lists(SIZES, max_size=4), SIZES)
def test_ada_srsf_k_decides_as_the_theory_of_any_number(running, new):
    found = state("ada-srsf-k")
    job = started(found, *running)
    found.put(job, ("l",))
    assert found.may_start(job, new, 0) == starts_now(running, new, SIMPLE)


@settings(deadline=None)
@given(SIZES, SIZES)
def test_ada_srsf_decides_beside_one_as_theorem_2(old, new):
    found = state()
    started(found, old)
    found.put(1, ("l",))
    assert found.may_start(1, new, 0) == (Fraction(new, old) < SIMPLE.acceptance)


def test_ada_srsf_never_has_three_at_once():
    found = state()
    job = started(found, 10**9, 10**9)
    found.put(job, ("l",))
    assert not found.may_start(job, 1, 0)


@settings(deadline=None)
@given(limit=st.integers(1, 4), running=st.integers(0, 5))
def test_srsf_counts_the_most_crowded_link(limit, running):
    found = state(f"srsf-{limit}")
    job = started(found, *[100] * running, links=("a", "b"))
    found.put(job, ("b", "c"))
    found.put(job + 1, ("c",))
    assert found.may_start(job, 1, 0) == (running < limit)
    assert found.may_start(job + 1, 1, 0)


def test_a_transfer_alone_takes_what_the_model_says():
    found = state()
    started(found, 10_000)
    assert found.left_bytes(0, 5000) == 10_000  # its ranks are not all there
    found.move(0, 5000)
    assert found.left_bytes(0, 6000) == 10_000  # the latency
    assert found.left_bytes(0, 8000) == 9000
    assert found.left_bytes(0, 100_000) == 0


def test_two_share_a_link_and_the_second_speeds_up_when_the_first_has_ended():
    found = state(contention=Contention(Fraction(0), Fraction(2), Fraction(1)))
    started(found, 1000, 10_000)
    found.move(0, 0)
    found.move(1, 0)
    assert found.left_bytes(0, 5000) == pytest.approx(0)
    assert found.left_bytes(1, 5000) == pytest.approx(9000)
    found.stop(0, 5000)
    assert found.left_bytes(1, 7000) == pytest.approx(8000)


def test_a_fast_link_carries_more_and_the_slowest_of_a_jobs_links_counts():
    found = state(contention=Contention(Fraction(0), Fraction(2), Fraction(1)), speeds={"fast": Fraction(4)})
    for job, links in enumerate((("fast",), ("slow",), ("fast", "slow"))):
        found.put(job, links)
        found.start(job, 10_000, 0)
        found.move(job, 0)
        left = found.left_bytes(job, 1000)
        assert left == pytest.approx(8000 if job == 0 else 9500)
        found.stop(job, 1000)


@pytest.mark.slow
@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.sampled_from(["start", "stop", "move", "put", "remove"])), max_size=60
    )
)
def test_links_count_what_runs_on_them_whatever_happens(steps):
    found = state("srsf-2")
    places, running = {}, set()
    for now_ns, (job, step) in enumerate(steps):
        if step == "put":
            places[job] = tuple(f"l{(job + each) % 3}" for each in range(1 + now_ns % 2))
            found.put(job, places[job])
        elif step == "remove" and job in places:
            found.remove(job)
            running.discard(job)
            del places[job]
        elif step == "start" and job in places and job not in running:
            found.start(job, 1000, now_ns)
            running.add(job)
        elif step == "stop" and job in running:
            found.stop(job, now_ns)
            running.discard(job)
        for other, links in places.items():
            busiest = max(sum(link in places[each] for each in running) for link in links)
            if other not in running:
                assert found.may_start(other, 10, now_ns) == (busiest < 2)


@given(st.lists(st.sets(st.sampled_from("abcd"), max_size=3), min_size=1, max_size=7), st.data())
def test_srtf_yield_grants_links_in_the_order_of_rank_to_those_that_share_none_with_who_has_been_granted(
    places, data
):
    found = state("srtf-yield")
    for job, links in enumerate(places):
        found.put(job, sorted(links))
    asking = data.draw(st.lists(st.sampled_from(range(len(places))), unique=True))
    for sending in data.draw(st.sets(st.sampled_from(asking or [0]))):
        found.start(sending, 1000, 0)
    expected, taken = set(), set()
    for job in asking:
        if not places[job] & taken:
            expected.add(job)
            taken |= places[job]
    assert found.granted(asking) == expected


def test_srtf_yield_starts_on_free_links_only():
    found = state("srtf-yield")
    started(found, 1000, links=("a", "b"))
    found.put(1, ("b",))
    found.put(2, ("c",))
    assert not found.may_start(1, 1, 0)
    assert found.may_start(2, 1, 0)


@pytest.mark.parametrize(
    "name", ["srtf-yield:whole", "srtf-1", "ada-srsf:layered", "srsf-0", "srsf-", "fair"]
)
def test_policies_that_a_gate_cannot_enforce_are_refused(name):
    with pytest.raises(UsageError, match=r"srsf"):
        gate_policy(name)
