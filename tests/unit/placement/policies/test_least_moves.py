"""Places for shares that move as few workers as possible."""

from hypothesis import given
from hypothesis import strategies as st

from placement.policies.schedulers.elastic import LeastMoves, least_moves
from placement.policies.schedulers.registry import named_scheduler

GPUS = 16


@st.composite
def holdings_and_shares(draw):
    """Jobs on some of the GPUs, and new shares for them and for others."""
    owners = draw(st.lists(st.sampled_from(["", "a", "b", "c"]), min_size=GPUS, max_size=GPUS))
    held = {job: tuple(g for g in range(GPUS) if owners[g] == job) for job in "abc" if job in owners}
    shares, left = {}, GPUS
    for job in draw(st.permutations("abcd")):
        shares[job] = draw(st.integers(0, left))
        left -= shares[job]
    return held, shares


@given(holdings_and_shares())
def test_a_job_keeps_as_many_of_its_gpus_as_its_share_allows(case):
    held, shares = case
    found = least_moves(held, shares, GPUS)
    assert {job: len(gpus) for job, gpus in found.items()} == {job: n for job, n in shares.items() if n}
    places = [gpu for gpus in found.values() for gpu in gpus]
    assert len(set(places)) == len(places)
    assert set(places) <= set(range(GPUS))
    for job, gpus in found.items():
        assert list(gpus) == sorted(gpus)
        assert len({*held.get(job, ())} & {*gpus}) == min(len(held.get(job, ())), len(gpus))


def test_it_has_the_name_of_its_scheduler_and_no_timers():
    scheduler = LeastMoves(named_scheduler("hell+fill"))
    assert (scheduler.name, scheduler.lease_ns, scheduler.next_ns(0, [])) == ("hell+fill", None, None)
