"""``mltcp-placement circle`` and ``profile``, as a person types them."""

import json

import pytest

from mltcp.core.demand import demand_document, load
from placement.cli.main import main
from tests.unit.placement.cassini.demands import MS, demand, up_down
from tests.unit.placement.cassini.test_capture import write


@pytest.fixture
def profiles(tmp_path):
    paths = []
    for name, shape in (("a", up_down(30, 10, 10**9)), ("b", up_down(50, 10, 10**9))):
        paths.append(tmp_path / f"{name}.json")
        paths[-1].write_text(json.dumps(demand_document(shape)))
    return [str(path) for path in paths]


def test_circle_tells_the_rotation_of_the_thesis_example(profiles, capsys):
    assert main(["circle", *profiles, "--capacity", "1gbit", "--angles", "360", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["score"], found["bound"], found["proven"]) == (1, 1, True)
    assert found["score_before"] == pytest.approx(1 - 10 / 120)
    (group,) = found["groups"]
    assert group["perimeter_s"] == pytest.approx(0.12)
    assert [job["iterations_on_circle"] for job in group["jobs"]] == [3, 2]
    assert sorted(job["rotation_degrees"] for job in group["jobs"]) == [0, 30]
    assert sorted(job["time_shift_s"] for job in group["jobs"]) == [0, 0.01]


@pytest.mark.slow
def test_circle_as_a_table_and_as_a_picture(profiles, tmp_path, capsys):
    picture = tmp_path / "circles.svg"
    assert main(["circle", *profiles, "--capacity", "1gbit", "-o", str(picture)]) == 0
    out = capsys.readouterr().out
    assert "circle of 120 ms, link of 1 Gbit/s" in out
    assert "score 1 (no time shifts have a higher one); as they are 0.9167" in out
    first = picture.read_bytes()
    assert b"<svg" in first
    assert main(["circle", *profiles, "--capacity", "1gbit", "-o", str(picture)]) == 0
    assert picture.read_bytes() == first


def test_circle_of_a_set_that_comes_with_the_package(capsys):
    assert main(["circle", "snapshot4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["capacity_bps"] == 50 * 10**9
    assert found["score"] == pytest.approx(11 / 12)
    assert len({job["name"] for job in found["groups"][0]["jobs"]}) == 2


def test_the_same_job_twice_gets_two_names(profiles, capsys):
    assert main(["circle", profiles[0], profiles[0], "--json"]) == 0
    assert [job["name"] for job in json.loads(capsys.readouterr().out)["groups"][0]["jobs"]] == ["a-1", "a-2"]


def test_jobs_without_a_common_circle_are_told_apart(profiles, tmp_path, capsys):
    other = tmp_path / "c.json"
    other.write_text(json.dumps(demand_document(up_down(47.4, 10, 10**9))))
    assert main(["circle", profiles[0], str(other)]) == 0
    out = capsys.readouterr().out
    assert "circle of 40 ms" in out
    assert "circle of 57.4 ms" in out
    assert "have no common multiple" in out
    assert main(["circle", profiles[0], str(other), "--tolerance", "0", "-o", str(tmp_path / "c.svg")]) == 2
    assert "no common multiple (a; c)" in capsys.readouterr().err


@pytest.mark.slow
def test_profile_writes_what_circle_reads(tmp_path, capsys):
    shape = demand((60, 0), (40, 16_000_000))
    capture, profile = tmp_path / "job.pcap", tmp_path / "job.json"
    write(capture, shape)
    assert main(["profile", str(capture), "-o", str(profile)]) == 0
    out = capsys.readouterr().out
    assert "10.0.0.1: iterations of 100 ms" in out
    assert "silent" in out
    name, found = load(profile)
    assert name == "job"
    assert found.iteration_ns == pytest.approx(100 * MS, rel=0.005)
    assert main(["circle", str(profile), str(profile), "--capacity", "16mbit"]) == 0
    assert main(["profile", str(capture), "--json"]) == 0
    assert json.loads(profile.read_text())["phases"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["circle", "absent.json"], "absent.json: "),
        (["circle", "snapshot1", "--capacity", "fast"], "--capacity: expected a number with unit"),
        (["circle", "snapshot1", "--angles", "1"], "angles: expected 2 to 36000, got 1"),
        (["circle", "snapshot1", "--tolerance", "2"], "tolerance: expected 0 <= tolerance < 1, got 2.0"),
        (["circle", "snapshot1", "-o", "picture.txt"], "picture.txt"),
        (["circle"], "JOB"),
        (["profile", "absent.pcap"], "absent.pcap"),
        (
            ["profile", "absent.pcap", "--bin-ms", "0"],
            "--bin-ms: expected a number between 0.001 and 1000, got 0",
        ),
        (
            ["profile", "absent.pcap", "--bin-ms", "inf"],
            "--bin-ms: expected a number between 0.001 and 1000, got inf",
        ),
    ],
)
def test_bad_usage_is_one_line_and_status_2(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("mltcp-placement: ")
    assert said.err.count("\n") == 1
    assert message in said.err
