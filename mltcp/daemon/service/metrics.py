"""The daemon's status as Prometheus metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import nlargest
from typing import Any

from mltcp.core.metrics import Metric, ScrapeServer, families
from mltcp.core.metrics import serve as serve_metrics
from mltcp.daemon.client.status import Contender, DaemonStatus, InterfaceStatus, JobStatus

JOB_LABELS = ("job_name", "job_instance", "user", "how")
"""Not job and instance, which Prometheus gives its targets."""

INTERFACE_LABELS = ("interface",)
MOST_JOBS = 200
"""The number of jobs with metrics of their own, those that send most; users choose names, and every one is a series."""

JOB_METRICS = (
    Metric("mltcp_job_ranks", "Processes of the job on this host.", lambda job: job.ranks),
    Metric("mltcp_job_flows", "TCP connections of the job on this host.", lambda job: job.flows),
    Metric(
        "mltcp_job_flows_left_alone",
        "Of these, those that another program has given other settings.",
        lambda job: job.left_alone,
    ),
    Metric("mltcp_job_iterations_total", "Iterations finished.", lambda job: job.iterations, counts=True),
    Metric("mltcp_job_iteration_seconds", "The last iteration's time.", lambda job: job.iteration_s),
    Metric(
        "mltcp_job_typical_iteration_seconds",
        "The median time of the last fifteen iterations.",
        lambda job: job.typical_iteration_s,
    ),
    Metric("mltcp_job_slowdown_ratio", "Typical over best iteration time.", lambda job: job.slowdown),
    Metric(
        "mltcp_job_lost_ratio",
        "The part of its time that jobs on the same link of this host have taken.",
        lambda job: job.loss and job.loss.lost,
    ),
    Metric(
        "mltcp_job_link_demand_ratio",
        "What the jobs on that link ask for, over what it has.",
        lambda job: job.loss and job.loss.link_demand,
    ),
    Metric(
        "mltcp_job_stands_aside",
        "1 if its F is 1, since the jobs on its link ask for too much.",
        lambda job: float(job.aside),
    ),
    Metric(
        "mltcp_job_bytes_ratio", "How far the job is in its iteration, 0 to 1.", lambda job: job.bytes_ratio
    ),
    Metric("mltcp_job_factor", "F of bytes_ratio, as in force now.", lambda job: job.factor),
    Metric(
        "mltcp_job_rate_bits_per_second", "The rate of its class, if it is paced.", lambda job: job.rate_bps
    ),
    Metric(
        "mltcp_job_sent_bytes_per_second", "Acknowledged in the last second.", lambda job: job.bytes_per_s
    ),
    Metric("mltcp_job_retransmits_total", "Segments sent again.", lambda job: job.retransmits, counts=True),
    Metric(
        "mltcp_job_marks_total", "Segments that came back ECN-marked.", lambda job: job.marks, counts=True
    ),
)

LOSS_LABELS = (*JOB_LABELS, "link", "to_name", "to_instance", "to_user")
LOSS_METRICS = (
    Metric(
        "mltcp_job_lost_to_ratio",
        "Of mltcp_job_lost_ratio, what one job has taken.",
        lambda loss: loss[1].lost,
    ),
)

INTERFACE_METRICS = (
    Metric("mltcp_interface_paced", "1 if jobs are paced there.", lambda each: float(each.state == "paced")),
    Metric("mltcp_interface_line_rate_bits_per_second", "Its line rate.", lambda each: each.line_rate_bps),
)

DAEMON_METRICS = (
    Metric("mltcp_daemon_uptime_seconds", "Since the daemon began.", lambda status: status.uptime_s),
    Metric("mltcp_daemon_jobs", "Jobs of this host.", lambda status: len(status.jobs)),
    Metric("mltcp_daemon_connections", "Connections to its socket.", lambda status: status.connections),
    Metric("mltcp_daemon_cpu_ratio", "Its share of one core.", lambda status: status.daemon_cpu),
    Metric(
        "mltcp_daemon_control_cpu_ratio", "Of that, the control loop's.", lambda status: status.control_cpu
    ),
    Metric("mltcp_daemon_kernel_jobs", "Entries of jobs in the kernel.", lambda status: status.kernel_jobs),
    Metric(
        "mltcp_daemon_refused_jobs_total",
        "Jobs that found no space in the kernel.",
        lambda status: status.refused_jobs,
        counts=True,
    ),
    Metric(
        "mltcp_daemon_outside_changes_total",
        "Changes of other programs to jobs' flows and paced interfaces.",
        lambda status: status.changes_noticed,
        counts=True,
    ),
)


def serve(address: str, snapshot: Callable[[], DaemonStatus]) -> ScrapeServer:
    """Serve the status at HOST:PORT; `snapshot` is called on a thread for each scrape. Errors: see `core.metrics`."""
    return serve_metrics(address, lambda: collect(snapshot()))


def collect(status: DaemonStatus) -> Iterator[Any]:
    """The current value of every metric."""
    yield from families(DAEMON_METRICS, (), [status], lambda each: ())
    yield from families(INTERFACE_METRICS, INTERFACE_LABELS, status.interfaces, _of_interface)
    shown = nlargest(MOST_JOBS, status.jobs, key=lambda job: job.bytes_per_s)
    yield from families(JOB_METRICS, JOB_LABELS, shown, _of_job)
    jobs = {job.number: job for job in status.jobs}
    losses = ((job, to, jobs.get(to.number)) for job in shown if job.loss for to in job.loss.to)
    yield from families(LOSS_METRICS, LOSS_LABELS, losses, _of_loss)


def _of_job(job: JobStatus) -> tuple[str, ...]:
    return job.job, job.instance, job.user, job.how


def _of_loss(loss: tuple[JobStatus, Contender, JobStatus | None]) -> tuple[str, ...]:
    job, _, other = loss
    to = ("others", "", "") if other is None else (other.job, other.instance, other.user)
    return *_of_job(job), job.loss.link if job.loss else "", *to


def _of_interface(interface: InterfaceStatus) -> tuple[str, ...]:
    return (interface.name,)
