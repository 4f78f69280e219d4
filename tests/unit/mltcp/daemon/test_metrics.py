"""The metrics as a scrape sees them, and their documentation."""

import json
import re
import socket
import threading
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mltcp.core.errors import MltcpError, UsageError
from mltcp.daemon.service.metrics import (
    DAEMON_METRICS,
    INTERFACE_METRICS,
    JOB_METRICS,
    MOST_SCRAPERS,
    serve,
)
from tests.eventually import eventually
from tests.unit.mltcp.cli.test_top import job, status

DOCS = Path(__file__).parents[4] / "docs" / "daemon.md"


def scraped(told):
    server = serve("127.0.0.1:0", lambda: told)
    try:
        port = server._server.server_port
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
            text = response.read().decode()
    finally:
        server.close()
    return {
        (sample.name, sample.labels.get("job")): sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_scrape_has_every_metric_of_every_job():
    found = scraped(status(job(), job(17, "gpt", slowdown=None)))
    assert found["mltcp_job_iterations_total", "bert"].value == 120
    assert found["mltcp_job_iteration_seconds", "bert"].value == 0.4
    assert found["mltcp_job_slowdown_ratio", "bert"].value == 1.051
    assert found["mltcp_job_rate_bits_per_second", "bert"].value == 2.5e10
    assert found["mltcp_job_marks_total", "bert"].labels == {
        "job": "bert", "instance": "", "user": "alice", "how": "tc",
    }  # fmt: skip
    assert ("mltcp_job_slowdown_ratio", "gpt") not in found
    assert found["mltcp_interface_paced", None].value == 1.0
    assert found["mltcp_daemon_cpu_ratio", None].value == 0.07


def test_names_that_users_choose_break_nothing():
    name = 'a"b\\c\nd{}'
    assert scraped(status(job(name=name)))["mltcp_job_flows", name].value == 64


def test_what_json_lets_a_user_send_fails_no_scrape():
    instance = json.loads(r'"a\ud800b"')
    assert (
        scraped(status(job(instance=instance)))["mltcp_job_flows", "bert"].labels["instance"] == r"a\ud800b"
    )


@pytest.mark.parametrize(
    "address", ["9464", "127.0.0.1", ":9464", "127.0.0.1:http", "127.0.0.1:70000", "[::1]:-1"]
)
def test_what_is_no_address_is_said_in_one_line(address):
    with pytest.raises(UsageError, match=r"^metrics: expected HOST:PORT, got "):
        serve(address, status)


def test_a_port_that_is_taken_is_said_in_one_line():
    server = serve("127.0.0.1:0", status)
    try:
        address = f"127.0.0.1:{server._server.server_port}"
        with pytest.raises(
            MltcpError, match=f"metrics cannot be served at {address}: Address already in use"
        ):
            serve(address, status)
    finally:
        server.close()


def test_the_page_lists_exactly_these_metrics():
    listed = set(re.findall(r"`(mltcp_(?:job|interface|daemon)_\w+)`", DOCS.read_text()))
    assert listed == {metric.name for metric in (*DAEMON_METRICS, *INTERFACE_METRICS, *JOB_METRICS)}


def test_scrapers_that_say_nothing_take_no_more_than_a_few_threads():
    server = serve("127.0.0.1:0", lambda: status(job()))
    try:
        port = server._server.server_port
        before = threading.active_count()
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(MOST_SCRAPERS)]
        eventually(lambda: threading.active_count() >= before + MOST_SCRAPERS)
        more = [socket.socket() for _ in range(20)]
        for each in more:
            each.setblocking(False)
            each.connect_ex(("127.0.0.1", port))
        assert threading.active_count() <= before + MOST_SCRAPERS
        for each in (*silent, *more):
            each.close()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as response:
            assert b"mltcp_job_ranks" in response.read()
        assert threading.active_count() <= before + MOST_SCRAPERS
    finally:
        server.close()
