"""The JSON documents: their fields and values, from runs whose document is kept, and documents that are refused."""

import json
from pathlib import Path

import pytest

from bench.compare.results.results import compare_document, compare_result, contend_document, from_document
from bench.compare.results.runs import ApproachRun, Change, LinkExcerpt, Measured, Shift
from mltcp.core.errors import UsageError
from tests.unit.bench.compare.results.runs import contend_result, job_run, policy_run, run

DOCUMENTS = Path(__file__).parent / "documents"
LINK = {
    "rate_bps": 300_000_000,
    "queue_bytes": 300_000,
    "ecn_threshold_bytes": None,
    "ecn_by": "virtual_queue",
    "overlap": False,
}
ISOLATED = [
    {"a": [0.4, 0.41, 0.4, 0.39, 0.4, 0.4], "b": [0.2, 0.2, 0.21, 0.2]},
    {"a": [0.42] * 6, "b": [0.2] * 4},
]
SHARED = [
    {"a": [0.8, 0.5, 0.42, 0.4, 0.41, 0.4], "b": [0.3, 0.25, 0.2, 0.21]},
    {"a": [0.6] * 6, "b": [0.22, 0.2, 0.2, 0.2]},
    {"a": [0.41] * 6, "b": [0.21] * 4},
]


def kept(name):
    return json.loads((DOCUMENTS / f"{name}.json").read_text())


def without_other_load(document):
    """The document without the one field that the kept ones lack."""
    if isinstance(document, dict):
        return {k: without_other_load(v) for k, v in document.items() if k != "other_load"}
    if isinstance(document, list):
        return [without_other_load(each) for each in document]
    return document


def isolated(jobs, *totals, **more):
    alone = policy_run("isolated", jobs, *totals, **more)
    jobs = tuple(job_run(job.job, job.iteration_s, control="cubic") for job in alone.jobs)
    return ApproachRun("isolated", alone.repeat, jobs, drops=alone.drops, link=alone.link)


def test_the_document_of_contend_is_that_of_schema_1():
    runs = [
        isolated(ISOLATED[0], 1, 2, 0, 0.4, sole_utilization=0.95),
        policy_run("reno", SHARED[0], 10, 20, 3, 0.7, sole_utilization=0.9),
        isolated(ISOLATED[1], 0, 3, 0, 0.41, 1, sole_utilization=0.94),
        policy_run("reno", SHARED[1], 13, 21, 5, 0.8, 1, sole_utilization=0.91),
        policy_run("reno", SHARED[2], 12, 22, 4, 0.75, 2, sole_utilization=0.92),
    ]
    document = json.loads(json.dumps(contend_document(contend_result(LINK, runs)), allow_nan=False))
    assert without_other_load(document) == kept("contend")
    assert [policy["other_load"] for policy in document["policies"]] == [[None] * 2, [None] * 3]


def test_the_document_of_compare_is_that_of_schema_1():
    use = LinkExcerpt("left->right", 300_000_000, 0.0, 0.005, {"a": [1, 2], "b": [3, 4]})
    runs = []
    for repeat, (alone, shared) in enumerate(zip(ISOLATED, SHARED, strict=False)):
        jobs = [job_run(name, times, marks=4, retransmits=2) for name, times in alone.items()]
        runs.append(ApproachRun("isolated", repeat, tuple(jobs)))
        servers = ("s0", "s1")
        jobs = [job_run(n, times, marks=4, retransmits=2, servers=servers) for n, times in shared.items()]
        shift = Shift("a", 0.5, 0.125)
        runs.append(ApproachRun("cassini", repeat, tuple(jobs), (0.5, 0.25), 3, (use,), (shift,)))
    scored = Measured(
        "pair", {"topology": "dumbbell", "rate_bps": 300_000_000}, tuple(runs), 0.75, Change("a", 1, 2.0)
    )
    jobs = [job_run(name, times, marks=4, retransmits=2) for name, times in SHARED[0].items()]
    unscored = Measured("unscored", {"topology": "two-tier"}, (ApproachRun("fair", 0, tuple(jobs)),))
    document = json.loads(json.dumps(compare_document(compare_result([scored, unscored])), allow_nan=False))
    assert without_other_load(document) == kept("compare")
    assert all(each["other_load"] is None for one in document["sets"] for each in one["runs"])


def test_a_document_without_the_load_of_other_programs_can_still_be_read():
    document = compare_document(from_document(kept("compare")))
    assert without_other_load(json.loads(json.dumps(document))) == kept("compare")


def measured():
    use = LinkExcerpt("left->right", 1000, 0.0, 0.005, {"a": [1, 2], "b": [3, 4]})
    jobs = (job_run("a", [0.25, 0.5], servers=("s0", "s1")), job_run("b", [0.125, 0.25]))
    shared = ApproachRun("cassini", 0, jobs, (0.5,), 3, (use,), (Shift("a", 0.5, 0.125),), other_load=0.0625)
    alone = run("isolated", a=[0.25] * 2, b=[0.125] * 2)
    return Measured("s", {"rate_bps": 1, "ecn_by": None}, (alone, shared), 0.75, Change("a", 1, 2.0))


def test_document_comes_back_as_it_was():
    document = json.loads(json.dumps(compare_document(compare_result([measured()])), allow_nan=False))
    back = from_document(document)
    assert json.loads(json.dumps(compare_document(back))) == document
    assert back.sets[0].disturbed[0].other_load == 0.0625


def test_without_isolated_runs_slowdowns_are_null_and_times_are_not():
    document = contend_document(contend_result(LINK, [policy_run("reno", {"a": [0.4, 0.6]}, 5)]))
    (policy,) = document["policies"]
    for name in ("mean_slowdown", "p99_slowdown", "steady_slowdown", "convergence_iterations"):
        assert policy[name] is None
    assert policy["jobs"][0]["slowdown"] is None
    assert policy["jobs"][0]["mean_s"] == 0.5
    assert policy["retransmits"] == 5


@pytest.mark.parametrize(
    "spoil",
    [
        lambda document: document.update(schema=2),
        lambda document: document.pop("sets"),
        lambda document: document["sets"][0].pop("runs"),
        lambda document: document["sets"][0].update(surprise=1),
        lambda document: document["sets"][0]["runs"][0]["jobs"][0].pop("marks"),
    ],
)
def test_another_document_is_refused(spoil):
    document = compare_document(compare_result([measured()]))
    spoil(document)
    with pytest.raises(UsageError, match="not a comparison"):
        from_document(document)
