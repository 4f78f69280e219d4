from fractions import Fraction

import pytest

from mltcp.core.errors import UsageError
from placement.model.throughput import Workload
from placement.traces.deadlines import DeadlineJob, DeadlineTrace, DrsMix

WORK = Workload("w", 1, 1, 3, 5, 1)


def test_seed_0_begins_as_specified():
    trace = DrsMix().trace(0)
    assert len(trace.jobs) == 89
    found = [(job.arrival_ns, job.workload.name, job.alpha) for job in trace.jobs[:2]]
    assert found == [
        (611_938_713_572, "SlowOnly", Fraction(1, 2)),
        (1_529_576_104_891, "DenseNet-161", Fraction(3, 2)),
    ]


def test_streams_are_independent():
    """Traces that differ in one parameter share the others."""
    base, urgent, fat = (DrsMix(**mix).trace(3).jobs for mix in ({}, {"urgent": 0.5}, {"fat": 1 / 3}))
    assert (
        [job.arrival_ns for job in base] == [job.arrival_ns for job in urgent] == [j.arrival_ns for j in fat]
    )
    assert [job.workload for job in base] == [job.workload for job in urgent]
    assert [job.alpha for job in base] == [job.alpha for job in fat]
    assert all(now.alpha <= before.alpha for now, before in zip(urgent, base, strict=True))


def test_twice_the_rate_is_the_same_at_twice_the_pace():
    slow, fast = DrsMix(rate=2, hours=2).trace(1).jobs, DrsMix(rate=4, hours=1).trace(1).jobs
    pairs = list(zip(slow, fast, strict=False))
    assert all(abs(a.arrival_ns - 2 * b.arrival_ns) <= 2 for a, b in pairs)


def test_deadline_of_a_priority_is_rounded_down():
    job = DeadlineJob.with_priority("j", 7, WORK, Fraction(1, 2))
    assert (WORK.alone_ns, job.deadline_ns) == (15, 7 + 7)


@pytest.mark.parametrize(
    ("mix", "message"),
    [
        ({"rate": 0}, "rate: expected more than 0"),
        ({"hours": -1}, "hours: expected more than 0"),
        ({"fat": 1.1}, "fat: expected 0 to 1"),
        ({"urgent": -0.1}, "urgent: expected 0 to 1"),
        ({"rate": 1e6, "hours": 1e3}, "rate: expected up to 1000000 jobs"),
    ],
)
def test_bad_mix(mix, message):
    with pytest.raises(UsageError, match=message):
        DrsMix(**mix)


def test_bad_jobs_and_traces():
    with pytest.raises(UsageError, match="deadline_ns: expected more than its arrival_ns 5"):
        DeadlineJob("late", 5, WORK, 5)
    with pytest.raises(UsageError, match="alpha: expected more than 0"):
        DeadlineJob.with_priority("none", 5, WORK, Fraction(0))
    job = DeadlineJob("a", 5, WORK, 6)
    with pytest.raises(UsageError, match="expected each name once, got 'a' twice"):
        DeadlineTrace("t", (job, job))
    with pytest.raises(UsageError, match="in the order of their arrival"):
        DeadlineTrace("t", (job, DeadlineJob("b", 4, WORK, 6)))
    with pytest.raises(UsageError, match="expected one or more"):
        DeadlineTrace("t", ())
