import json
import shutil

import pytest

from placement.cli import main as cli
from placement.model.throughput_table import PUBLISHED, RATIOS


def run(capsys, *arguments):
    status = cli.main(["jobs", "--workload", "contention", *arguments])
    return status, *capsys.readouterr()


def test_json_has_the_contract(capsys):
    arguments = (
        "--seeds",
        "0:2",
        "--load",
        "0.6",
        "--policies",
        "greedy,srsf-first-ratio",
        "--restart-cost",
        "30",
    )
    status, out, err = run(capsys, *arguments, "--processes", "1", "--json")
    assert (status, err) == (0, "")
    document = json.loads(out)
    assert (document["workload"], document["restart_cost_s"]) == ("contention", 30)
    assert [each["policy"] for each in document["policies"]] == ["greedy", "srsf-first-ratio"]
    for policy in document["policies"]:
        assert [trace["seed"] for trace in policy["traces"]] == [0, 1]
        for found in (policy, *policy["traces"]):
            assert found["makespan_s"] > found["p90_jct_s"] > found["mean_jct_s"] > found["mean_run_s"] > 2000
            assert 0 < found["utilization"] <= 1
            assert found["mean_sensitivity"] >= 1
        assert (policy["restarts"] == 0) == (policy["policy"] == "greedy")
    assert run(capsys, *arguments, "--processes", "2", "--json")[1] == out


def test_a_trace_of_ones_own_and_a_shipped_one(capsys, tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("job_id,gpus,model,arrival_s\nb,2,DLRM,10.5\na,8,FSDP,0\n")
    status, out, err = run(
        capsys, "--trace", str(path), "simulate_trace0", "--policies", "fifo-packed-none", "--json"
    )
    assert (status, err) == (0, "")
    mine, shipped = json.loads(out)["policies"][0]["traces"]
    assert (mine["trace"], mine["jobs"]) == ("mine", 2)
    assert shipped["mean_jct_s"] == pytest.approx(97265.306, abs=0.01)


def test_the_published_loop(capsys):
    status, out, _ = run(
        capsys, "--trace", "simulate_trace0", "--published-loop", "--policies", "las", "--json"
    )
    assert status == 0
    (las,) = json.loads(out)["policies"]
    assert (las["mean_jct_s"], las["mean_run_s"]) == (
        pytest.approx(139_631, abs=1),
        pytest.approx(6082, abs=1),
    )


@pytest.mark.parametrize("loop", [(), ("--published-loop",)])
def test_the_results_are_written_and_drawn(capsys, tmp_path, loop):
    names = "srtf,random" if loop else "greedy,srtf-head-most-nodes-full"
    given = ("--trace", "simulate_trace0", "--policies", names, "--json", *loop)
    status, out, _ = run(capsys, *given, "-o", str(tmp_path / "results"))
    assert status == 0
    assert (tmp_path / "results" / "jobs.json").read_text() == out
    picture = (tmp_path / "results" / "contention.svg").read_text()
    assert "<svg" in picture


def test_a_table_is_printed(capsys):
    status, out, _ = run(capsys, "--seeds", "0", "--policies", "greedy")
    assert status == 0
    assert "normal mix, all jobs at time 0, 1 traces; 4 nodes of 8 GPUs" in out
    assert "greedy" in out


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("a,0,GPT-7,2", ":2: published: job: expected MobileNetV3"),
        ("a,0,FSDP,3", ":2: published: job: expected FSDP on 2, 4, 8 GPUs, got 'FSDP' on 3 GPUs"),
        ("a,-1,FSDP,2", ":2: arrival_s: '-1' is too small"),
        ("a,0,FSDP", ":2: line: 3 fields; expected 4"),
        ("", ":1: file: no jobs follow"),
    ],
)
def test_bad_lines_are_named(assert_refused, rows, message):
    assert_refused(f"job_id,arrival_s,model,gpus\n{rows}\n", message, "--workload", "contention")


def test_a_bad_line_is_left_out_and_named(capsys, tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("job_id,arrival_s,model,gpus\na,0,FSDP,2\na,0,FSDP,2\nb,0,FSDP\n")
    status, out, err = run(capsys, "--trace", str(path), "--policies", "greedy", "--json")
    left_out = "left out: 1 cannot be read, 1 listed twice"
    assert status == 0
    assert err == f"mltcp-placement: mine: {left_out} (first: {path}:4: line: 3 fields; expected 4)\n"
    assert json.loads(out)["left_out"]["mine"]["jobs"] == 2


def test_a_table_with_a_hole_is_refused(capsys, tmp_path):
    shutil.copytree(PUBLISHED, tmp_path, dirs_exist_ok=True)
    lines = (tmp_path / RATIOS).read_text().splitlines(keepends=True)
    (tmp_path / RATIOS).write_text("".join(lines[:-1]))
    status, out, err = run(capsys, "--table", str(tmp_path), "--seeds", "0")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "expected one, got a hole in the table" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--policies", "best"), "ORDER[-head]-PLACEMENT-STOPS (fifo, las"),
        (("--policies", "greedy,greedy"), "--policies: expected each name once"),
        (("--policies", "fifo"), "nodes: expected 2 to 8, got 1"),
        (("--rate", "3"), "--rate: expected only with --workload drs, got 3"),
        (("-o", "/dev/null"), "--output: /dev/null: File exists"),
        (("--load", "0"), "load: expected 0.001 to 1000, got 0"),
        (("--mix", "odd"), "--mix: invalid choice"),
        (("--seeds", "x"), "--seeds: expected a number or a range"),
        (("--nodes", "1"), "gpus: expected a number that divides evenly"),
        (("--restart-cost", "-1"), "--restart-cost: expected a number from 0"),
        (("--trace", "nowhere.csv"), "nowhere.csv: No such file"),
        (("--trace", "simulate_trace0", "--load", "1"), "--load: expected only without --trace, got 1"),
        (
            ("--published-loop", "--policies", "greedy"),
            "--policies of --published-loop: expected some of las",
        ),
        (("--published-loop", "--restart-cost", "3"), "--published-loop: expected no --nodes"),
        (("--published-loop", "--load", "0.5"), "arrival_s: expected 0 in the public loop"),
        (("--table", "nowhere"), "isolated_throughput.csv: No such file"),
    ],
)
def test_bad_arguments_are_named(capsys, arguments, message):
    status, out, err = run(capsys, *arguments, "--processes", "1")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_arguments_of_this_workload_are_refused_by_the_other(capsys):
    assert cli.main(["jobs", "--mix", "low"]) == 2
    assert "--mix: expected only with --workload contention, got 'low'" in capsys.readouterr().err


def test_rules_in_rounds_run_traces_with_deadlines(capsys):
    policies = "greedy,srsf-packed-full,tiresias-first-ratio"
    status = cli.main(
        ["jobs", "--seeds", "0", "--hours", "2", "--policies", policies, "--json", "--processes", "1"]
    )
    document = json.loads(capsys.readouterr().out)
    assert status == 0
    assert [each["policy"] for each in document["policies"]] == policies.split(",")
