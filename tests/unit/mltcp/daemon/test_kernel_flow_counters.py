"""The sums over a job's flows, of which the kernel tells the counts."""

from types import SimpleNamespace

from mltcp.daemon.jobs.job import PAUSE_FLOWS
from mltcp.daemon.mechanisms.flow_counters import KernelFlowCounters
from mltcp.ebpf.layout import FlowCounts
from mltcp.pacing.sock_diag import FlowKey


def job_with(*cookies):
    """A job, and its counters, to which flows with these cookies were passed."""
    job, counters = SimpleNamespace(flows={}, acked_bytes=0, retransmits=0, marks=0), KernelFlowCounters()
    for each in cookies:
        pass_flow(job, counters, each)
    return job, counters


def pass_flow(job, counters, cookie):
    flow = FlowKey(2, ("127.0.0.1", 1), ("127.0.0.1", cookie), cookie)
    job.flows[flow] = None
    counters.passed(flow)


def update(job, counters, now):
    for _ in counters.update(job, now, counters.before_reading()):
        pass


def counts(cookie, acked, retransmits=0, marks=0):
    return FlowCounts(cookie, 1, acked, retransmits, marks)


def sums(job):
    return job.acked_bytes, job.retransmits, job.marks


def test_a_flow_that_was_passed_is_counted_from_then_on_and_one_of_the_cgroup_from_its_beginning():
    job, counters = job_with(7)
    update(job, counters, [counts(7, 1000, 5, 50), counts(8, 200, 1, 2)])
    assert sums(job) == (200, 1, 2)
    update(job, counters, [counts(7, 1300, 6, 50), counts(8, 250, 1, 4)])
    assert sums(job) == (550, 2, 4)


def test_closed_flows_are_forgotten_and_what_they_sent_stays():
    job, counters = job_with(7)
    update(job, counters, [counts(7, 0), counts(8, 200)])
    assert counters.flow_count() == 2
    update(job, counters, [counts(8, 200)])
    assert not job.flows
    assert counters.flow_count() == 1
    update(job, counters, [])
    assert counters.flow_count() == 0
    assert sums(job) == (200, 0, 0)


def test_flows_that_were_passed_since_the_last_update_are_open():
    _, counters = job_with(7)
    assert counters.flow_count() == 1


def test_counters_of_32_bits_wrap():
    job, counters = job_with()
    update(job, counters, [counts(8, 0, 0xFFFFFFFF, 0xFFFFFFFE)])
    update(job, counters, [counts(8, 0, 1, 1)])
    assert sums(job) == (0, 0xFFFFFFFF + 2, 0xFFFFFFFE + 3)


def test_a_flow_that_is_passed_while_the_counts_are_read_is_open_and_counted_from_then_on():
    job, counters = job_with(7)
    expected = counters.before_reading()
    reading = counters.update(job, [counts(7, 10)], expected)
    pass_flow(job, counters, 8)
    assert list(reading) == []
    assert (len(job.flows), counters.flow_count()) == (2, 2)
    update(job, counters, [counts(7, 10), counts(8, 1000)])
    assert sums(job) == (0, 0, 0)
    update(job, counters, [counts(8, 1001)])
    assert (sums(job), len(job.flows), counters.flow_count()) == ((1, 0, 0), 1, 1)


def test_the_update_of_many_flows_pauses():
    job, counters = job_with()
    many = [counts(each, each) for each in range(10 * PAUSE_FLOWS)]
    assert len(list(counters.update(job, many, frozenset()))) == 10
    assert counters.flow_count() == len(many)
