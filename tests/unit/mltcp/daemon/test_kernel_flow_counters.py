"""The sums over a job's flows, of which the kernel tells the counts."""

from types import SimpleNamespace

from mltcp.daemon.mechanisms.kernel_flow_counters import KernelFlowCounters
from mltcp.ebpf.layout import FlowCounts
from mltcp.pacing.sock_diag import FlowKey


def job_with(*cookies):
    passed = {FlowKey(2, ("127.0.0.1", 1), ("127.0.0.1", each), each): None for each in cookies}
    return SimpleNamespace(flows=passed, acked_bytes=0, retransmits=0, marks=0)


def counts(cookie, acked, retransmits=0, marks=0):
    return FlowCounts(cookie, 1, acked, retransmits, marks)


def sums(job):
    return job.acked_bytes, job.retransmits, job.marks


def test_a_flow_that_was_passed_is_counted_from_then_on_and_one_of_the_cgroup_from_its_beginning():
    job, counters = job_with(7), KernelFlowCounters()
    counters.update(job, [counts(7, 1000, 5, 50), counts(8, 200, 1, 2)])
    assert sums(job) == (200, 1, 2)
    counters.update(job, [counts(7, 1300, 6, 50), counts(8, 250, 1, 4)])
    assert sums(job) == (550, 2, 4)


def test_closed_flows_are_forgotten_and_what_they_sent_stays():
    job, counters = job_with(7), KernelFlowCounters()
    counters.update(job, [counts(7, 0), counts(8, 200)])
    assert counters.flow_count(job) == 2
    counters.update(job, [counts(8, 200)])
    assert not job.flows
    assert counters.flow_count(job) == 1
    counters.update(job, [])
    assert counters.flow_count(job) == 0
    assert sums(job) == (200, 0, 0)


def test_flows_that_were_passed_since_the_last_update_are_open():
    job, counters = job_with(7), KernelFlowCounters()
    assert counters.flow_count(job) == 1


def test_counters_of_32_bits_wrap():
    job, counters = job_with(), KernelFlowCounters()
    counters.update(job, [counts(8, 0, 0xFFFFFFFF, 0xFFFFFFFE)])
    counters.update(job, [counts(8, 0, 1, 1)])
    assert sums(job) == (0, 0xFFFFFFFF + 2, 0xFFFFFFFE + 3)
