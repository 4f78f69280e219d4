"""Widths, fillings and shares of the schedulers of mean response time, on speeds alone."""

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from mltcp.core.errors import UsageError
from placement.model.cluster import Cluster
from placement.model.parameter_server import ParameterServer, ServerNode
from placement.model.queueing import Method
from placement.policies.schedulers.response.catalogue import RESPONSE_SCHEDULERS, JsqChunk, Settings
from placement.policies.schedulers.response.rules import divide, expect, fill_marginal, fill_shortest, want
from placement.policies.schedulers.response.tables import (
    POWER,
    JobSpeeds,
    Present,
    ResponseRule,
    fitted_power,
    hull_of,
    tables_of,
)
from placement.policies.schedulers.response.widths import (
    Hell,
    Knee,
    OneNode,
    fewest_width,
    gain,
    hell_width,
    knee_width,
    moldable_knee,
    peak_width,
)
from placement.policies.schedulers.scheduler import JobView
from placement.policies.schedulers.speeds import speeds_of
from placement.simulator.rates.response.settings import speeds_of_model
from placement.traces.async_sgd import ALEXNET, GOOGLENET, NIN, SETS, VGG19
from tests.unit.placement.policies import response_reference as plain

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
    assert Hell().offer(x, 4) == (2, pytest.approx(2 * 1.0 / 1.8**2))
    assert peak_width(x) == 3


def test_moldable_jobs_get_all_or_nothing():
    x = speeds(ALEXNET)
    assert [Hell(moldable=True).offer(x, budget)[0] for budget in (4, 5, 100)] == [0, 5, 5]
    rule = moldable_knee(load=0.5, low=0.01, high=0.05)
    assert rule.alpha == pytest.approx(0.03)
    width = knee_width(x, NODES, 0.03)
    assert [rule.offer(x, budget)[0] for budget in (width - 1, width)] == [0, width]
    assert Knee(0.03).offer(x, width - 1)[0] == width - 1


def test_a_job_that_needs_two_gpus():
    x = [0.0, 0.0, 2.0, 3.0]
    assert fewest_width(x) == 2
    assert [rule.offer(x, 1)[0] for rule in (Hell(), Knee(), OneNode())] == [0, 0, 0]
    assert [rule.offer(x, 3)[0] for rule in (Hell(), Knee(), OneNode())] == [3, 3, 2]


@given(
    st.lists(st.tuples(st.floats(0.1, 100), st.sampled_from(MODELS)), min_size=1, max_size=6),
    st.integers(0, 60),
    st.lists(st.integers(0, 6), min_size=6, max_size=6),
)
@hypothesis_settings(max_examples=40)
def test_filling_takes_nothing_away_and_gives_at_most_what_is_left(works, left, begin):
    tables, present = jobs_with([(work, speeds(model)) for work, model in works])
    for fill in (fill_shortest, fill_marginal):
        present.nodes[:] = before = np.array(begin[: len(works)])
        fill(tables, present, len(works), left)
        assert (present.nodes >= before).all()
        given_out = int((present.nodes - before).sum())
        assert 0 <= given_out <= left
        if fill is fill_shortest:  # speeds grow, so nothing is left over, and one job gets all
            assert given_out == left
        else:
            assert present.nodes[present.nodes != before].all()


def jobs_with(works):
    """The tables and the jobs of (work, speeds), each a model of its own."""
    models = [JobSpeeds(tuple(of_model), len(of_model) - 1) for _, of_model in works]
    present = Present.of(len(works))
    present.model[:] = range(len(works))
    present.size[:] = present.left[:] = present.priority[:] = [work for work, _ in works]
    return tables_of(tuple(models), None), present


def hesrpt_shares(works, power, nodes):
    """The shares of jobs in descending order of their work, all sped up by w^power."""
    x = [0.0, *(width**power for width in range(1, nodes + 1))]
    tables, present = jobs_with([(work, x) for work in works])
    divide(ResponseRule(POWER), tables, present, len(works), nodes)
    return present.nodes.tolist()


@given(st.integers(1, 40), st.floats(0.05, 0.95), st.integers(2, 200))
@hypothesis_settings(max_examples=40)
def test_hesrpt_shares_sum_to_the_nodes_and_grow_with_rank(jobs, power, nodes):
    shares = hesrpt_shares(range(jobs, 0, -1), power, nodes)
    assert sum(shares) == nodes
    assert all(b >= a - 1 for a, b in pairwise(shares))


def test_hesrpt_by_hand():
    # p = 1/2, c = 2: the larger of two jobs gets 1/4.
    assert hesrpt_shares([2.0, 1.0], 0.5, 100) == [25, 75]
    assert fitted_power([0.0, *(width**0.5 for width in range(1, 50))]) == pytest.approx(0.5)


def test_the_hull_skips_what_is_not_worth_having():
    hull = hull_of((0.0, 1.0, 1.0, 2.0, 2.5, 2.5))
    assert hull.widths == (0, 1, 3, 4)
    assert hull.slopes == pytest.approx((1.0, 0.5, 0.5))
    # (1 + u) / 1 = (1 + 3 u) / 2 at u = 1; (1 + 3 u) / 2 = (1 + 4 u) / 2.5 at u = 1.
    assert hull.bounds == (math.inf, 1.0, 1.0)


@given(st.floats(1e-6, 10), st.sampled_from(MODELS))
def test_the_cost_on_the_hull_is_the_least(price, model):
    x = speeds(model)
    tables, present = jobs_with([(1.0, x)])
    present.expected[:] = 1.0
    want(tables, present, 1, price)
    least = min((1 + price * width) * x[1] / x[width] for width in range(1, NODES + 1))
    assert present.worth[0] == pytest.approx(least, rel=1e-9)


def test_long_jobs_expect_a_lower_price():
    tables, present = jobs_with([(1.0, [0.0, 1.0]), (3.0, [0.0, 1.0])])
    expect(tables, present, 2)
    assert present.expected == pytest.approx([2 / 3, 2 / 5])


@dataclass(frozen=True)
class Amdahl:
    """Times of iterations of which a share is not sped up."""

    serial: float

    def iteration_ns(self, workers, one_node):
        return 1e6 * (1 + self.serial * workers) * (1.0 if one_node else 1.25)


views = st.builds(
    lambda fewest, more, serial, iterations, done: (fewest, fewest + more, serial, iterations, iterations * done),
    st.integers(1, 3), st.integers(0, 7), st.floats(0.01, 1), st.floats(1, 1000), st.floats(0, 1),
)  # fmt: skip


@pytest.mark.parametrize("name", RESPONSE_SCHEDULERS)
@given(jobs=st.lists(views, max_size=8), gamma=st.sampled_from([0.0, 0.7]))
@hypothesis_settings(max_examples=40)
def test_a_decision_divides_as_the_plain_form_does(name, jobs, gamma):
    """Of jobs with a fewest and a most number of GPUs, some of which span two nodes."""
    cluster, scheduler = Cluster.star(2, 4), RESPONSE_SCHEDULERS[name](Settings(gamma=gamma))
    waiting = [
        JobView(f"job-{number}", number, fewest, fewest, most, iterations, left, Amdahl(serial))
        for number, (fewest, most, serial, iterations, left) in enumerate(jobs)
    ]
    (assignment,) = scheduler.candidates(cluster, 0, waiting)
    early = scheduler.rule.gamma
    plain_jobs = [
        plain.PlainJob(
            speeds_of(job, 8, 4).rates(8),
            job.iterations_left * (job.iterations / job.iterations_left) ** early
            if job.iterations_left
            else 0.0,
            job.gpus_max,
        )
        for job in waiting
    ]
    assert [len(assignment.get(job.name, ())) for job in waiting] == plain.divided(scheduler, plain_jobs, 8)


def test_bad_parameters_are_named():
    with pytest.raises(UsageError, match=r"^alpha: expected 0 to 1, got -0\.1$"):
        Knee(-0.1)
    with pytest.raises(UsageError, match=r"^jsq-chunk-K: expected 1 to"):
        JsqChunk(0)
