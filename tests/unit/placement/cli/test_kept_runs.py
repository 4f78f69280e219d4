"""Every comparison keeps its runs with -o, goes on from there, and compares with a baseline."""

import json

import pytest

from placement.cli import main as cli

COMPARISONS = {
    "compare": "compare --fresh 2 --scale 10 --jobs 10 --policies lwf-1+srsf-1,random+srsf-1 --processes 1",
    "drs": "jobs --seeds 0:2 --hours 2 --policies fifo,edf --processes 1",
    "async-sgd": "jobs --workload async-sgd --seeds 1:3 --jobs 200 --nodes 10 --policies equi,hell --processes 1",
    "contention": "jobs --workload contention --seeds 0:2 --policies fifo-packed-none,greedy --processes 1",
    "schedule": "schedule --trace snapshot1 --seeds 0:2 --schedulers random,ideal",
}
BASELINES = dict(zip(COMPARISONS, ("random+srsf-1", "edf", "hell", "greedy", "ideal"), strict=True))


def run(capsys, command, *more):
    status = cli.main([*command.split(), *more, "--json"])
    out, err = capsys.readouterr()
    assert (status, err) == (0, "")
    return json.loads(out)


def keeping(name, folder):
    """The command with -o; without the figures that jobs with deadlines draw besides."""
    return f"{COMPARISONS[name]}{' --figures=' if name == 'drs' else ''} -o {folder}"


@pytest.mark.parametrize("name", COMPARISONS)
def test_what_is_kept_is_not_run_again(capsys, tmp_path, name):
    command = keeping(name, tmp_path)
    document = run(capsys, command)
    journal = tmp_path / "runs.jsonl"
    kept = journal.read_bytes()
    assert kept.count(b"\n") == 4
    assert run(capsys, command) == document
    assert journal.read_bytes() == kept
    # A run that was being written when the command was stopped is run again.
    journal.write_bytes(kept[:-10])
    run(capsys, command)
    lines = journal.read_bytes().splitlines()
    assert lines[:3] == kept.splitlines()[:3]
    assert json.loads(lines[3])["key"] == json.loads(kept.splitlines()[3])["key"]


def test_the_runs_of_another_workload_are_refused(capsys, tmp_path):
    run(capsys, keeping("drs", tmp_path))
    assert cli.main([*COMPARISONS["contention"].split(), "-o", str(tmp_path)]) == 2
    assert "runs.jsonl:1: this is no run of a comparison" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMPARISONS)
def test_the_others_are_compared_with_the_baseline(capsys, name):
    document = run(capsys, COMPARISONS[name], "--baseline", BASELINES[name])
    if name == "schedule":
        assert list(document["against_baseline"]) == ["random"]
        return
    (other, baseline) = document["policies"]
    key = "difference" if name == "drs" else "against_baseline"
    assert (baseline["policy"], key in other) == (BASELINES[name], True)
    assert name == "compare" or key not in baseline


@pytest.mark.parametrize("name", COMPARISONS)
def test_a_baseline_that_is_not_compared_is_refused(capsys, name):
    other = {"compare": "lwf-2+srsf-1", "async-sgd": "srpt"}.get(name, "themis")
    assert cli.main([*COMPARISONS[name].split(), "--baseline", other]) == 2
    assert "--baseline: expected one of " in capsys.readouterr().err
