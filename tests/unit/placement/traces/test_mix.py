from collections import Counter
from fractions import Fraction
from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mltcp.core.errors import UsageError
from placement.traces import csv, job_trace
from placement.traces.job_trace import PUBLISHED

# Of the traces that come with the published simulator's results.
SHA256 = {
    (0, 10): "0bea107885097ec828ac49847a93302644d651484115e63033980005345d3d61",
    (0, 1000): "9a945e3647548b7871ad0e3b82a265f3167378c70dcff4900fa474ff6a69daba",
    (1, 10): "6c9ecf9a755d04aea9754182ac5ac7d24b717e50e6c520d61579c8a0456edb1c",
    (1, 1000): "28a39c6a177d5551c7b2a9e73cd2fddcea5f126d61989b750f79f7186142324a",
    (2, 10): "7b88ec0d6743526bd2369723613768020ffad8d2a69c64f66c762417e90e1b97",
    (2, 1000): "7d1483131365befba69eb5b9091ddb0a8f5ce4062c25f036177c29da656dcd30",
    (3, 10): "caa556f66662e87e369d3949b10c25a2ef1b8eeb141782ee7d0dade4e0503324",
    (3, 1000): "bb196db7da4d04515c30976cb690e1954c180e5590b154fe43d1df456c45975c",
    (4, 10): "205c1446ef99db975e14bcaa0afb0af229a681602105edd4c92f7ae53d312072",
    (4, 1000): "cef9a74ba841767831b531c502de0de16cf16b4271befc90395c082e8951d7fd",
}


@pytest.mark.parametrize(("seed", "scale"), SHA256)
def test_the_published_traces_to_the_byte(seed, scale):
    written = csv.written(job_trace.fresh(seed, scale)).encode()
    assert sha256(written).hexdigest() == SHA256[seed, scale]


def test_a_job_of_the_published_traces():
    trace = job_trace.fresh(0, 10)
    (first,) = [job for job in trace.jobs if job.job_id == 0]
    assert (first.arrival_ns, first.gpus, first.iterations) == (6_585_000_000, 1, 48)
    assert first.model == PUBLISHED["lstm"]
    assert trace.name == "trace_seed00_scale10"
    assert trace.seconds_per_simulated_s == 100


@given(st.integers(0, 2**32 - 1), st.sampled_from(job_trace.SCALES))
@settings(max_examples=20)
def test_every_seed_has_the_papers_mix(seed, scale):
    trace = job_trace.fresh(seed, scale)
    assert Counter(job.gpus for job in trace.jobs) == job_trace.MIX
    assert all(scale <= job.iterations <= 6 * scale for job in trace.jobs)
    assert all(0 <= job.arrival_ns < 1200 * scale * 10**6 for job in trace.jobs)
    assert all(job.arrival_ns % 10**6 == 0 for job in trace.jobs)
    assert trace == job_trace.fresh(seed, scale)


@given(st.integers(1, 3000), st.integers(0, 99))
@settings(max_examples=30)
def test_any_number_of_jobs_in_the_same_proportions(jobs, seed):
    trace = job_trace.scaled(jobs, seed)
    assert sorted(job.job_id for job in trace.jobs) == list(range(jobs))
    counts = Counter(job.gpus for job in trace.jobs)
    assert all(abs(counts[gpus] - Fraction(jobs * count, 160)) < 1 for gpus, count in job_trace.MIX.items())


def test_multiples_have_the_papers_proportions_exactly():
    counts = Counter(job.gpus for job in job_trace.scaled(20_000).jobs)
    assert counts == {gpus: 125 * count for gpus, count in job_trace.MIX.items()}


@pytest.mark.slow
@pytest.mark.parametrize(("jobs", "gpus", "span_s"), [(20_000, 8192, 1171.875), (10_000, 64, 75_000)])
def test_the_load_stays(jobs, gpus, span_s):
    arrivals_s = [job.arrival_ns / 10**9 for job in job_trace.scaled(jobs, gpus=gpus).jobs]
    assert 0.99 * span_s < max(arrivals_s) < span_s
    assert sum(arrivals_s) / jobs == pytest.approx(span_s / 2, rel=0.05)


def test_scaled_to_the_papers_size_is_the_papers():
    assert job_trace.scaled(160, 4, 10, 64) == job_trace.fresh(4, 10)
    assert job_trace.scaled(160, 4, 10, 64).name != job_trace.scaled(161, 4, 10, 64).name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((160, 0, 100), "scale: expected 10 or 1000, got 100"),
        ((0,), "jobs: expected 1 to 1000000, got 0"),
        ((160, -1), "seed: expected 0 to 4294967295, got -1"),
        ((160, 2**32), "seed: expected 0 to 4294967295, got 4294967296"),
        ((160, 0, 10, 0), "gpus: expected 1 to 1000000, got 0"),
    ],
)
def test_what_cannot_be_made(arguments, message):
    with pytest.raises(UsageError) as caught:
        job_trace.scaled(*arguments)
    assert str(caught.value) == message
