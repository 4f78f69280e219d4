"""The parts of an asynchronous job without processes: shares, models, figures, and what is refused."""

import itertools
import math
from dataclasses import astuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.workloads.parameter_server.job import (
    MODELS,
    AsyncJob,
    Checkpoints,
    ReplayWork,
    TrainWork,
    slices,
)
from bench.workloads.parameter_server.log import (
    Update,
    cycle_times,
    losses,
    mean_staleness,
    steady,
    throughput,
)
from bench.workloads.parameter_server.work import FlatModel
from mltcp.core.errors import MltcpError, UsageError

WORK = ReplayWork(4000, 0.1, 0.05)


@given(st.integers(10, 10_000), st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_slices_lie_end_to_end_and_follow_the_shares(elements, weights):
    shares = [weight / sum(weights) for weight in weights]
    if elements * min(shares) < 2:
        return
    found = slices(elements, shares)
    assert found[0].start == 0
    assert found[-1].stop == elements
    assert all(a.stop == b.start for a, b in itertools.pairwise(found))
    for part, share in zip(found, shares, strict=True):
        assert part.stop - part.start == pytest.approx(elements * share, abs=1)


@pytest.mark.parametrize("name", MODELS)
def test_the_parameters_of_a_model_are_views_of_one_vector(name):
    model = FlatModel(TrainWork(model=name, parameters=1000, batch=4))
    before = model.compute(0, 0)
    assert model.gradients.abs().sum() > 0
    model.weights -= 0.05 * model.gradients
    assert model.compute(0, 0) < before


def log(workers=2, cycles=20, worker_s=0.1, uplink_s=0.2, wait_s=0.0, server_s=0.05, downlink_s=0.3):
    """The log of workers that take turns exactly."""
    updates, period = [], worker_s + uplink_s + wait_s + server_s + downlink_s
    for cycle in range(cycles):
        for worker in range(workers):
            began = cycle * period + worker * period / workers
            sending, received = began + worker_s, began + worker_s + uplink_s
            applying = received + wait_s
            version = len(updates) + 1
            updates.append(
                Update(
                    worker=worker,
                    step=cycle,
                    version=version,
                    staleness=workers - 1,
                    began_s=began,
                    sending_s=sending,
                    received_s=received,
                    applying_s=applying,
                    applied_s=applying + server_s,
                    loss=1 / version,
                    worker_overran=False,
                    server_overran=False,
                )
            )
    return updates


def test_the_figures_of_a_log():
    updates = log(wait_s=0.01)
    assert throughput(updates) == pytest.approx(2 / 0.66)
    assert mean_staleness(updates) == 1
    assert astuple(cycle_times(updates)) == pytest.approx((0.1, 0.2, 0.01, 0.05, 0.3))
    assert cycle_times(updates).cycle_s == pytest.approx(0.66)
    first, last = losses(updates)
    assert first == pytest.approx((1 + 1 / 2 + 1 / 3 + 1 / 4) / 4)
    assert last == pytest.approx((1 / 37 + 1 / 38 + 1 / 39 + 1 / 40) / 4)


def test_without_a_common_clock_both_directions_take_half():
    assert astuple(cycle_times(log(), one_clock=False)) == pytest.approx((0.1, 0.25, 0.0, 0.05, 0.25))


def test_the_first_updates_are_dropped_and_short_logs_refused():
    assert len(steady(log(1, 100))) == 85
    with pytest.raises(MltcpError, match="expected 4 or more, got 3"):
        throughput(log(1, 3))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AsyncJob("j", WORK, 0, 10), "workers: expected 1 to 254, got 0"),
        (lambda: AsyncJob("j", WORK, 1, 0), "updates: expected 1 or more, got 0"),
        (lambda: AsyncJob("j", WORK, 1, 1, (0.5, 0.4)), "shares: expected a sum of 1, got 0.5,0.4"),
        (lambda: AsyncJob("j", WORK, 1, 1, ()), "shares: expected fractions above 0, got none"),
        (lambda: AsyncJob("j", WORK, 1, 1, backend="nccl"), "backend: expected mltcp or gloo, got 'nccl'"),
        (lambda: ReplayWork(4000, -1, 0), "worker_s: expected a finite time of 0 s or more, got -1"),
        (lambda: ReplayWork(4000, 0, math.inf), "server_s: expected a finite time of 0 s or more, got inf"),
        (lambda: ReplayWork(0, 0, 0), "size_bytes: expected 4 or more, got 0"),
        (lambda: ReplayWork(4, 0, 0, 1.0), "jitter: expected 0 <= jitter < 1, got 1.0"),
        (lambda: TrainWork(server_s=-0.1), "server_s: expected a finite time of 0 s or more, got -0.1"),
        (lambda: TrainWork(momentum=1), "momentum: expected 0 <= momentum < 1, got 1"),
        (lambda: TrainWork(model="vgg16", batch=1), "batch: expected 2 or more, got 1"),
        (lambda: TrainWork(scale=0), "scale: expected more than 0 up to 1, got 0"),
        (
            lambda: TrainWork(model="none"),
            "model: expected one of perceptron, dense, conv, vgg11, vgg16, vgg19, resnet50, wideresnet101, got 'none'",
        ),
        (lambda: Checkpoints(None, 0), "checkpoint_every_s: expected a finite time above 0 s, got 0"),
        (
            lambda: slices(3, (0.01, 0.99)),
            "shares: expected one or more of 3 parameters for each, got 0.01,0.99",
        ),
    ],
)
def test_bad_values_are_named(make, message):
    with pytest.raises(UsageError) as raised:
        make()
    assert str(raised.value) == message
