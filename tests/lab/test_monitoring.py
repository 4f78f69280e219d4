"""The dashboard and the alerts against a real Prometheus, fed by a real daemon and placement service with real jobs."""

import re
import shutil
from pathlib import Path

import pytest

from docs.draw_monitoring import monitored, panels, queries
from tests.eventually import eventually

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(not shutil.which("prometheus"), reason="needs prometheus: script/setup --monitoring"),
]

NEVER_HERE = "mltcp_placement_fallbacks_total"
"""The service of these tests has no fallback."""


@pytest.fixture(scope="module")
def where():
    with monitored(iterations=35) as found:
        eventually(lambda: value(found, "min(mltcp_job_iterations_total)", least=8), 120)
        eventually(lambda: value(found, "mltcp_placement_agents", least=2), 60)
        eventually(lambda: value(found, "count(mltcp_job_link_demand_ratio offset 2s)", least=2), 60)
        yield found


def value(where, query, least=None):
    result = where.ask("query", query=query)["result"]
    assert len(result) <= 1, f"{query}: expected one value, got {result}"
    found = float(result[0]["value"][1]) if result else None
    return found if least is None else found is not None and found >= least


def test_every_query_of_the_dashboard_has_values(where):
    asked = [query for panel in panels() for query, _ in queries(panel) if NEVER_HERE not in query]
    empty = [
        query
        for query in asked
        if not where.ask("query", query=f"last_over_time(({query})[60s:1s])")["result"]
    ]
    assert len(asked) > 20
    assert empty == []


def test_every_alert_is_evaluated_without_an_error(where):
    def rules():
        found = [rule for group in where.ask("rules")["groups"] for rule in group["rules"]]
        return all(rule["health"] != "unknown" for rule in found) and found

    found = eventually(rules)
    assert len(found) == len(re.findall("- alert:", Path("docs/monitoring/rules.yml").read_text()))
    assert [rule["name"] for rule in found if rule["health"] != "ok"] == []


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ('mltcp_placement_jobs{stage="running"}', 2),
        ('mltcp_placement_jobs{stage="queued"}', 1),
        ('mltcp_placement_slots{kind="gpu", state="held"}', 4),
        ('mltcp_placement_slots{kind="gpu", state="free"}', 4),
        ('mltcp_placement_refused_total{reason="invalid"}', 1),
        ('mltcp_placement_link_jobs{link="rack0"}', 2),
        ("mltcp_placement_decision_seconds_count", 2),
        ("mltcp_placement_accepts_jobs", 1),
        ("mltcp_daemon_jobs", 2),
        ("sum(mltcp_interface_paced)", 1),
    ],
)
def test_the_values_are_those_of_what_runs(where, query, expected):
    assert value(where, query) == expected
