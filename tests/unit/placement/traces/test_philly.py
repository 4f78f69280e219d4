import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltcp.core.errors import UsageError
from placement.model.job import Job
from placement.traces import philly
from placement.traces.models import PAPER, PUBLISHED, assigned
from placement.traces.read import read
from placement.traces.source import Source

SAMPLE = Path(__file__).parents[1] / "data" / "philly_cluster_job_log.json"
PREFIX = "application_1500000000000_"


def parse(text):
    return philly.parse(Source.decode(text.encode(), "log"))


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
    trace = philly.parse(Source.decode(json.dumps([entry()]).encode(), "log"), PAPER)
    assert trace.jobs[0].model is PAPER["inception-v3"]
    assert trace.jobs[0].iterations == 3600 * 10**9 // 87_300_000


@given(st.permutations(json.loads(SAMPLE.read_text())))
def test_the_order_of_entries_does_not_matter(documents):
    shuffled = philly.parse(Source.decode(json.dumps(documents).encode(), SAMPLE.name))
    assert shuffled == read(SAMPLE)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"jobid": "absent"}, "jobid: is missing; expected a string"),
        ({"jobid": 3}, "jobid: 3 is none; expected a string"),
        ({"attempts": None}, "attempts: None is none; expected a list"),
        ({"attempts": [3]}, "detail: 3 is no object; expected an object with this key"),
        ({"attempts": [{"detail": [{}]}]}, "gpus: is missing; expected a list"),
        ({"attempts": [{"detail": []}]}, "start_time: is missing; expected a string"),
        ({"submitted_time": "absent"}, "submitted_time: is missing; expected a string"),
        ({"submitted_time": 5}, "submitted_time: 5 is none; expected a string"),
        (
            {"submitted_time": "7 October"},
            "submitted_time: '7 October' is no time; expected YYYY-MM-DD hh:mm:ss",
        ),
    ],
)
def test_bad_entries(changes, message):
    with pytest.raises(UsageError) as caught:
        parse("[" + json.dumps(entry(jobid="first")) + ",\n" + json.dumps(entry(**changes)) + "]")
    assert str(caught.value) == f"log:2: {message}"


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
            "[" + json.dumps(entry()) + ",\n" + json.dumps(entry()) + "]",
            "log:2: jobid: 'a' is also at log:1; expected each once",
        ),
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
