"""Throughput from a table of X(1), X(2), ..."""

from fractions import Fraction

import pytest

from mltcp.core.errors import UsageError
from placement.model.throughput import WorkerTable, Workload

TABLE = WorkerTable((("a", (2.0, 3.5)), ("b", (1.0,))))


def workload(name):
    return Workload(name, parameters=10, batch=4, compute_ns=10**9, samples=8, epochs=1)


def test_the_speed_follows_the_number_of_workers_alone():
    assert TABLE.samples_per_ns(workload("a"), ((0, 1),)) == Fraction(4 * 2, 10**9)
    for allocation in (((0, 2),), ((1, 1), (3, 1))):
        assert float(TABLE.samples_per_ns(workload("a"), allocation)) == pytest.approx(4 * 3.5e-9, rel=1e-9)
    assert not TABLE.uses_neighbours


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: TABLE.samples_per_ns(workload("c"), ((0, 1),)), "workload: expected a, b, got 'c'"),
        (lambda: TABLE.samples_per_ns(workload("b"), ((0, 2),)), "workers of b: expected 1 to 1, got 2"),
        (lambda: WorkerTable((("a", (1.0,)), ("a", (1.0,)))), "rates: expected each workload once, got a, a"),
        (lambda: WorkerTable((("a", (1.0, 0.0)),)), "rates of a: expected numbers above 0, got"),
        (lambda: WorkerTable((("a", ()),)), "rates of a: expected numbers above 0, got"),
    ],
)
def test_what_it_does_not_have_is_named(ask, message):
    with pytest.raises(UsageError, match=message):
        ask()
