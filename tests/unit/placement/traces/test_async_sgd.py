"""Drawn traces of asynchronous training jobs."""

import numpy as np
import pytest

from mltcp.core.errors import UsageError
from placement.traces.async_sgd import ALEXNET, SETS, AsyncTrace, draw_trace


def test_a_trace_is_drawn_in_the_order_of_the_specification():
    draw = np.random.Generator(np.random.PCG64(5))
    arrivals = np.cumsum(draw.exponential(size=50))
    models = draw.integers(0, 4, size=50)
    normal = draw.standard_normal(50)
    trace = draw_trace(SETS["four"], 50, 5)
    assert (trace.arrival_units == arrivals).all()
    assert (trace.model == models).all()
    assert trace.epochs == pytest.approx(np.array([200, 200, 90, 74])[models] + 2**0.5 * normal)
    assert trace.batches() == pytest.approx(
        trace.epochs * np.array([50_000, 1.2e6, 1.2e6, 1.2e6])[models] / 1024
    )


def test_the_same_jobs_in_exact_numbers():
    trace = AsyncTrace("t", (ALEXNET,), np.array([0.5, 2.0]), np.zeros(2, np.int64), np.array([1.5, 3.0]))
    jobs = trace.whole_jobs(rate=0.25).jobs
    assert [job.arrival_ns for job in jobs] == [2 * 10**9, 8 * 10**9]
    sizes = [job.workload.total_samples / job.workload.batch for job in jobs]
    assert sizes == pytest.approx(trace.batches().tolist(), rel=1e-9)


def test_bad_arguments_are_named():
    with pytest.raises(UsageError, match=r"^jobs: expected 1 to 1000000, got 0$"):
        draw_trace(SETS["one"], 0, 1)
    with pytest.raises(UsageError, match=r"^seed: expected 0 or more, got -1$"):
        draw_trace(SETS["one"], 1, -1)
