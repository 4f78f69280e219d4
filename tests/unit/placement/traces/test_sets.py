import json
from itertools import combinations, product
from math import gcd
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mltcp.core.errors import UsageError
from placement.experiments.thesis_traces import (
    CAPACITY_GBPS,
    IMAGE,
    NETWORKS,
    ModelMix,
    by_rule,
    dynamic,
    poisson,
)
from placement.traces import sets
from placement.traces.model_shapes import DATA_PARALLEL

FITTED_SCORES = {"snapshot1": 1.0, "snapshot2": 1.0, "snapshot3": 0.9, "snapshot4": 0.8, "snapshot5": 0.6}
FITTED_GROUPS = ("group2", "group4", "group5")
BY_RULE = tuple(f"{kind}{number}" for kind in ("group", "snapshot") for number in range(1, 6))
FITTED = tuple(f"fitted-{name}" for name in (*BY_RULE, "poisson", "dynamic"))
ANGLES = 72
MS = 10**6


def sampled(demand, perimeter_ns):
    """The demand at each of 72 angles of a circle of this perimeter."""
    values = []
    for angle in range(ANGLES):
        at = angle * perimeter_ns / ANGLES % demand.iteration_ns
        for phase in demand.phases:
            if at < phase.duration_ns:
                values.append(phase.bandwidth_bps)
                break
            at -= phase.duration_ns
    return np.array(values, float)


def best_score(job_set):
    """Table 4.1 at 5 degrees, by trying all rotations of all jobs but the first."""
    demands = [job.demand for job in job_set.jobs]
    perimeter = np.lcm.reduce([demand.iteration_ns for demand in demands])
    circles = [sampled(demand, perimeter) for demand in demands]
    turns = [ANGLES * demand.iteration_ns // perimeter for demand in demands[1:]]
    best = -np.inf
    for rotations in product(*(range(turn) for turn in turns)):
        total = circles[0] + sum(
            np.roll(circle, by) for circle, by in zip(circles[1:], rotations, strict=True)
        )
        best = max(best, 1 - np.maximum(total - job_set.capacity_bps, 0).mean() / job_set.capacity_bps)
    return best


@pytest.mark.parametrize("name", FITTED_SCORES)
def test_a_fitted_snapshot_has_the_score_of_table_4_3(name):
    assert best_score(sets.load(f"fitted-{name}")) == pytest.approx(FITTED_SCORES[name], abs=0.02)


@pytest.mark.parametrize("name", FITTED_GROUPS)
def test_the_fitted_groups_of_table_3_1_are_compatible(name):
    """Two jobs that exceed the link together meet at every multiple of the greatest common divisor of their times."""
    job_set = sets.load(f"fitted-{name}")
    assert best_score(job_set) == 1.0
    for one, other in combinations([job.demand for job in job_set.jobs], 2):
        if max_bps(one) + max_bps(other) > job_set.capacity_bps:
            assert sending_ns(one) + sending_ns(other) <= gcd(one.iteration_ns, other.iteration_ns)


def max_bps(demand):
    return max(phase.bandwidth_bps for phase in demand.phases)


def sending_ns(demand):
    return sum(phase.duration_ns for phase in demand.phases if phase.bandwidth_bps)


@pytest.mark.parametrize("name", BY_RULE)
def test_the_jobs_of_the_thesis_have_the_demand_of_the_rule(name):
    job_set = sets.load(name)
    assert job_set == by_rule(job_set), "write it anew: python -m docs.reproduce_thesis sets"
    assert {job.workers for job in job_set.jobs} == {2}


def test_a_job_by_the_rule():
    """VGG16 of 1,400 images computes three times its forward pass at 60 TFLOP/s, and two workers send its size once."""
    dense = 2 * 123_642_856 / 1e9
    gflop = 3 * 1400 * ((30.94 - dense) * (IMAGE / 224) ** 2 + dense)
    silence, sending = sets.load("snapshot1").jobs[1].demand.phases
    assert silence.duration_ns == pytest.approx(gflop / 60e3 * 1e9, abs=2)
    assert (silence.bandwidth_bps, sending.bandwidth_bps) == (0, pytest.approx(50e9, rel=1e-8))
    assert sending.duration_ns == pytest.approx(138_357_544 * 4 * 8 / 50, abs=2)


def test_a_job_of_a_fitted_snapshot():
    job = sets.load("fitted-snapshot4").jobs[0]
    assert (job.name, job.workers, job.model, job.batch) == ("RoBERTa-12-A", 2, "RoBERTa", 12)
    assert [(phase.duration_ns, phase.bandwidth_bps) for phase in job.demand.phases] == [
        (84 * MS, 0),
        (168 * MS, 40 * 10**9),
    ]


def test_the_shipped_traces_are_those_of_seed_0():
    assert sets.load("poisson").jobs == poisson(0).jobs
    assert sets.load("dynamic").jobs == dynamic(0).jobs
    assert {"poisson", "dynamic", *BY_RULE, *FITTED} == set(sets.names())


@pytest.mark.parametrize("name", sets.names())
def test_what_is_written_is_read_again(name, tmp_path: Path):
    job_set = sets.load(name)
    path = tmp_path / "own.json"
    path.write_text(json.dumps(job_set.document()))
    assert sets.load(path) == job_set


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"capacity_gbps": 0}, "capacity_gbps: expected .*, got 0"),
        ({"capacity_gbps": "50"}, "capacity_gbps: expected .*, got '50'"),
        ({"jobs": {}}, "jobs must be a list"),
        ({"jobs": []}, "jobs: expected 1 to .*, got 0"),
        ({"name": ""}, "name: expected .*, got ''"),
        ({"extra": 1}, "extra: unknown"),
        ({"workers": 0}, r"jobs\[0\].workers: expected .*, got 0"),
        ({"workers": True}, r"jobs\[0\].workers: expected .*, got True"),
        ({"iterations": 1.5}, r"jobs\[0\].iterations: expected .*, got 1.5"),
        ({"arrival_s": -1}, r"jobs\[0\].arrival_s: expected .*, got -1"),
        ({"arrival_s": float("nan")}, r"jobs\[0\].arrival_s: expected .*, got nan"),
        ({"phases": []}, r"jobs\[0\]: phases: expected 1 to 100000, got 0"),
        ({"phases": [{"duration_s": 0, "bandwidth_bps": 1}]}, r"phases\[0\].duration_s: .* got 0"),
        ({"phases": [{"duration_s": 1, "bandwidth_bps": -1}]}, r"phases\[0\].bandwidth_bps: .* got -1"),
        ({"max_workers": 1}, "workers: expected 1 <= .*, got 2, 2, 1"),
        ({"noise_scale": 0}, "noise_scale: expected .*, got 0"),
        ({"colour": 1}, r"jobs\[0\].colour: unknown"),
    ],
)
def test_a_field_that_cannot_be_is_named(change, message):
    document = sets.load("snapshot1").document()
    of_set = {"name", "source", "capacity_gbps", "jobs", "extra"}
    target = document if set(change) <= of_set else document["jobs"][0]
    target.update(change)
    with pytest.raises(UsageError, match=message):
        sets.JobSet.from_document(document)


def test_twice_a_name_and_a_wrong_order_are_refused():
    document = sets.load("snapshot1").document()
    twice = {**document, "jobs": [document["jobs"][0]] * 2}
    with pytest.raises(UsageError, match="expected each name once"):
        sets.JobSet.from_document(twice)
    document["jobs"][0]["arrival_s"] = 5
    with pytest.raises(UsageError, match="order of their arrival"):
        sets.JobSet.from_document(document)


def test_an_unknown_name_says_which_there_are(tmp_path: Path):
    with pytest.raises(UsageError, match="snapshot1"):
        sets.load("snapshot9")
    with pytest.raises(UsageError, match=r"no\.json"):
        sets.load(tmp_path / "no.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(UsageError, match=r"bad\.json"):
        sets.load(tmp_path / "bad.json")


def test_a_ring_of_fewer_workers_sends_less():
    # 4 workers send 3/4 of twice the size, 2 send 1/2 of it, 1 nothing.
    demand = NETWORKS["VGG16"].demand(4, 1024).phases
    assert sets.rescaled(demand, 4, 2) == (
        demand[0],
        type(demand[1])(round(demand[1].duration_ns * 2 / 3), demand[1].bandwidth_bps),
    )
    assert sets.rescaled(demand, 4, 1) == (demand[0],)
    with pytest.raises(UsageError, match="1 worker"):
        sets.rescaled(demand, 1, 2)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("workers", [1, 2, 7, 12])
def test_the_demand_of_a_network(name, workers):
    network = NETWORKS[name]
    for batch in network.batches:
        demand = network.demand(workers, batch)
        if workers == 1:
            assert demand.bits == 0
        elif network.kind == "data":
            megabytes = DATA_PARALLEL[name.lower()].megabytes
            assert demand.bits == pytest.approx(2 * (workers - 1) / workers * megabytes * 8e6, rel=1e-6)
        assert all(phase.bandwidth_bps <= CAPACITY_GBPS * 1e9 for phase in demand.phases)


@given(st.integers(0, 10**6), st.sampled_from([0.8, 0.9, 1.0]))
@settings(max_examples=15, deadline=None)
def test_a_poisson_trace_is_as_the_thesis_says(seed, load):
    trace = poisson(seed, load=load)
    assert trace == poisson(seed, load=load)
    assert all(1 <= job.workers <= 12 and 200 <= job.iterations <= 1000 for job in trace.jobs)
    assert {job.model for job in trace.jobs} <= set(NETWORKS)
    assert all(job.min_workers == job.workers for job in trace.jobs if NETWORKS[job.model].kind == "model")


def test_its_load_is_the_share_of_gpus_that_jobs_would_keep_busy():
    trace = poisson(3, jobs=5000, load=0.8)
    busy_ns = sum(job.workers * job.iterations * job.demand.iteration_ns for job in trace.jobs)
    assert busy_ns / (24 * trace.jobs[-1].arrival_ns) == pytest.approx(0.8, rel=0.05)
    counts = [sum(job.model == name for job in trace.jobs) for name in NETWORKS]
    assert min(counts) > 0.75 * 5000 / 13


def test_a_mix_says_what_jobs_train_how_long_and_on_how_fast_gpus():
    mix = ModelMix(("model", "bert"), (20, 30), compute=0.5)
    assert [network.name for network in mix.networks] == ["BERT", "GPT1", "GPT2", "GPT3", "DLRM"]
    trace = poisson(1, jobs=200, mix=mix)
    assert {job.model for job in trace.jobs} == {network.name for network in mix.networks}
    assert {job.iterations for job in trace.jobs} == set(range(20, 31))
    fast, slow = (NETWORKS["VGG16"].demand(2, 1024, compute).phases for compute in (0.5, 1.0))
    assert fast[1] == slow[1]
    assert fast[0].duration_ns == pytest.approx(slow[0].duration_ns / 2, abs=2)
    later = dynamic(1, mix=mix).jobs[-2:]
    assert [job.model for job in later] == ["DLRM", "ResNet50"]
    assert [job.iterations for job in later] == [12, 30]
    assert dynamic(1, mix=ModelMix(("model",))).jobs[-1].model == "GPT3"
    with pytest.raises(UsageError, match="models: expected data, model or VGG11"):
        ModelMix(("vgg99",))
