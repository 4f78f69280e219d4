"""Runs of comparisons with given figures, for tests."""

from bench.compare.results.figures import pooled_baselines
from bench.compare.results.results import compare_result, set_result
from bench.compare.results.runs import ApproachRun, JobRun, LinkTotals, Measured


def job_run(name, times, began=0.0, arrival=0.0, control="cubic", **more):
    starts = [began + sum(times[:index]) for index in range(len(times))]
    values = {"marks": 0, "retransmits": 0, **more}
    return JobRun(name, control, tuple(times), tuple(starts), arrival, starts[-1] + times[-1], **values)


def run(approach, repeat=0, decisions_s=(), **jobs):
    return ApproachRun(approach, repeat, tuple(job_run(n, t) for n, t in jobs.items()), decisions_s)


def policy_run(policy, jobs, retransmits=0, ecn_marks=0, drops=0, utilization=0.5, repeat=0, **more):
    """A run of jobs that share one link, under the congestion control of the policy's name."""
    totals = LinkTotals(retransmits, ecn_marks, utilization, more.pop("sole_utilization", None))
    job_runs = tuple(job_run(name, times, control=policy) for name, times in jobs.items())
    return ApproachRun(policy, repeat, job_runs, (), drops, link=totals, **more)


def result(*runs, **more):
    (one,) = compare_result([Measured("set", {"rate_bps": 1}, runs, **more)]).sets
    return one


def contend_result(link, runs):
    """The result of `contend`: without a name, all repeats against one baseline."""
    return set_result(Measured("", link, tuple(runs)), pooled_baselines)
