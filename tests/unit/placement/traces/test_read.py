import random
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mltcp.core.errors import UsageError
from placement.model.cluster import Cluster, Gpu, Server
from placement.model.job import Job
from placement.model.table_reader import Source
from placement.traces import csv, job_trace
from placement.traces.job_trace import PUBLISHED, JobTrace, check_fits
from placement.traces.read import FORMATS, guess, read

DATA = Path(__file__).parents[1] / "data"
SAMPLES = {
    "t.csv": "\n".join(csv.written(job_trace.scaled(6, 1)).splitlines()).encode(),
    "philly.json": (DATA / "philly_cluster_job_log.json").read_bytes(),
    "pai_job_table.csv": (DATA / "pai_job_table.csv").read_bytes(),
    "pai_task_table.csv": (DATA / "pai_task_table.csv").read_bytes(),
}
PIECES = st.sampled_from(
    [
        b"",
        b",",
        b"\n",
        b'"',
        b"-",
        b".",
        b"0",
        b"9" * 30,
        b"e99",
        b"nan",
        b"None",
        b"null",
        b"[",
        b"{}",
        b"\0",
        b"\xff",
    ]
)
CUTS = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 12), PIECES | st.binary(max_size=4)), max_size=4)


def read_bytes(directory, name, data, format=None):
    """The trace, or None if it is refused in a line that names the file."""
    (directory / name).write_bytes(data)
    try:
        return read(directory / name, format)
    except UsageError as error:
        message = str(error)
    assert "\n" not in message
    assert str(directory) in message
    return None


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("traces")
    for name, data in SAMPLES.items():
        (path / name).write_bytes(data)
    return path


@given(st.binary(max_size=300), st.sampled_from([None, *FORMATS]))
@example(b'""', None)
@example(b"\xef\xbb\xbf", None)
@example(b"[" * 100_000, None)
@example(b'"' + b"a" * 200_000, None)
@example(b"[[1e999999999]]", None)
def test_any_bytes_are_a_trace_or_an_error(directory, data, format):
    trace = read_bytes(directory, "job.csv", data, format)
    assert trace is None or trace.jobs


@pytest.mark.slow
@given(st.sampled_from(sorted(SAMPLES)), CUTS)
def test_damaged_files_are_a_trace_or_an_error(directory, name, cuts):
    data = SAMPLES[name]
    for share, length, piece in cuts:
        position = int(share * len(data))
        data = data[:position] + piece + data[position + length :]
    try:
        trace = read_bytes(directory, name, data)
        assert trace is None or trace.jobs
    finally:
        (directory / name).write_bytes(SAMPLES[name])


@pytest.mark.slow
@given(st.randoms(use_true_random=False))
def test_damaged_or_not_the_order_of_lines_does_not_matter(directory, chance: random.Random):
    header, *lines = SAMPLES["t.csv"].splitlines()
    lines = chance.sample(lines, chance.randrange(1, len(lines) + 1))
    shuffled = chance.sample(lines, len(lines))
    one, other = (read_bytes(directory, "o.csv", b"\n".join([header, *each])) for each in (lines, shuffled))
    assert one == other is not None


@pytest.mark.parametrize(
    ("name", "format"), list(zip(SAMPLES, ["csv", "philly", "alibaba-pai", "alibaba-pai"], strict=True))
)
def test_formats_are_told_by_content(directory, name, format):
    assert guess(Source.decode(SAMPLES[name], name)) == format
    assert read(directory / name) == read(directory / name, format)


def test_unknown_formats():
    with pytest.raises(UsageError, match="format: 'json' is unknown; expected csv, philly, alibaba-pai"):
        read(Path("t.csv"), "json")


def job(job_id=0, gpus=1, model="lstm", arrival_ns=0):
    return Job(job_id, arrival_ns, gpus, 1, PUBLISHED[model])


def test_jobs_are_sorted_with_their_places():
    trace = JobTrace.of("t", [(job(2, arrival_ns=5), "t:2"), (job(3), "t:3"), (job(1, arrival_ns=5), "t:4")])
    assert [each.job_id for each in trace.jobs] == [3, 1, 2]
    assert trace.places == ("t:3", "t:4", "t:2")


def test_traces_that_cannot_be():
    with pytest.raises(UsageError, match="t: jobs: expected one or more, got no jobs"):
        JobTrace("t", ())
    with pytest.raises(UsageError, match="order"):
        JobTrace("t", (job(2), job(1)))
    with pytest.raises(UsageError, match="t: jobs: expected each name once, got '1' twice"):
        JobTrace.of("t", [(job(1), "a"), (job(1, arrival_ns=1), "b")])
    with pytest.raises(UsageError, match="t: arrival: job 1 arrives after "):
        JobTrace("t", (job(1, arrival_ns=10**18 + 1),))


def test_a_trace_that_fits():
    check_fits(job_trace.fresh(0), Cluster.star(16, 4))
    check_fits(job_trace.fresh(0), Cluster.star(8, 4))
    assert job_trace.fresh(0).seconds_per_simulated_s == Fraction(1)


def test_a_job_larger_than_the_cluster():
    text = "job_id,arrival_s,num_gpus,iterations,model\n0,9,1,1,lstm\n5,1,17,1,lstm\n"
    trace = csv.parse(Source.decode(text.encode(), "t.csv"))
    with pytest.raises(UsageError) as caught:
        check_fits(trace, Cluster.star(4, 4))
    assert str(caught.value) == "t.csv:3: num_gpus: job 5 wants 17 GPUs; expected the cluster's 16 or less"
    check_fits(trace, Cluster.star(5, 4))


def test_a_job_with_more_memory_than_the_gpus():
    servers = (Server("a", (Gpu(4526),) * 2), Server("b", (Gpu(4527), Gpu(4000))))
    cluster = Cluster(servers)
    check_fits(JobTrace("t", (job(0, 1, "vgg16"), job(1, 4, "lstm"))), cluster)
    with pytest.raises(UsageError) as caught:
        check_fits(JobTrace("t", (job(0, 2, "vgg16"),)), cluster)
    message = str(caught.value)
    assert message.startswith("t: train_mem_mb: job 0 (vgg16) wants 4527 MB on each of its GPUs (2)")
    assert "of 4 GPUs 1 have that much, the largest has 4527 MB" in message
