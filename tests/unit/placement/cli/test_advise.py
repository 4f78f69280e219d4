"""`mltcp-placement advise`: its document and table, jobs of a running service, and what it refuses."""

import json

import pytest

from placement.cli import main as cli
from placement.client.client import Client
from tests.unit.placement.service.serving import HALF, job, placed, serving, two_racks

FITTING = "vgg16:dp=2,megabytes=20,compute_ms=30"
ON_DUMBBELL = ("--topology", "dumbbell:2,rate=10gbit,delay_us=5")


def run(capsys, *arguments):
    status = cli.main(["advise", *arguments])
    return status, *capsys.readouterr()


def test_the_document_of_two_jobs_that_fit(capsys):
    status, out, err = run(capsys, "--jobs", f"{FITTING},{FITTING}", *ON_DUMBBELL, "--json")
    assert (status, err) == (0, "")
    document = json.loads(out)
    assert (document["schema"], document["control"], document["meet_nobody"]) == (1, "cubic", [])
    (found,) = document["sets"]
    assert found["jobs"] == ["vgg16-1", "vgg16-2"]
    assert found["advice"] in ("run MLTCP", "shift")
    assert found["link"] in ("left->right", "right->left")
    assert found["score"] == 1
    options = [(each["advice"], each["how"]) for each in found["options"]]
    assert options[:3] == [
        ("leave", "cubic"),
        ("run MLTCP", "mltcp_cubic"),
        ("run MLTCP", "mltcp_cubic@remaining"),
    ]
    assert {word for word, _ in options} >= {"shift", "prioritise"}
    assert set(found["not_there"]) == {"move"}
    for each in found["options"]:
        assert set(each["slowdowns"]) == {"vgg16-1", "vgg16-2"}


def test_the_table_ends_with_the_word_and_the_time_that_it_took(capsys):
    status, out, err = run(capsys, "--jobs", FITTING, FITTING, *ON_DUMBBELL, "--control", "dctcp")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert any(line.startswith(("advice: run MLTCP: ", "advice: shift: ")) for line in lines)
    assert lines[-1].startswith("forecast in ")


def test_jobs_that_meet_nobody_are_left(capsys):
    apart = ("--jobs", f"{FITTING},at=h0+h2", f"{FITTING},at=h1+h3")
    status, out, err = run(capsys, *apart, *ON_DUMBBELL)
    assert (status, err) == (0, "")
    assert out.startswith("leave: vgg16-1, vgg16-2: meet no other job on any link\n")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--jobs", "vgg99", *ON_DUMBBELL), "job: model: expected gpt1"),
        (("--jobs", "none.json", *ON_DUMBBELL), "none.json: No such file or directory"),
        (("--jobs", FITTING), "--topology: expected with --jobs"),
        (("--jobs", FITTING, "--topology", "ring:3"), "topology: expected KIND"),
        (("--jobs", FITTING, *ON_DUMBBELL, "--control", "vegas"), "control: expected reno"),
        (("--jobs", FITTING, *ON_DUMBBELL, "--control", "mltcp_reno"), "--control: expected a base"),
        (("--jobs", FITTING, *ON_DUMBBELL, "--margin", "-1"), "--margin: expected a number"),
        (("--jobs", f"{FITTING},control=reno", *ON_DUMBBELL), "job vgg16-1: control: expected none"),
        (("--jobs", FITTING, *ON_DUMBBELL, "--server", "unix:/nowhere"), "--server: expected without --jobs"),
        (("--jobs", f"3*{FITTING}", *ON_DUMBBELL), "job vgg16-3: expected at most the 0 GPUs"),
        (("--topology", "dumbbell:2"), "--topology: expected with --jobs only"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(capsys, arguments, expected):
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert err.startswith(f"mltcp-placement: {expected}")
    assert err.count("\n") == 1


def test_a_profile_without_bursts_is_refused_in_one_line(capsys, tmp_path):
    silent = tmp_path / "silent.json"
    silent.write_text(json.dumps({"phases": [{"duration_s": 0.1, "bandwidth_bps": 0}]}))
    status, out, err = run(capsys, "--jobs", f"{silent}:workers=2", FITTING, *ON_DUMBBELL)
    assert (status, out) == (2, "")
    assert err == "mltcp-placement: job silent-1: expected one that sends, got a profile without bursts\n"


def test_the_running_jobs_of_a_service(capsys, tmp_path):
    """Jobs a and b cross both racks; c has no profile, and d waits."""
    with serving(tmp_path, **two_racks(gpus=1)) as address:
        with Client(address) as client:
            for name, servers in (("a", ["s0", "s2"]), ("b", ["s1", "s3"])):
                client.submit(job(name, 2, profile=HALF, servers=servers))
                placed(client, name)
        status, out, err = run(capsys, "--server", address, "--json")
        assert (status, err) == (0, "")
        document = json.loads(out)
        (found,) = document["sets"]
        assert (found["jobs"], found["link"][:1], found["load"]) == (
            ["a", "b"],
            "r",
            pytest.approx(1, rel=0.01),
        )
        assert found["advice"] in ("run MLTCP", "shift")
        with Client(address) as client:
            client.release("b")
        status, out, _ = run(capsys, "--address", address)
        assert (status, out.splitlines()[0]) == (0, "leave: a: meets no other job on any link")
