"""Means, intervals and stability of traces, and the claims of the paper that one trace can hold."""

import numpy as np
import pytest

from placement.experiments.async_sgd import AsyncMix, AsyncSgd, half_interval_of_batches, is_stable, values_of
from placement.experiments.comparison import ComparisonPlan, Drawn, TraceRun, mean, run_parts
from placement.experiments.hell_figures import FIGURES, cells_of, figure_document
from placement.model.parameter_server import ParameterServer
from placement.policies.schedulers.response.catalogue import Settings
from placement.simulator.rates.response.settings import ResponseOutcome, ResponseSettings
from placement.traces.async_sgd import SETS

MODEL = ParameterServer()


def outcome(responses_h, left):
    arrival = np.arange(len(responses_h)) * 3600.0
    response = np.array(responses_h) * 3600
    return ResponseOutcome(arrival, arrival + response, arrival + response / 4, 7, left, 0.0)


def workload(load=0.7, **parameters):
    return AsyncSgd(ResponseSettings(MODEL, load=load), Settings(**parameters))


def results(*policies, models="four", seeds=(1,), jobs=44_000, **parameters):
    """The runs of each policy."""
    traces = tuple(Drawn(AsyncMix(SETS[models], jobs), seed) for seed in seeds)
    plan = ComparisonPlan(workload(**parameters), policies, traces)
    return list(plan.result(run_parts(plan.parts, 1)).runs.values())


def mean_h(runs):
    return mean(runs, "mean_response_h")


def test_the_interval_of_batch_means_by_hand():
    # 20 batches of 2 whose means are 0 or 2 in turn: deviation sqrt(20 / 19), t(19) = 2.093024.
    values = np.repeat([0.0, 2.0] * 10, 2)
    assert half_interval_of_batches(values) == pytest.approx(2.093024 * (20 / 19) ** 0.5 / 20**0.5, rel=1e-6)
    assert half_interval_of_batches(np.append(values, 1e9)) == half_interval_of_batches(values)
    assert half_interval_of_batches(values[:39]) is None


def test_the_first_two_thousand_jobs_do_not_count():
    result = values_of(outcome([1000.0] * 2000 + [4.0, 8.0], 30), 10)
    assert (result["dropped"], result["mean_response_h"], result["to_40_percent_h"]) == (2000, 6.0, 1.5)
    assert result["mean_response_all_h"] == pytest.approx((2_000_000 + 12) / 2002)
    assert result["stable"]
    short = values_of(outcome([1.0] * 2000, 31), 10)
    found = (short["dropped"], short["mean_response_h"], short["stable"], short["interval_95_h"])
    assert found == (0, 1.0, False, 0.0)


def test_stable_results_are_better():
    def of(mean_h, stable):
        return [TraceRun("", "p", "t", 1, {"mean_response_h": mean_h, "stable": stable})]

    assert mean_h(workload().best([of(1.0, False), of(3.0, True), of(2.0, True)])) == 2.0


def test_srpt_is_stable_at_15_percent_only():
    below, above = (results("srpt", load=load)[0] for load in (0.15, 0.2))
    assert (is_stable(below), is_stable(above)) == (True, False)


def test_the_order_at_70_percent():
    policies = ("node-price", "hell+marginal", "hell+fill", "equi", "knee+fill", "jsq-chunk-10")
    *means, knee, hell = map(mean_h, results(*policies, "moldable-knee", "moldable-hell", seeds=(1, 2)))
    assert means == sorted(means)
    assert knee < hell


@pytest.mark.parametrize("models", SETS)
@pytest.mark.parametrize("load", [0.1, 0.5, 0.7])
def test_marginal_filling_beats_equation_5(models, load):
    marginal, shortest = results("hell+marginal", "hell+fill", models=models, load=load, jobs=22_000)
    assert mean_h(marginal) < mean_h(shortest)


def test_early_termination_trades_the_end_for_the_beginning():
    plain, early = (results("hell+fill", seeds=(1, 2), gamma=gamma)[0] for gamma in (0.0, 1.05))
    assert 0.64 <= mean(early, "to_40_percent_h") / mean(plain, "to_40_percent_h") <= 0.72
    assert mean_h(early) >= 1.6 * mean_h(plain)


def test_the_search_finds_the_best_chunk():
    searched, *given = results("jsq-chunk", *(f"jsq-chunk-{chunk}" for chunk in range(5, 20)), jobs=5000)
    assert mean_h(searched) == min(map(mean_h, given))
    assert workload().policy_document("jsq-chunk", searched)["chunk"] == searched[0]["chunk"]


def test_a_figure_has_all_its_cells():
    figure = FIGURES[14]
    cells = cells_of(figure, ResponseSettings(MODEL), Settings(), 2500, (1,))
    runs = run_parts([part for cell in cells for part in cell.plan.parts], 1)
    document = figure_document(figure, cells, runs)
    assert [(cell["load"], cell["gamma"]) for cell in document["cells"]] == [
        (load, gamma) for load in (0.7, 0.72) for gamma in (0.0, 0.5, 1.0, 1.05, 1.1, 2.0)
    ]
    assert all(cell["policies"][0]["policy"] == "hell+fill" for cell in document["cells"])
