"""SRTF-Yield at a gate: whose links they are, and when a job gives them back."""

import pytest

from tests.unit.placement.gate.gates import Gate


def long_and_short(policy):
    """Two jobs on a link; the long one sends a bucket."""
    gate = Gate(policy, long=2, short=2)
    gate.describe("long", iterations=10, compute_ns=100)
    gate.describe("short", iterations=5, compute_ns=100)
    gate.whole("long", 1)
    return gate


@pytest.mark.parametrize(("policy", "goes"), [("srsf-1", {("long", 0)}), ("srtf-yield", set())])
def test_under_srtf_yield_a_job_stops_at_the_end_of_a_bucket_for_one_with_less_time_left(policy, goes):
    gate = long_and_short(policy)
    assert gate.ask("long", 0, 2) == {("long", 0)}, "nobody else asks"
    assert gate.ask("long", 1, 2) == {("long", 1)}
    assert gate.ask("short", 0) == set()
    assert gate.ask("long", 0, 3) == goes


def test_who_yields_goes_on_when_the_other_has_sent():
    gate = long_and_short("srtf-yield")
    gate.ask("short", 0)
    gate.ask("short", 1)
    assert gate.ask("long", 0, 2) == gate.ask("long", 1, 2) == set()
    assert gate.done("long", 0, 1) == set()
    assert gate.done("long", 1, 1) == {("short", 0), ("short", 1)}
    assert gate.done("short", 0) == set()
    assert gate.done("short", 1) == {("long", 0), ("long", 1)}


def test_who_has_less_time_left_does_not_yield_and_is_next():
    gate = Gate("srtf-yield", short=2, long=2)
    gate.describe("long", iterations=10, compute_ns=100)
    gate.describe("short", iterations=5, compute_ns=100)
    gate.whole("short", 1)
    gate.ask("long", 0)
    assert gate.ask("short", 0, 2) == {("short", 0)}


def test_an_operation_that_ranks_are_missing_from_is_never_held():
    gate = long_and_short("srtf-yield")
    assert gate.ask("long", 0, 2) == {("long", 0)}
    gate.whole("short")
    assert gate.ask("long", 1, 2) == {("long", 1)}, "rank 0 is in it"


def test_the_time_left_counts_what_an_iteration_sends():
    """A byte takes a nanosecond: 10 x (100 + 2000) against 10 x (1500 + 500)."""
    gate = Gate("srtf-yield", first=2, computes=2, sends=2)
    gate.describe("sends", iterations=10, compute_ns=100)
    gate.describe("computes", iterations=10, compute_ns=1500)
    gate.whole("first")
    gate.whole("sends", nbytes=2000)
    gate.whole("computes", nbytes=500)
    gate.done("first", 0)
    assert gate.done("first", 1) == {("computes", 0), ("computes", 1)}


def test_links_of_a_job_that_has_to_wait_are_not_kept_free_for_it():
    """On links x, x and y, y: who has to wait for x is not granted y."""
    gate = Gate("srtf-yield", one=2, two=2, three=2)
    for job, links, left in (("one", ("x",), 1), ("two", ("x", "y"), 2), ("three", ("y",), 3)):
        gate.describe(job, links=links, iterations=left, compute_ns=100)
    gate.whole("one", nbytes=0)
    assert gate.ask("two", 0, nbytes=0) == set()
    assert gate.ask("three", 0, nbytes=0) == {("three", 0)}
