import json

import pytest

from placement.cli import main as cli
from placement.traces import sets


def run(capsys, *arguments):
    status = cli.main(["schedule", *arguments])
    return status, *capsys.readouterr()


@pytest.mark.slow
def test_json_has_all_runs_and_the_gains_beside_the_thesis(capsys):
    arguments = [
        "--trace",
        "dynamic",
        "--schedulers",
        "themis,themis+cassini,ideal",
        "--seeds",
        "0:2",
        "--json",
    ]
    status, out, err = run(capsys, *arguments)
    assert (status, err) == (0, "")
    document = json.loads(out)
    assert document["seeds"] == [0, 1]
    assert (document["gpus"], document["switches"]) == (24, 13)
    assert {name: len(runs) for name, runs in document["schedulers"].items()} == {
        "themis": 2,
        "themis+cassini": 2,
        "ideal": 2,
    }
    (gain,) = document["gains"]
    assert gain["thesis"] == {"mean": 1.5, "p99": 2.2}
    ratios = [
        plain["iteration_s"]["mean"] / augmented["iteration_s"]["mean"]
        for plain, augmented in zip(
            document["schedulers"]["themis"], document["schedulers"]["themis+cassini"], strict=True
        )
    ]
    assert gain["mean"] == pytest.approx(sum(ratios) / 2)
    jobs = document["schedulers"]["ideal"][0]["jobs"]
    assert [job["name"] for job in jobs] == [job.name for job in sets.load("dynamic").jobs]


def test_the_table_of_a_file(capsys, tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(sets.load("snapshot1").document()))
    status, out, _ = run(capsys, "--trace", str(path), "--schedulers", "random,ideal", "--seeds", "3")
    assert status == 0
    assert "random" in out
    assert "ideal" in out
    assert "1 seed," in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--topology", "dumbbell:2", "--racks", "3"], "--racks: expected without --topology"),
        (["--topology", "ring:3"], "topology: expected KIND"),
        (["--schedulers", "themis,best"], "scheduler: expected themis, themis+cassini, pollux"),
        (["--schedulers", "themis,themis"], "got themis twice"),
        (["--schedulers", ","], "one or more"),
        (["--seeds", "5:2"], "--seeds: expected 1 to 10000 seeds, got '5:2'"),
        (["--seeds", "x"], "--seeds: expected a number or a range such as 0:100, got 'x'"),
        (["--trace", "nothing"], "got 'nothing'"),
        (["--racks", "0"], "got 0 racks"),
        (["--load", "0"], "load 0.0"),
        (["--noise", "2"], "noise: expected 0 <= noise < 1, got 2"),
        (["--congestion-loss", "1"], "congestion_loss: expected 0 <= congestion_loss < 1, got 1"),
        (["--nic-gbps", "nan"], "--nic-gbps: expected 0 to 1000000, got nan"),
        (["--lease", "0"], "lease_ns: expected more than 0, got 0"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(capsys, arguments, message):
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
