import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltcp.core.errors import UsageError
from placement.model.job import Job
from placement.model.table_reader import Source
from placement.traces.clusters import philly
from placement.traces.job_trace import PAPER, PUBLISHED, assigned, trained
from placement.traces.read import read

SAMPLE = Path(__file__).parents[1] / "data" / "philly_cluster_job_log.json"
PREFIX = "application_1500000000000_"


def parse(text):
    return trained(philly.parse(Source.decode(text.encode(), "log")))


def entry(**changes):
    attempt = {
        "start_time": "2017-10-07 01:00:00",
        "end_time": "2017-10-07 02:00:00",
        "detail": [{"ip": "m1", "gpus": ["gpu0"]}],
    }
    whole = {"status": "Pass", "vc": "v", "jobid": "a", "attempts": [attempt], "user": "u"}
    whole["submitted_time"] = "2017-10-07 00:00:00"
    return {key: value for key, value in (whole | changes).items() if value != "absent"}


def test_sample():
    trace = read(SAMPLE)
    names = [PREFIX + number for number in ("0002", "0003", "0007")]
    models = [assigned(name, tuple(PUBLISHED.values())) for name in names]
    durations_ns = [0, 24 * 3600 * 10**9, 3600 * 10**9]
    arrivals_ns = [0, 0, 701 * 10**9]
    iterations = [max(1, d // model.compute_ns) for d, model in zip(durations_ns, models, strict=True)]
    assert trace.jobs == tuple(
        Job(number, arrivals_ns[number], (1, 5, 8)[number], iterations[number], models[number])
        for number in range(3)
    )
    assert iterations[0] == 1
    assert trace.skipped == {
        "never started": 2,
        "no end": 1,
        "ended before it started": 1,
        "no GPUs": 1,
        "never submitted": 1,
    }
    assert sum(trace.skipped.values()) + len(trace.jobs) == len(json.loads(SAMPLE.read_text()))
    assert trace.seconds_per_simulated_s == 1
    lines = SAMPLE.read_text().splitlines()
    for index, name in enumerate(names):
        line = int(trace.place(index).rpartition(":")[2])
        assert lines[line - 1].strip() == "{"
        assert name in lines[line + 2]


def test_the_network_goes_by_the_name_only():
    # SHA-256 of "a" begins ca978112ca1bbdca, of "d" 18ac3e7343f01689.
    models = tuple(PUBLISHED.values())
    assert assigned("a", models) == models[0xCA978112CA1BBDCA % 4] == PUBLISHED["inception-v3"]
    assert assigned("d", models) == models[0x18AC3E7343F01689 % 4] == PUBLISHED["resnet50"]
    assert {assigned(str(number), models).name for number in range(100)} == set(PUBLISHED)
    with pytest.raises(UsageError, match="1 or more"):
        assigned("a", ())


def test_another_table_of_networks():
    trace = trained(philly.parse(Source.decode(json.dumps([entry()]).encode(), "log")), PAPER)
    assert trace.jobs[0].model is PAPER["inception-v3"]
    assert trace.jobs[0].iterations == 3600 * 10**9 // 87_300_000


@given(st.permutations(json.loads(SAMPLE.read_text())))
def test_the_order_of_entries_does_not_matter(documents):
    shuffled = trained(philly.parse(Source.decode(json.dumps(documents).encode(), SAMPLE.name)))
    assert shuffled == read(SAMPLE)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"jobid": "absent"}, "jobid: is missing; expected a string"),
        ({"jobid": 3}, "jobid: 3 is none; expected a string"),
        ({"attempts": "x"}, "attempts: 'x' is none; expected a list"),
        ({"attempts": [3]}, "detail: 3 is no object; expected an object with this key"),
        ({"attempts": [{"detail": [{}]}]}, "gpus: is missing; expected a list"),
        ({"attempts": [{"detail": []}]}, "start_time: is missing; expected a string"),
        ({"submitted_time": "absent"}, "submitted_time: is missing; expected a string"),
        ({"submitted_time": 5}, "submitted_time: 5 is none; expected a string"),
        (
            {"submitted_time": "7 October"},
            "submitted_time: '7 October' is no time; "
            "expected YYYY-MM-DD hh:mm:ss, with or without a zone such as +08:00",
        ),
    ],
)
def test_bad_entries_are_left_out_and_named(changes, message):
    trace = parse("[" + json.dumps(entry(jobid="first")) + ",\n" + json.dumps(entry(**changes)) + "]")
    assert len(trace.jobs) == 1
    assert trace.skipped == {"cannot be read": 1}
    assert trace.left_out.first == f"log:2: {message}"
    with pytest.raises(UsageError) as caught:
        parse("[\n" + json.dumps(entry(**changes)) + "]")
    assert str(caught.value) == f"log:2: {message}"


HOUR = {"start_time": "2017-10-07 01:00:00", "end_time": "2017-10-07 02:00:00"}
LATER = {"start_time": "2017-10-07 03:00:00", "end_time": "2017-10-07 04:00:00"}
NEVER = {"start_time": None, "end_time": None}
GPU = {"ip": "m1", "gpus": ["gpu0"]}


@pytest.mark.parametrize(
    ("attempts", "gpus", "hours"),
    [
        ([{**NEVER, "detail": []}, {**HOUR, "detail": [GPU]}], 1, 1),
        ([{**HOUR, "detail": [GPU]}, {**NEVER, "detail": None}], 1, 1),
        ([{**HOUR, "detail": []}, {**LATER, "detail": [GPU, GPU]}], 2, 1),
        ([{**HOUR, "detail": [GPU, GPU]}, {**LATER, "detail": [GPU]}], 2, 3),
        ([{**HOUR, "detail": [{"gpus": None}, GPU]}], 1, 1),
        ([{"start_time": "NaN", "end_time": "nan", "detail": [GPU]}, {**HOUR, "detail": [GPU]}], 1, 1),
        ([{"start_time": float("nan"), "end_time": "", "detail": [GPU]}, {**HOUR, "detail": [GPU]}], 1, 1),
    ],
)
def test_a_job_begins_with_its_first_attempt_that_had_gpus(attempts, gpus, hours):
    (job,) = parse(json.dumps([entry(attempts=attempts)])).jobs
    assert job.gpus == gpus
    assert job.iterations == hours * 3600 * 10**9 // job.model.compute_ns


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"attempts": None}, "never started"),
        ({"attempts": [{**NEVER, "detail": [GPU]}]}, "never started"),
        ({"attempts": [{**HOUR, "detail": None}]}, "no GPUs"),
        ({"attempts": [{**HOUR, "end_time": None, "detail": [GPU]}]}, "no end"),
        ({"submitted_time": float("nan")}, "never submitted"),
        ({"jobid": "first"}, "listed twice"),
    ],
)
def test_left_out(changes, reason):
    trace = parse(json.dumps([entry(jobid="first"), entry(**changes)]))
    assert len(trace.jobs) == 1
    assert trace.skipped == {reason: 1}


def test_of_a_job_that_is_listed_twice_the_one_that_ran_is_kept():
    trace = parse(json.dumps([entry(attempts=[]), entry()]))
    assert (len(trace.jobs), trace.skipped) == (1, {"never started": 1})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "log:1: file: no '[' where one must be; expected a list of jobs"),
        ("[]", "log:1: file: no jobs are left; expected 1 or more"),
        ("\n[", "log:2: file: Expecting value; expected JSON"),
        (
            "[\n" + json.dumps(entry()) + "\n{",
            "log:3: file: no ']' where one must be; expected a comma and another job, ",
        ),
        (
            "[" + json.dumps(entry()) + "]\n\n]",
            "log:3: file: more follows the list; expected the end of the file",
        ),
        ("[" + json.dumps(entry()) + ",]", "log:1: file: Expecting value; expected JSON"),
        ("[" * 100_000, "log:1: file: nested too deeply; expected JSON"),
        ("[1" + "1" * 5000 + "]", "log:1: file: a number of thousands of digits; expected JSON"),
        ("[NaN]", "log:1: jobid: nan is no object"),
        (
            json.dumps([entry(attempts=[]), entry(jobid="b", submitted_time=None)]),
            "log:1: file: no jobs are left (never started: 1, never submitted: 1); expected 1 or more",
        ),
    ],
)
def test_bad_files(text, message):
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
