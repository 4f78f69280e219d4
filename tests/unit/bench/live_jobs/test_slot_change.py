"""The difference between the workers that are there and those that a decision wants."""

from hypothesis import given
from hypothesis import strategies as st

from bench.live_jobs.async_executor import slot_change, worker_moves
from placement.simulator.rates.outcome import Span

OWNERS = st.dictionaries(st.integers(0, 15), st.sampled_from("abc"))


@given(OWNERS, OWNERS)
def test_leaves_and_joins_make_what_is_wanted_of_what_is_there_and_touch_nothing_else(present, wanted):
    change = slot_change(present, wanted)
    after = {gpu: job for gpu, job in present.items() if gpu not in change.leaves}
    assert all(gpu not in after for gpu, _ in change.joins)
    after.update(change.joins)
    assert after == wanted
    # A worker that stays where its job still has the GPU is not moved.
    stays = {gpu for gpu, job in present.items() if wanted.get(gpu) == job}
    assert not stays & {*change.leaves, *(gpu for gpu, _ in change.joins)}
    assert slot_change(after, wanted) == slot_change({}, {})


def test_moves_of_a_simulated_run():
    spans = [
        Span("a", (0, 1, 2), 0, 10),
        Span("a", (1, 2, 3, 4), 10, 20),  # one leaves, two join
        Span("b", (0,), 10, 15),
        Span("a", (1, 2), 30, 40),  # after a pause: all four have left, two join
    ]
    assert worker_moves(spans) == (3 + 2 + 1 + 2, 1 + 4)
