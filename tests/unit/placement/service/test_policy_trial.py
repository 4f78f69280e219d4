"""A candidate beside the live policy: evidence, records, promotion by it or by an operator, and roll-back."""

import json
import random
import sqlite3

import pytest

from placement.cli.main import main
from placement.client.client import Client, ServiceError
from placement.engines.hosts import Host
from placement.engines.local import LocalEngine
from placement.model.job_speed import TableSpeed
from placement.service import decision_records
from placement.service.context import ServiceRules
from placement.service.decision_records import Evidence, Weighed
from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol.speeds import speed_message
from tests.unit.placement.service.deciding.failing_policies import HERE
from tests.unit.placement.service.serving import eventually, serving

SERVER = pb.Server(name="a", cpu_slots=1, nic_bps=10**9, switch="r")
COMMAND = ("sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.1; done")


def test_evidence_is_looked_at_after_64_128_256_decisions():
    better = [Weighed(-0.1, 0)]
    assert not Evidence.of(better * 63, None).blocks
    for decisions, seen in ((64, 64), (127, 64), (128, 128), (255, 128), (256, 256)):
        found = Evidence.of(better * decisions, None)
        assert (found.blocks * decision_records.BLOCK, found.decisions) == (seen, decisions)
        assert (found.mean, found.half) == (pytest.approx(-0.1), pytest.approx(0))
        assert found.favours_candidate


@pytest.mark.parametrize(
    ("difference", "late", "progress", "favours"),
    [
        (-0.1, 0, 1.0, True),
        (-0.1, 1, 1.0, False),
        (0.1, 0, 1.0, False),
        (0.0, 0, 1.0, False),
        (-0.1, 0, 0.4, False),
    ],
)
def test_a_candidate_is_better_if_jobs_end_sooner_and_none_late_and_speeds_are_right(
    difference, late, progress, favours
):
    assert Evidence.of([Weighed(difference, late)] * 64, progress).favours_candidate is favours


def test_a_candidate_that_is_as_good_is_seldom_taken_for_better():
    """Four looks, each wrong in 2.5 % of trials if nothing depends on anything; blocks make up for what does."""
    drawn, wrong = random.Random(1), 0
    for _ in range(200):
        noise, weighed = 0.0, []
        for _ in range(512):
            noise = 0.6 * noise + drawn.gauss(0, 0.1)
            weighed.append(Weighed(noise, 0))
        wrong += any(Evidence.of(weighed[:count], None).favours_candidate for count in (64, 128, 256, 512))
    assert wrong <= 200 * 0.15


@pytest.fixture
def soon(monkeypatch, tmp_path):
    """Evidence after four decisions; the file that turns the policies round."""
    monkeypatch.setattr(decision_records, "BLOCK", 2)
    monkeypatch.setattr(decision_records, "LEAST_BLOCKS", 2)
    monkeypatch.setenv("TURNED", str(tmp_path / "turned"))
    return tmp_path / "turned"


def started(directory, promote=""):
    engine = LocalEngine((Host("a", "127.0.0.1", "lo", slots=1),), directory / "logs")
    rules = ServiceRules(
        f"{HERE}longest_first",
        **{"grace_s": 30, "restart_cost_s": 0.1, "round_s": 0.25, "decision_limit_s": 10},
        shadow=f"{HERE}shortest_first",
        promote=promote,
    )
    return serving(directory, servers=(SERVER,), rules=rules, engine=engine)


def submit(client, name, iterations):
    speed = speed_message(TableSpeed((10**9,)))
    client.submit(
        pb.Job(id=name, cpu_slots=1, iterations=iterations, speed=speed, elastic=True, command=COMMAND)
    )


@pytest.mark.slow
def test_a_better_candidate_is_promoted_stays_so_and_is_rolled_back_when_the_evidence_turns(tmp_path, soon):
    with started(tmp_path, "allow") as address, Client(address) as client:
        submit(client, "long", 10**6)
        submit(client, "short", 1000)
        decisions = eventually(lambda: (found := client.status().decisions).switched and found)
        assert decisions.live.endswith("shortest_first")
        assert "promoted: " in decisions.switched
        assert "by evidence; jobs end -" in decisions.switched
        eventually(lambda: client.job("short").state == pb.PLACED)
        assert client.job("short").policy.endswith("shortest_first")
    with started(tmp_path, "allow") as address, Client(address) as client:
        assert client.status().decisions.live.endswith("shortest_first")
        soon.touch()
        decisions = eventually(
            lambda: "rolled back: " in (found := client.status().decisions).switched and found
        )
        assert decisions.live.endswith("longest_first")
    with sqlite3.connect(tmp_path / "state.db") as database:
        rows = database.execute(
            "SELECT event, policy, message, would, difference, expected_s, advanced_s FROM records ORDER BY number"
        ).fetchall()
    assert [row[0] for row in rows if row[0]] == ["promoted", "rolled back"]
    known = [row for row in rows if row[4] is not None]
    document = json.loads(known[0][2])
    assert {job["job"] for job in document["jobs"]} <= {"long", "short"}
    assert any(row[4] == pytest.approx(-0.5, abs=0.02) for row in known)
    assert any(row[5] == pytest.approx(row[6], rel=0.5) for row in known if row[5])


@pytest.mark.slow
def test_an_operator_promotes_what_evidence_favours_and_takes_it_back(tmp_path, soon, monkeypatch, capsys):
    with started(tmp_path) as address, Client(address) as client:
        submit(client, "long", 10**6)
        submit(client, "short", 1000)
        monkeypatch.setenv("MLTCP_PLACEMENT", address)
        eventually(lambda: "mltcp-placement promote" in client.status().decisions.shadow.evidence)
        assert client.status().decisions.live.endswith("longest_first")
        assert "shortest_first would have given it " in client.explain("short").summary
        assert main(["promote"]) == 0
        assert "shortest_first decides now" in capsys.readouterr().out
        with pytest.raises(ServiceError, match="back: expected a shadow that is not live yet"):
            client.promote()
        assert main(["promote", "--back"]) == 0
        assert main(["status"]) == 0
        assert "rolled back: " in capsys.readouterr().out


def test_what_cannot_be_promoted_is_refused(tmp_path, capsys):
    with serving(tmp_path) as address, Client(address) as client:
        with pytest.raises(ServiceError, match="back: expected a service with a shadow"):
            client.promote()
    arguments = [
        "serve",
        "--policy",
        "elastic-mh",
        "--engine",
        "local",
        "--promote",
        "allow",
        "--round",
        "5s",
    ]
    assert main([*arguments, "--address", f"unix:{tmp_path}/t", "--state", str(tmp_path / "t.db")]) == 2
    assert "--promote: expected --shadow with it, got allow alone" in capsys.readouterr().err
