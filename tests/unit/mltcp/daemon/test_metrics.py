"""The metrics as a scrape sees them, and their documentation."""

import json
import re
import socket
import threading
import urllib.request
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mltcp.core import metrics
from mltcp.core.errors import MltcpError, UsageError
from mltcp.daemon.client.status import OTHERS, Contender, JobLoss
from mltcp.daemon.service.metrics import (
    DAEMON_METRICS,
    INTERFACE_METRICS,
    JOB_METRICS,
    LOSS_METRICS,
    serve,
)
from tests.eventually import eventually
from tests.unit.mltcp.cli.test_top import job, status

DOCS = Path(__file__).parents[4] / "docs" / "daemon.md"


def samples(told):
    server = serve("127.0.0.1:0", lambda: told)
    try:
        port = server.port
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
            text = response.read().decode()
    finally:
        server.close()
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def scraped(told):
    return {(sample.name, sample.labels.get("job_name")): sample for sample in samples(told)}


def test_a_scrape_has_every_metric_of_every_job():
    found = scraped(status(job(), job(17, "gpt", slowdown=None)))
    assert found["mltcp_job_iterations_total", "bert"].value == 120
    assert found["mltcp_job_iteration_seconds", "bert"].value == 0.4
    assert found["mltcp_job_slowdown_ratio", "bert"].value == 1.051
    assert found["mltcp_job_rate_bits_per_second", "bert"].value == 2.5e10
    assert found["mltcp_job_marks_total", "bert"].labels == {
        "job_name": "bert", "job_instance": "", "user": "alice", "how": "tc",
    }  # fmt: skip
    assert ("mltcp_job_slowdown_ratio", "gpt") not in found
    assert found["mltcp_interface_paced", None].value == 1.0
    assert found["mltcp_daemon_cpu_ratio", None].value == 0.07


def test_what_a_job_loses_has_a_series_for_each_that_takes_it():
    loss = JobLoss("eth0", 0.2, 0.01, (Contender(17, 0.15), Contender(OTHERS, 0.05)), 0.6, 1.42)
    family = {
        (sample.name, sample.labels.get("to_name")): sample
        for sample in samples(status(job(loss=loss, aside=True), job(17, "gpt")))
        if sample.labels.get("job_name") == "bert"
    }
    assert family["mltcp_job_lost_ratio", None].value == 0.2
    assert family["mltcp_job_link_demand_ratio", None].value == 1.42
    assert family["mltcp_job_stands_aside", None].value == 1
    taken = family["mltcp_job_lost_to_ratio", "gpt"]
    assert (taken.value, taken.labels["link"], taken.labels["to_user"]) == (0.15, "eth0", "alice")
    assert family["mltcp_job_lost_to_ratio", "others"].value == 0.05


def test_names_that_users_choose_break_nothing():
    name = 'a"b\\c\nd{}'
    assert scraped(status(job(name=name)))["mltcp_job_flows", name].value == 64


def test_what_json_lets_a_user_send_fails_no_scrape():
    instance = json.loads(r'"a\ud800b"')
    assert (
        scraped(status(job(instance=instance)))["mltcp_job_flows", "bert"].labels["job_instance"]
        == r"a\ud800b"
    )


def test_jobs_beyond_a_number_have_no_series_of_their_own():
    found = scraped(status(*(job(number, f"job-{number}", bytes_per_s=number) for number in range(250))))
    shown = {name for metric, name in found if metric == "mltcp_job_flows"}
    assert shown == {f"job-{number}" for number in range(50, 250)}
    assert found["mltcp_daemon_jobs", None].value == 250


@pytest.mark.parametrize(
    "address", ["9464", "127.0.0.1", ":9464", "127.0.0.1:http", "127.0.0.1:70000", "[::1]:-1"]
)
def test_what_is_no_address_is_said_in_one_line(address):
    with pytest.raises(UsageError, match=r"^metrics: expected HOST:PORT, got "):
        serve(address, status)


def test_a_port_that_is_taken_is_said_in_one_line():
    server = serve("127.0.0.1:0", status)
    try:
        address = f"127.0.0.1:{server.port}"
        with pytest.raises(
            MltcpError, match=f"metrics cannot be served at {address}: Address already in use"
        ):
            serve(address, status)
    finally:
        server.close()


def test_the_page_lists_exactly_these_metrics():
    listed = set(re.findall(r"`(mltcp_(?:job|interface|daemon)_\w+)`", DOCS.read_text()))
    assert listed == {
        metric.name for metric in (*DAEMON_METRICS, *INTERFACE_METRICS, *JOB_METRICS, *LOSS_METRICS)
    }


@contextmanager
def scrapes(**limits):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in limits.items():
            patch.setattr(metrics, name, value)
        server = serve("127.0.0.1:0", lambda: status(job()))
        try:
            yield server
        finally:
            server.close()


def scrape(server):
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=60) as response:
        assert b"mltcp_job_ranks" in response.read()


def connect(server):
    return socket.create_connection(("127.0.0.1", server.port), timeout=60)


def is_over(connection):
    with suppress(ConnectionResetError):
        return connection.recv(1) == b""
    return True


def test_scrapers_that_do_not_end_their_requests_delay_nobody_and_take_one_thread():
    with scrapes(LONGEST_S=600.0) as server, ExitStack() as stack:
        threads = threading.active_count()
        slow = [stack.enter_context(connect(server)) for _ in range(3 * metrics.MOST_CONNECTIONS)]
        for each in slow:
            with suppress(ConnectionError):  # an old one has given way
                each.send(b"GET /metrics HTTP/1.1\r\nX: ")
        for _ in range(4):
            scrape(server)
        assert threading.active_count() <= threads
        assert len(server._scrapes) <= metrics.MOST_CONNECTIONS
        assert is_over(slow[0])


def test_a_whole_request_has_a_deadline_however_often_a_byte_comes():
    with scrapes(LONGEST_S=0.3) as server, connect(server) as slow:
        slow.send(b"GET /metrics HTTP/1.1\r\nX: ")

        def is_hung_up_on():
            try:
                slow.send(b"x")
            except ConnectionError:
                return True
            return False

        eventually(is_hung_up_on)


def test_a_reply_that_is_not_read_has_the_same_deadline(monkeypatch):
    with scrapes(LONGEST_S=0.3) as server, connect(server) as slow:
        scraped_by = []

        def make_page():
            scraped_by.append(len(server._scrapes))
            return bytes(64 << 20)

        monkeypatch.setattr(server, "_make_page", make_page)
        slow.send(b"GET /metrics HTTP/1.1\r\n\r\n")
        eventually(lambda: scraped_by == [1])
        eventually(lambda: not server._scrapes)


@pytest.mark.parametrize(
    ("request_bytes", "answer"),
    [
        (b"GET /metrics HTTP/1.0\r\n\r\n", b"HTTP/1.1 200 OK"),
        (b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n", b"HTTP/1.1 200 OK"),
        (b"POST / HTTP/1.1\r\n\r\n", b"HTTP/1.1 405 "),
        (b"\xff\x00\r\n\r\n", b"HTTP/1.1 405 "),
        (b"x" * 20000, b""),
    ],
)
def test_other_requests_are_answered_or_hung_up_on(request_bytes, answer):
    with scrapes() as server:
        with connect(server) as made, suppress(ConnectionError):
            made.sendall(request_bytes)
            received = made.makefile("rb").read()
            assert received.startswith(answer)
        scrape(server)
