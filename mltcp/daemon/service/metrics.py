"""Serves the daemon's status as Prometheus metrics."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from mltcp.core.errors import MltcpError, NotAvailableError, UsageError, shown
from mltcp.daemon.client.status import DaemonStatus, InterfaceStatus, JobStatus
from mltcp.daemon.service.scrape_server import ScrapeServer

try:
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
except ImportError:
    raise NotAvailableError(
        "metrics need the package prometheus_client: pip install 'mltcp[daemon]'"
    ) from None

JOB_LABELS = ("job", "instance", "user", "how")
INTERFACE_LABELS = ("interface",)

Snapshot = Callable[[], DaemonStatus]


@dataclass(frozen=True)
class Metric:
    """A metric: its name, its help text, and the function of its value; None is omitted."""

    name: str
    help: str
    value: Callable[[Any], float | None]
    counts: bool = False


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

INTERFACE_METRICS = (
    Metric("mltcp_interface_paced", "1 if jobs are paced there.", lambda each: float(each.state == "paced")),
    Metric("mltcp_interface_line_rate_bits_per_second", "Its line rate.", lambda each: each.line_rate_bps),
)

DAEMON_METRICS = (
    Metric("mltcp_daemon_uptime_seconds", "Since the daemon began.", lambda status: status.uptime_s),
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


def serve(address: str, snapshot: Snapshot) -> ScrapeServer:
    """Serve metrics at HOST:PORT on a thread, which calls `snapshot` for each scrape.

    Raises:
        UsageError: the address is malformed.
        MltcpError: the address cannot be listened at.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"metrics: expected HOST:PORT, got {shown(address)}")
    registry = CollectorRegistry()
    registry.register(_Collector(snapshot))
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        family, _, _, _, where = found[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(where)
            return ScrapeServer(listener, lambda: generate_latest(registry), CONTENT_TYPE_LATEST)
        except OSError:
            listener.close()
            raise
    except (OSError, socket.gaierror) as error:
        raise MltcpError(f"metrics cannot be served at {address}: {error.strerror or error}") from None


class _Collector:
    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def describe(self) -> list[Any]:
        """No metrics are collected at registration."""
        return []

    def collect(self) -> Iterator[Any]:
        """The current value of every metric."""
        status = self._snapshot()
        yield from _families(DAEMON_METRICS, (), [status], lambda each: ())
        yield from _families(INTERFACE_METRICS, INTERFACE_LABELS, status.interfaces, _of_interface)
        yield from _families(JOB_METRICS, JOB_LABELS, status.jobs, _of_job)


def _families(
    metrics: Iterable[Metric],
    labels: tuple[str, ...],
    things: Iterable[Any],
    labelled: Callable[[Any], tuple[str, ...]],
) -> Iterator[Any]:
    for metric in metrics:
        family = (CounterMetricFamily if metric.counts else GaugeMetricFamily)(
            metric.name, metric.help, labels=labels
        )
        for thing in things:
            value = metric.value(thing)
            if value is not None:
                family.add_metric(labelled(thing), value)
        yield family


def _of_job(job: JobStatus) -> tuple[str, ...]:
    return _text(job.job), _text(job.instance), _text(job.user), job.how


def _of_interface(interface: InterfaceStatus) -> tuple[str, ...]:
    return (_text(interface.name),)


def _text(value: str) -> str:
    """Escape lone surrogates, which JSON lets a user send and which would fail the whole scrape."""
    return value.encode(errors="backslashreplace").decode()
