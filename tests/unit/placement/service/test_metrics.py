"""The metrics of the placement service as a scrape sees them."""

import json
import re
import shutil
import subprocess
import urllib.request
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from mltcp.core.address import free_port
from mltcp.daemon.service.metrics import DAEMON_METRICS, INTERFACE_METRICS, JOB_METRICS
from placement.client.client import Client, ServiceError
from placement.policies.slot_pool import SlotPool, SlotRequest
from placement.service.counts import Histogram
from placement.service.drift import IterationTiming, overlap
from placement.service.metrics import NAMES
from placement.service.protocol import placement_pb2 as pb
from tests.unit.placement.service.serving import HALF, eventually, job, serving, two_racks

DOCS = Path(__file__).parents[4] / "docs"


@pytest.fixture
def port():
    return free_port()


def scraped(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as response:
        text = response.read().decode()
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def pair(name, policy):
    """A job with two GPUs of each of two servers."""
    return job(name, 4, profile=HALF, policy=policy, servers=["s0", "s1"], slots_per_server=2)


def test_a_scrape_counts_jobs_slots_decisions_scores_and_refused_calls(tmp_path, port):
    with serving(tmp_path, metrics=f"127.0.0.1:{port}", **two_racks()) as address, Client(address) as client:
        for name in ("a", "b"):
            client.submit(pair(name, "lwf-1+cassini"))
            eventually(lambda name=name: client.job(name).state == pb.PLACED)
        client.submit(job("long", 16, profile=HALF))
        client.submit(job("short", 1))
        eventually(lambda: client.job("short").state == pb.PLACED)
        client.release("short")
        with pytest.raises(ServiceError):
            client.submit(job("too-large", 60))
        client.change_servers(["s3"], pb.DRAINING)
        eventually(lambda: scraped(port)["mltcp_placement_servers", "draining"] == 1)
        now = eventually(
            lambda: (found := scraped(port))["mltcp_placement_jobs_over_total", "ended"] == 1 and found
        )
        assert now["mltcp_placement_jobs", "running"] == 2
        assert now["mltcp_placement_jobs", "queued"] == 1
        slots = {
            state: now["mltcp_placement_slots", *sorted(("gpu", state))]
            for state in ("held", "free", "out_of_use")
        }
        assert slots == {"held": 8, "free": 4, "out_of_use": 4}
        assert now["mltcp_placement_decision_seconds_count",] == 3
        assert now["mltcp_placement_refused_total", "invalid"] == 1
        shared = [link for metric, *link in now if metric == "mltcp_placement_link_jobs"]
        assert sorted(shared) == [["s0"], ["s1"]]
        assert now["mltcp_placement_shared_links",] == 2
        assert all(now["mltcp_placement_link_score", *link] == 1.0 for link in shared)
        assert now["mltcp_placement_oldest_wait_seconds",] > 0
        client.release("b")
        client.submit(pair("c", "lwf-1"))  # which is not scored
        eventually(lambda: client.job("c").state == pb.PLACED)
        eventually(lambda: ("mltcp_placement_link_score", "s0") not in scraped(port))


def test_jobs_that_a_restart_finds_are_counted_in_their_stages(tmp_path, port):
    with serving(tmp_path, **two_racks()) as address, Client(address) as client:
        client.submit(job("a", 8))
        client.submit(job("b", 16))
        eventually(lambda: client.job("a").state == pb.PLACED)
    with serving(tmp_path, metrics=f"127.0.0.1:{port}", **two_racks()):
        now = scraped(port)
        assert (now["mltcp_placement_jobs", "running"], now["mltcp_placement_jobs", "queued"]) == (1, 1)


def test_a_slowed_job_is_told_who_sends_with_it_on_which_link(tmp_path, port):
    with serving(tmp_path, metrics=f"127.0.0.1:{port}", **two_racks()) as address, Client(address) as client:
        for name in ("a", "b"):
            client.submit(pair(name, "lwf-1"))
            eventually(lambda name=name: client.job(name).state == pb.PLACED)
        now_ns, iteration_ns = client.clock_ns(), 150_000_000
        client.report_drift("a", 5, now_ns, iteration_ns)
        client.report_drift("b", 5, now_ns + 50_000_000, iteration_ns)
        slow = "iterations take 1.50 times as long as its profile; it sends"
        # Each is silent for 50 ms and sends for 100 ms; b begins after half of a's.
        links = ", ".join(client.job("a").links)
        assert client.job("a").seen == f"{slow} with b (50 % of the time) on {links}"
        assert client.job("a").seen in client.explain("a").summary
        eventually(lambda: scraped(port)["mltcp_placement_jobs_slowed",] == 2)
        for number in range(6, 10):
            client.report_drift("a", number, now_ns + 100_000_000 * (number - 5), 100_000_000)
        assert client.job("a").seen == ""


@given(
    st.integers(0, 10**6),
    st.integers(1, 10**4),
    st.integers(0, 10**6),
    st.integers(1, 10**4),
    st.integers(0, 10**4),
)
def test_overlap_is_what_counting_every_nanosecond_gives(began, sends, other_began, period, other_sends):
    sends, other_sends = sends % 500 + 1, min(other_sends, period)
    together = sum((at - other_began) % period < other_sends for at in range(began, began + sends))
    found = overlap(began, sends, IterationTiming(0, other_began, period), other_sends)
    assert found == pytest.approx(together / sends)


def test_a_histogram_counts_values_up_to_each_bound():
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.add(value)
    assert histogram.buckets() == [("1.0", 2), ("2.0", 3), ("+Inf", 4)]
    assert histogram.sum == 12.0


def test_each_slot_is_counted_once():
    pool = SlotPool()
    pool.add([4, 4, 4], [0, 0, 0])
    pool.occupy([0, 4], SlotRequest(2), 1)
    pool.use_outside(0, 2)
    pool.close(1)
    pool.remove(2)
    assert pool.counts() == {"held": 2, "free": 1, "outside": 2, "out_of_use": 3}


# -- what is shipped for them --------------------------------------------------------------------


def queried():
    """Every metric that the dashboard or an alert asks for."""
    texts = [(DOCS / "monitoring" / "rules.yml").read_text()]
    texts += [
        target["expr"]
        for panel in json.loads((DOCS / "monitoring" / "dashboard.json").read_text())["panels"]
        for target in panel.get("targets", ())
    ]
    return set(re.findall(r"\bmltcp_\w+", " ".join(texts)))


def test_the_dashboard_and_the_alerts_ask_for_metrics_that_there_are():
    served = NAMES | {each.name for each in (*DAEMON_METRICS, *INTERFACE_METRICS, *JOB_METRICS)}
    assert {name.removesuffix("_bucket") for name in queried()} <= served


def test_the_page_lists_every_metric_of_the_service():
    listed = set(re.findall(r"`(mltcp_placement_\w+)`", (DOCS / "monitoring.md").read_text()))
    assert listed == NAMES


def test_the_page_names_every_alert():
    alerts = set(re.findall(r"- alert: (\w+)", (DOCS / "monitoring" / "rules.yml").read_text()))
    assert alerts == set(re.findall(r"^\| `(Mltcp\w+)`", (DOCS / "monitoring.md").read_text(), re.M))


@pytest.mark.skipif(not shutil.which("promtool"), reason="needs promtool: script/setup --monitoring")
@pytest.mark.parametrize(
    "arguments",
    [
        ["check", "config", "prometheus.yml"],
        ["check", "rules", "rules.yml"],
        ["test", "rules", "rules-test.yml"],
    ],
)
def test_prometheus_accepts_the_rules_and_they_fire_when_they_should(arguments):
    done = subprocess.run(["promtool", *arguments], cwd=DOCS / "monitoring", capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
