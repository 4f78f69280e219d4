"""Means, intervals and stability of traces, and the claims of the paper that one trace can hold."""

import numpy as np
import pytest

from placement.experiments.response.figures import FIGURES, cells_of, figure_document
from placement.experiments.response.results import PolicyResult, TraceResult, best, half_interval_of_batches
from placement.experiments.response.runs import Comparison, DrawnTraces, result_of, run_tasks
from placement.model.parameter_server import ParameterServer
from placement.policies.schedulers.response.catalogue import Settings
from placement.simulator.rates.response.outcome import ResponseOutcome
from placement.simulator.rates.response.settings import ResponseSettings
from placement.traces.async_sgd import SETS

MODEL = ParameterServer()


def outcome(responses_h, left):
    arrival = np.arange(len(responses_h)) * 3600.0
    response = np.array(responses_h) * 3600
    return ResponseOutcome(arrival, arrival + response, arrival + response / 4, 7, left, 0.0)


def comparison(models="four", load=0.7, seeds=(1,), jobs=44_000, **parameters):
    traces = DrawnTraces(SETS[models], jobs, seeds).traces()
    return Comparison(traces, ResponseSettings(MODEL, load=load), Settings(**parameters))


def results(found, *policies):
    runs = run_tasks([task for policy in policies for task in found.tasks(policy)], 1)
    return [result_of(found, policy, runs) for policy in policies]


def test_the_interval_of_batch_means_by_hand():
    # 20 batches of 2 whose means are 0 or 2 in turn: deviation sqrt(20 / 19), t(19) = 2.093024.
    values = np.repeat([0.0, 2.0] * 10, 2)
    assert half_interval_of_batches(values) == pytest.approx(2.093024 * (20 / 19) ** 0.5 / 20**0.5, rel=1e-6)
    assert half_interval_of_batches(np.append(values, 1e9)) == half_interval_of_batches(values)
    assert half_interval_of_batches(values[:39]) is None


def test_the_first_two_thousand_jobs_do_not_count():
    result = TraceResult.of("t", None, 10, outcome([1000.0] * 2000 + [4.0, 8.0], 30))
    assert (result.dropped, result.mean_response_h, result.to_40_percent_h) == (2000, 6.0, 1.5)
    assert result.mean_response_all_h == pytest.approx((2_000_000 + 12) / 2002)
    assert (result.stable, result.document()["trace"]) == (True, "t")
    short = TraceResult.of("t", 3, 10, outcome([1.0] * 2000, 31))
    assert (short.dropped, short.mean_response_h, short.stable, short.interval_95_h) == (0, 1.0, False, 0.0)
    assert short.document()["seed"] == 3


def test_stable_results_are_better():
    def of(mean_h, stable):
        return PolicyResult("p", (TraceResult("t", 1, 1, 0, mean_h, None, 1.0, stable, 1, 1, 1.0),))

    assert best([of(1.0, False), of(3.0, True), of(2.0, True)]).mean_response_h == 2.0


def test_srpt_is_stable_at_15_percent_only():
    below, above = (results(comparison(load=load), "srpt")[0] for load in (0.15, 0.2))
    assert (below.stable, above.stable) == (True, False)


def test_the_order_at_70_percent():
    found = comparison(seeds=(1, 2))
    policies = ("node-price", "hell+marginal", "hell+fill", "equi", "knee+fill", "jsq-chunk-10")
    means = [result.mean_response_h for result in results(found, *policies)]
    assert means == sorted(means)
    knee, hell = results(found, "moldable-knee", "moldable-hell")
    assert knee.mean_response_h < hell.mean_response_h


@pytest.mark.parametrize("models", SETS)
@pytest.mark.parametrize("load", [0.1, 0.5, 0.7])
def test_marginal_filling_beats_equation_5(models, load):
    marginal, shortest = results(comparison(models, load, jobs=22_000), "hell+marginal", "hell+fill")
    assert marginal.mean_response_h < shortest.mean_response_h


def test_early_termination_trades_the_end_for_the_beginning():
    plain, early = (results(comparison(seeds=(1, 2), gamma=gamma), "hell+fill")[0] for gamma in (0.0, 1.05))
    assert 0.64 <= early.to_40_percent_h / plain.to_40_percent_h <= 0.72
    assert early.mean_response_h >= 1.6 * plain.mean_response_h


def test_the_search_finds_the_best_chunk():
    found = comparison(load=0.7, jobs=5000)
    (searched,) = results(found, "jsq-chunk")
    given = results(found, *(f"jsq-chunk-{chunk}" for chunk in range(5, 20)))
    assert searched.mean_response_h == min(result.mean_response_h for result in given)
    assert searched.document()["chunk"] == searched.chunk


def test_a_figure_has_all_its_cells():
    figure = FIGURES[14]
    cells = cells_of(figure, ResponseSettings(MODEL), Settings(), 2500, (1,))
    runs = run_tasks([task for cell in cells for task in cell.tasks()], 1)
    document = figure_document(figure, cells, runs)
    assert [(cell["load"], cell["gamma"]) for cell in document["cells"]] == [
        (load, gamma) for load in (0.7, 0.72) for gamma in (0.0, 0.5, 1.0, 1.05, 1.1, 2.0)
    ]
    assert all(cell["policies"][0]["policy"] == "hell+fill" for cell in document["cells"])
