"""The compiled run of schedulers of mean response time: against the general executor, its laws and known figures."""

from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from mltcp.core.errors import UsageError
from placement.model.parameter_server import ParameterServer, ServerNode
from placement.model.throughput import RingAllReduce
from placement.policies.schedulers.response.catalogue import RESPONSE_SCHEDULERS, JsqChunk, Settings
from placement.simulator.rates.response.run import run_response
from placement.simulator.rates.response.settings import ResponseSettings
from placement.simulator.rates.run import run_rates
from placement.simulator.rates.timed_job import RatesSettings
from placement.traces.async_sgd import SETS, AsyncTrace, draw_trace

FREE, CHARGED = (ParameterServer(server_node=node) for node in ServerNode)
NAMES = (*RESPONSE_SCHEDULERS, "jsq-chunk-3")


def scheduler(name, **parameters):
    if name.startswith("jsq-chunk-"):
        return JsqChunk(int(name.rpartition("-")[2]))
    return RESPONSE_SCHEDULERS[name](Settings(**parameters))


def responses_s(trace, settings, policy):
    outcome = run_response(trace, settings, policy)
    return outcome.end_s - outcome.arrival_s


def reference_s(trace, settings, policy):
    jobs = trace.whole_jobs(settings.rate(trace))
    outcome = run_rates(jobs, RatesSettings(settings.model, settings.nodes, 1), policy)
    return np.array([end - job.arrival_ns for end, job in zip(outcome.end_ns, jobs.jobs, strict=True)]) / 1e9


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("model", [FREE, CHARGED, RingAllReduce()], ids=["free", "charged", "ring"])
def test_both_executors_agree(name, model):
    for models, nodes, load, seed in (("four", 12, 0.7, 1), ("two", 7, 1.1, 2)):
        trace = draw_trace(SETS[models], 30, seed)
        settings = ResponseSettings(model, nodes, load)
        fast = responses_s(trace, settings, scheduler(name))
        plain = reference_s(trace, settings, scheduler(name))
        assert fast == pytest.approx(plain, rel=1e-6)


@pytest.mark.parametrize("gamma", [0.5, 1.05])
def test_both_executors_agree_on_early_termination(gamma):
    trace, settings = draw_trace(SETS["four"], 40, 3), ResponseSettings(FREE, 12, 0.8)
    for name in ("hell+fill", "srpt", "knee+marginal"):
        policy = scheduler(name, gamma=gamma)
        fast, plain = responses_s(trace, settings, policy), reference_s(trace, settings, policy)
        assert fast == pytest.approx(plain, rel=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_one_job_alone(name):
    trace = replace_arrays(draw_trace(SETS["one"], 1, 7), arrival_units=np.array([0.0]))
    settings = ResponseSettings(FREE, 20, 0.5)
    speeds = settings.speeds(trace.models[0])
    outcome = run_response(trace, settings, scheduler(name))
    width = {"hell": 5, "moldable-hell": 5, "knee": 9, "moldable-knee": 6, "jsq-chunk-3": 3}.get(name, 20)
    work = float(trace.batches()[0])
    assert outcome.end_s[0] == pytest.approx(work / speeds[width], rel=1e-12)
    assert outcome.part_s[0] == pytest.approx(0.4 * work / speeds[width], rel=1e-12)


def replace_arrays(trace, **arrays):
    return replace(trace, **arrays)


@pytest.mark.parametrize("name", NAMES)
@hypothesis_settings(max_examples=15)
@given(seed=st.integers(0, 1000), models=st.sampled_from(sorted(SETS)), load=st.floats(0.05, 1.2))
def test_laws(name, seed, models, load):
    trace = draw_trace(SETS[models], 60, seed)
    settings = ResponseSettings(FREE, 30, load)
    outcome = run_response(trace, settings, scheduler(name))
    response = outcome.end_s - outcome.arrival_s
    # No job is faster than alone on the whole cluster, and Little's law holds.
    fastest = np.array([max(settings.speeds(model)) for model in trace.models])[trace.model]
    assert (response >= trace.batches() / fastest * (1 - 1e-9)).all()
    assert outcome.job_seconds == pytest.approx(response.sum(), rel=1e-9)
    part = outcome.part_s - outcome.arrival_s
    assert (part > 0).all()
    assert (part <= response * (1 + 1e-12)).all()
    assert 1 <= outcome.left_at_last <= outcome.most_present <= len(trace)


@pytest.mark.parametrize("name", ["hell+fill", "knee", "equi", "hesrpt", "node-price", "jsq-chunk-3"])
def test_twice_the_arrivals_and_speed_give_half_the_responses(name):
    trace = draw_trace(SETS["four"], 200, 4)
    slow = responses_s(trace, ResponseSettings(FREE, 50, 0.6), scheduler(name))
    twice = tuple(
        replace(each, compute_ns=2 * each.compute_ns, parameters=2 * each.parameters) for each in trace.models
    )
    # Doubled parameters double the transfers and the server's time; the load fixes the arrivals to the speed.
    other = responses_s(replace(trace, models=twice), ResponseSettings(FREE, 50, 0.6), scheduler(name))
    assert other == pytest.approx(2 * slow, rel=1e-6)


def test_no_gamma_is_bit_equal_to_gamma_zero():
    trace, settings = draw_trace(SETS["four"], 300, 4), ResponseSettings(FREE, 50, 0.6)
    plain = run_response(trace, settings, scheduler("hell+fill"))
    zero = run_response(trace, settings, scheduler("hell+fill", gamma=0.0))
    assert (plain.end_s == zero.end_s).all()


def test_jsq_chunk_by_hand():
    # AlexNet on 2 chunks of 2 nodes: three jobs at once, the third waits for the first.
    trace = AsyncTrace(
        "hand", SETS["one"], np.array([0.0, 0.0, 0.0]), np.zeros(3, np.int64), np.array([10.0, 20.0, 5.0])
    )
    settings = ResponseSettings(FREE, 5, 0.5)
    x = settings.speeds(trace.models[0])[2]
    epoch = trace.models[0].samples / trace.models[0].batch / x
    assert responses_s(trace, settings, JsqChunk(2)) == pytest.approx([10 * epoch, 20 * epoch, 15 * epoch])
    with pytest.raises(UsageError, match="expected K up to the 5 nodes of the cluster, got 6"):
        responses_s(trace, settings, JsqChunk(6))


FIGURES = {
    ("four", 0.6): {"equi": 66.1, "knee+fill": 67.7, "hell": 65.1, "hell+fill": 63.3, "hell+marginal": 60.9,
                    "moldable-hell": 70.7, "moldable-knee": 71.0, "jsq-chunk-14": 101.5},
    ("four", 0.1): {"srpt": 81.0, "equi": 50.7, "hell+fill": 52.2, "jsq-chunk-33": 53.1},
    ("one", 0.7): {"hell+fill": 80.5, "equi": 73.3},
}  # fmt: skip
"""Mean response in hours of the specification: of seeds 1, 2, 3, 44,000 jobs each, without the first 2,000."""


@pytest.mark.parametrize(("models", "load"), FIGURES)
def test_the_figures_of_the_specification(models, load):
    traces = [draw_trace(SETS[models], 44_000, seed) for seed in (1, 2, 3)]
    for name, hours in FIGURES[models, load].items():
        settings = ResponseSettings(FREE, 100, load)
        policy = scheduler(name, load=load)
        found = fmean(responses_s(trace, settings, policy)[2000:].mean() / 3600 for trace in traces)
        assert found == pytest.approx(hours, abs=0.06), name


@pytest.mark.parametrize(("name", "limit"), [("hell", 0.857), ("knee", 0.742)])
def test_jobs_pile_up_beyond_the_limit_of_stability(name, limit):
    trace = draw_trace(SETS["four"], 44_000, 1)
    below, above = (
        run_response(trace, ResponseSettings(FREE, 100, limit + change), scheduler(name))
        for change in (-0.03, 0.04)
    )
    assert below.most_present <= 100
    assert above.most_present > 400


def test_settings_are_checked():
    for arguments, message in (
        ({"nodes": 0}, "nodes: expected 1 to 10000, got 0"),
        ({"load": 0.0}, "load: expected more than 0 up to 100, got 0"),
        ({"share": 1.0}, "share: expected more than 0 and less than 1, got 1"),
    ):
        with pytest.raises(UsageError, match=f"^{message}$"):
            ResponseSettings(FREE, **arguments)
