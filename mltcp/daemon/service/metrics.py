"""Serves the daemon's status as Prometheus metrics."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from mltcp.core.errors import MltcpError, NotAvailableError, UsageError, shown
from mltcp.daemon.client.status import DaemonStatus, InterfaceStatus, JobStatus

try:
    from prometheus_client import CollectorRegistry, make_wsgi_app
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
except ImportError:
    raise NotAvailableError(
        "metrics need the package prometheus_client: pip install 'mltcp[daemon]'"
    ) from None

MOST_SCRAPERS = 4
SILENCE_S = 5.0
"""How long a scraper may say nothing."""

_POLL_S = 0.5

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


class _Handler(WSGIRequestHandler):
    """Answers one scraper; one that says nothing for a while is hung up on."""

    timeout = SILENCE_S

    def log_message(self, format: str, *args: Any) -> None:
        """Scrapes are not logged."""


class _Server(ThreadingMixIn, WSGIServer):
    """Serves a few scrapers at a time; others wait in the kernel's queue, and take no thread or descriptor here."""

    daemon_threads = True
    request_queue_size = MOST_SCRAPERS

    def __init__(self, address: tuple[str, int], family: socket.AddressFamily) -> None:
        self.address_family = family
        self._free = threading.BoundedSemaphore(MOST_SCRAPERS)
        super().__init__(address, _Handler)

    def get_request(self) -> tuple[Any, Any]:
        """Accept a connection, when there is a thread for it."""
        if not self._free.acquire(timeout=_POLL_S):
            raise OSError(errno.EAGAIN, "all scrapers are served")
        try:
            return super().get_request()
        except OSError:
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve one connection, on a thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A scraper that goes away is no error."""


class MetricsServer:
    """Serves the metrics until it is closed."""

    def __init__(self, server: _Server) -> None:
        self._server = server
        self._thread = threading.Thread(target=server.serve_forever, name="mltcp-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def serve(address: str, snapshot: Snapshot) -> MetricsServer:
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
        server = _Server((str(where[0]), int(where[1])), family)
    except (OSError, socket.gaierror) as error:
        raise MltcpError(f"metrics cannot be served at {address}: {error.strerror or error}") from None
    server.set_app(make_wsgi_app(registry))
    return MetricsServer(server)


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
