"""Random traces of whole jobs, and checks of their outcomes, for tests."""

from fractions import Fraction
from itertools import pairwise

from hypothesis import strategies as st

from placement.model.throughput import RingAllReduce, Workload
from placement.simulator.rates.timed_job import RatesSettings
from placement.traces.deadlines import DeadlineJob, DeadlineTrace

S = 10**9
ALPHAS = (Fraction(1, 2), Fraction(1), Fraction(3, 2))
NON_PREEMPTIVE = (
    *("norm", "edf", "fifo", "themis-batch", "edf-scheme", "edf-late-last"),
    *("edf-late-last-node", "edf-late-last-scheme", "edf-efficient", "edf-rollout", "llf"),
)
DEADLINE_SCHEDULERS = (
    "drs",
    *NON_PREEMPTIVE,
    "elastic-edf",
    "elastic-mh",
    "elastic-density",
    "themis-leases",
)


@st.composite
def workloads(draw):
    """Small training runs, some of which communicate more than they compute."""
    return Workload(
        draw(st.sampled_from("abcdef")),
        draw(st.integers(1, 200_000_000)),
        draw(st.integers(1, 32)),
        draw(st.integers(1, 500_000_000)),
        draw(st.integers(1, 20_000)),
        draw(st.integers(1, 3)),
    )


@st.composite
def traces(draw, most=12, alphas=ALPHAS):
    """Traces in which jobs meet."""
    arrivals = sorted(draw(st.lists(st.integers(0, 4000), min_size=1, max_size=most)))
    jobs = []
    for number, arrival_s in enumerate(arrivals):
        workload = draw(workloads())
        alpha = draw(st.sampled_from(alphas))
        arrival_ns = arrival_s * S + draw(st.integers(0, 2))
        arrival_ns = max(arrival_ns, jobs[-1].arrival_ns if jobs else 0)
        jobs.append(
            DeadlineJob.with_priority(str(number), arrival_ns, workload, alpha)
            if alpha * workload.alone_ns >= 1
            else DeadlineJob(str(number), arrival_ns, workload, arrival_ns + 1)
        )
    return DeadlineTrace("drawn", tuple(jobs))


@st.composite
def settings(draw, costs=(0, 60)):
    """Small clusters."""
    bandwidth = draw(st.sampled_from([1, 5, 10])) * S
    return RatesSettings(
        RingAllReduce(bandwidth, bandwidth * 6 // 10),
        draw(st.integers(1, 4)),
        draw(st.integers(1, 4)),
        draw(st.sampled_from(costs)) * S,
    )


def check_gpus(outcome, nodes, per_node):
    """No GPU has two jobs at a time, and none is used that does not exist."""
    by_gpu = {}
    for span in outcome.spans:
        assert span.start_ns <= span.end_ns
        assert len(set(span.gpus)) == len(span.gpus)
        for gpu in span.gpus:
            assert 0 <= gpu < nodes * per_node
            by_gpu.setdefault(gpu, []).append((span.start_ns, span.end_ns))
    for spans in by_gpu.values():
        assert all(before[1] <= after[0] for before, after in pairwise(sorted(spans)))


def check_work(outcome, model):
    """Every job ends, and its progress over all its spans adds up to its work, up to the last nanosecond."""
    work = {job.name: Fraction(0) for job in outcome.trace.jobs}
    last_rate = {}
    for span in sorted(outcome.spans, key=lambda span: span.start_ns):
        workload = next(job.workload for job in outcome.trace.jobs if job.name == span.job)
        counts = {}
        for gpu in span.gpus:
            node = gpu // (outcome.gpus // outcome.table.placed.shape[1])
            counts[node] = counts.get(node, 0) + 1
        rate = model.samples_per_ns(workload, tuple(sorted(counts.items())))
        work[span.job] += rate * max(span.end_ns - span.start_ns - span.hold_ns, 0)
        last_rate[span.job] = rate
    for job in outcome.trace.jobs:
        total = job.workload.total_samples
        assert total <= work[job.name] < total + last_rate[job.name]


def check_no_job_waits_beside_a_free_gpu(outcome):
    """Whenever a job waits, no GPU is free."""
    starts = {}
    for span in outcome.spans:
        starts[span.job] = min(starts.get(span.job, span.start_ns), span.start_ns)
    for now_ns in {span.end_ns for span in outcome.spans} | {job.arrival_ns for job in outcome.trace.jobs}:
        used = sum(len(span.gpus) for span in outcome.spans if span.start_ns <= now_ns < span.end_ns)
        waits = any(job.arrival_ns <= now_ns < starts[job.name] for job in outcome.trace.jobs)
        assert not waits or used == outcome.gpus
