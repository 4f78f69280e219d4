"""Widths, fillings and shares of the schedulers of mean response time, on speeds alone."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from mltcp.core.errors import UsageError
from placement.model.parameter_server import ParameterServer, ServerNode
from placement.model.queueing import Method
from placement.policies.schedulers.response.filling import fill_marginal, fill_shortest
from placement.policies.schedulers.response.he_srpt import fitted_power, power_shares
from placement.policies.schedulers.response.hull import hull_of
from placement.policies.schedulers.response.jsq_chunk import JsqChunk
from placement.policies.schedulers.response.node_price import expectations
from placement.policies.schedulers.response.rates import RatedJob
from placement.policies.schedulers.response.width_rules import (
    Hell,
    Knee,
    MoldableHell,
    MoldableKnee,
    OneNode,
)
from placement.policies.schedulers.response.widths import (
    fewest_width,
    gain,
    hell_width,
    knee_width,
    peak_width,
)
from placement.policies.schedulers.scheduler import JobView
from placement.simulator.rates.response.tables import speeds_of_model
from placement.traces.async_sgd import ALEXNET, GOOGLENET, NIN, SETS, VGG19

NODES = 100
MODELS = (NIN, GOOGLENET, ALEXNET, VGG19)


def speeds(model, server_node="free", method="hybrid"):
    throughput = ParameterServer(method=Method(method), server_node=ServerNode(server_node))
    return speeds_of_model(throughput, model, NODES)


def alone_days(model, of=speeds):
    return model.epochs * model.samples / model.batch / of(model)[1] / 86_400


@pytest.mark.parametrize(
    ("model", "days", "speedup", "hell", "knee"),
    [
        (NIN, 0.67, 24.4, 24, 28),
        (GOOGLENET, 23.75, 20.0, 20, 24),
        (ALEXNET, 11.82, 4.81, 5, 9),
        (VGG19, 107.24, 23.0, 23, 27),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_the_models_of_table_iii(model, days, speedup, hell, knee):
    of_model = speeds(model)
    assert alone_days(model) == pytest.approx(days, abs=0.0055)
    assert of_model[NODES] / of_model[1] == pytest.approx(speedup, abs=0.051)
    assert (hell_width(of_model, NODES), knee_width(of_model, NODES, 0.01)) == (hell, knee)


LIMITS = {
    "four": (0.172, 0.857, 0.742, 0.809, 0.709, 0.773, 0.646),
    "two": (0.167, 0.856, 0.738, 0.807, 0.704, 0.770, 0.640),
    "one": (0.048, 0.786, 0.492, 0.655, 0.443, 0.688, 0.365),
}
"""Of SRPT, HELL, KNEE; HELL and KNEE with a charged server node; HELL and KNEE by exact MVA."""


@pytest.mark.parametrize("models", LIMITS)
def test_the_limits_of_stability(models):
    def limit(width, *how):
        works = [(alone_days(model), speeds(model, *how)) for model in SETS[models]]
        used = sum(days * width(x) * x[1] / x[width(x)] for days, x in works)
        return sum(days for days, _ in works) / used

    def hell(x):
        return hell_width(x, NODES)

    def knee(x):
        return knee_width(x, NODES, 0.01)

    assert (
        limit(lambda x: NODES),
        limit(hell),
        limit(knee),
        limit(hell, "charged"),
        limit(knee, "charged"),
        limit(hell, "free", "exact"),
        limit(knee, "free", "exact"),
    ) == pytest.approx(LIMITS[models], abs=6e-4)


steps = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=30)


@given(steps, st.integers(1, 30), st.floats(0, 0.5), st.floats(0, 0.5))
def test_widths_are_within_the_budget_and_knee_shrinks_with_alpha(increments, budget, alpha, other):
    concave = [0.0]
    for step in sorted([1.0, *increments], reverse=True):
        concave.append(concave[-1] + step)
    budget = min(budget, len(concave) - 1)
    low, high = sorted((alpha, other))
    wide, narrow = knee_width(concave, budget, low), knee_width(concave, budget, high)
    assert 1 <= hell_width(concave, budget) <= budget
    assert 1 <= wide <= budget
    assert 1 <= narrow <= budget
    if concave[2] > concave[1]:  # else the knee is sought beyond a second node that gains nothing
        assert narrow <= wide


def test_knee_by_hand():
    # Gains: 1, 1/2, 1/5, 0.04.
    x = [0.0, 1.0, 2.0, 2.5, 2.6]
    assert [knee_width(x, budget, 0.1) for budget in (1, 2, 3, 4)] == [1, 2, 3, 3]
    assert (knee_width(x, 4, 0.3), knee_width(x, 4, 0.01), knee_width(x, 4, 0.6)) == (2, 4, 1)
    assert gain(x, 3) == pytest.approx(0.2)


def test_knee_beyond_a_node_for_the_server():
    x = [0.0, 1.0, 1.0, 2.0, 2.5, 2.6]
    assert [knee_width(x, budget, 0.1) for budget in (1, 2, 3, 4, 5)] == [1, 1, 3, 4, 4]


def test_hell_by_hand():
    # X^2 / w: 1, 1.62, 1.6133, 1.21
    x = [0.0, 1.0, 1.8, 2.2, 2.2]
    assert [hell_width(x, budget) for budget in (1, 2, 3, 4)] == [1, 2, 2, 2]
    offer = Hell().offer(x, 4)
    assert (offer.width, offer.cost) == (2, pytest.approx(2 * 1.0 / 1.8**2))
    assert peak_width(x) == 3


def test_moldable_jobs_get_all_or_nothing():
    x = speeds(ALEXNET)
    assert [MoldableHell().offer(x, budget).width for budget in (4, 5, 100)] == [0, 5, 5]
    rule = MoldableKnee(load=0.5, low=0.01, high=0.05)
    assert rule.alpha == pytest.approx(0.03)
    width = knee_width(x, NODES, 0.03)
    assert [rule.offer(x, budget).width for budget in (width - 1, width)] == [0, width]
    assert Knee(0.03).offer(x, width - 1).width == width - 1


def test_a_job_that_needs_two_gpus():
    x = [0.0, 0.0, 2.0, 3.0]
    assert fewest_width(x) == 2
    assert (Hell().offer(x, 1).width, Knee().offer(x, 1).width, OneNode().offer(x, 1).width) == (0, 0, 0)
    assert (Hell().offer(x, 3).width, Knee().offer(x, 3).width, OneNode().offer(x, 3).width) == (3, 3, 2)


@given(
    st.lists(st.tuples(st.floats(0.1, 100), st.sampled_from(MODELS)), min_size=1, max_size=6),
    st.integers(0, 60),
    st.lists(st.integers(0, 6), min_size=6, max_size=6),
)
@hypothesis_settings(max_examples=40)
def test_filling_takes_nothing_away_and_gives_at_most_what_is_left(works, left, begin):
    jobs = [rated(str(number), work, speeds(model)) for number, (work, model) in enumerate(works)]
    for fill in (fill_shortest, fill_marginal):
        shares = {each.job.name: begin[number] for number, each in enumerate(jobs)}
        before = dict(shares)
        fill(jobs, shares, left)
        assert all(shares[name] >= count for name, count in before.items())
        given_out = sum(shares.values()) - sum(before.values())
        assert 0 <= given_out <= left
        if fill is fill_shortest:  # speeds grow, so nothing is left over, and one job gets all
            assert given_out == left
        else:
            assert all(shares[name] for name in shares if shares[name] != before[name])


def rated(name, work, of_model):
    view = JobView(name, 0, 1, 1, NODES, work, work, times=None)
    return RatedJob(view, of_model, work)


@given(st.integers(1, 40), st.floats(0.05, 0.95), st.integers(1, 200))
def test_hesrpt_shares_sum_to_the_nodes_and_grow_with_rank(jobs, power, nodes):
    shares = power_shares(jobs, power, nodes)
    assert sum(shares) == nodes
    assert all(b >= a - 1 for a, b in pairwise(shares))


def test_hesrpt_by_hand():
    # p = 1/2, c = 2: the larger of two jobs gets 1/4.
    assert power_shares(2, 0.5, 100) == [25, 75]
    assert fitted_power([0.0, *(width**0.5 for width in range(1, 50))]) == pytest.approx(0.5)


def test_the_hull_skips_what_is_not_worth_having():
    hull = hull_of((0.0, 1.0, 1.0, 2.0, 2.5, 2.5))
    assert hull.widths == (0, 1, 3, 4)
    assert hull.slopes == pytest.approx((1.0, 0.5, 0.5))
    # (1 + u) / 1 = (1 + 3 u) / 2 at u = 1; (1 + 3 u) / 2 = (1 + 4 u) / 2.5 at u = 1.
    assert hull.bounds == (math.inf, 1.0, 1.0)
    assert hull.cost(0.5) == pytest.approx(min((1 + 0.5 * w) / s for w, s in ((1, 1), (3, 2), (4, 2.5))))
    assert (hull.width_above(0.7), hull.width_above(0.4)) == (1, 4)


@given(st.floats(1e-6, 10), st.sampled_from(MODELS))
def test_the_cost_on_the_hull_is_the_least(price, model):
    x = speeds(model)
    least = min((1 + price * width) * x[1] / x[width] for width in range(1, NODES + 1))
    assert hull_of(x).cost(price) == pytest.approx(least, rel=1e-9)


def test_long_jobs_expect_a_lower_price():
    assert expectations([1.0, 3.0]) == pytest.approx([2 / 3, 2 / 5])


def test_bad_parameters_are_named():
    with pytest.raises(UsageError, match=r"^alpha: expected 0 to 1, got -0\.1$"):
        Knee(-0.1)
    with pytest.raises(UsageError, match=r"^jsq-chunk-K: expected 1 to"):
        JsqChunk(0)
