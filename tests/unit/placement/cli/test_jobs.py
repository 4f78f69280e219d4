import json
from pathlib import Path

import pytest

from placement.cli import main as cli

DATA = Path(__file__).parents[1] / "data"


def run(capsys, *arguments):
    status = cli.main(["jobs", *arguments])
    return status, *capsys.readouterr()


def test_json_has_the_contract(capsys):
    arguments = ("--seeds", "0:2", "--hours", "6", "--policies", "drs,fifo", "--json", "--processes", "1")
    status, out, err = run(capsys, *arguments)
    assert (status, err) == (0, "")
    document = json.loads(out)
    assert set(document) == {"workload", "policies"}
    assert document["workload"] == "drs"
    assert [each["policy"] for each in document["policies"]] == ["drs", "fifo"]
    means = {"guarantee_rate", "mean_wait_s", "mean_completion_s", "utilization_arrivals", "utilization"}
    for policy in document["policies"]:
        assert set(policy) == {"policy", "traces", *means}
        assert all(policy[name] >= 0 for name in means)
        assert [trace["seed"] for trace in policy["traces"]] == [0, 1]
        for trace in policy["traces"]:
            assert set(trace) == {
                *("seed", "jobs", "met", "mean_wait_s", "mean_completion_s", "makespan_s"),
                *("migrations", "restarts", "utilization_arrivals", "utilization"),
            }
            assert 0 <= trace["met"] <= trace["jobs"]
            assert trace["makespan_s"] >= trace["mean_completion_s"] >= trace["mean_wait_s"]
    assert run(capsys, *arguments) == (status, out, err)


def test_a_trace_of_ones_own(capsys, tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("workload,job_id,arrival_s,deadline_s\nTSN,late,10,11\nAlexNet,early,0.5,1875.5\n")
    status, out, err = run(
        capsys, "--trace", str(path), "--policies", "norm,elastic-mh", "--nodes", "1", "--gpus", "1", "--json"
    )
    assert (status, err) == (0, "")
    trace = json.loads(out)["policies"][0]["traces"][0]
    assert (trace["trace"], trace["jobs"], trace["met"]) == ("mine", 2, 1)
    assert trace["mean_wait_s"] == pytest.approx((0 + 1875.5 - 10) / 2)
    assert trace["makespan_s"] == pytest.approx(1875.5 + 5963.6053125)


MODELS = "workload,parameters,batch,compute_s,samples,epochs\n"


def test_a_trace_of_ones_own_models(capsys, tmp_path):
    trace, models = tmp_path / "mine.csv", tmp_path / "models.csv"
    trace.write_text("job_id,arrival_s,workload,alpha\na,0,Mine,1\n")
    models.write_text(MODELS + "Mine,1000,8,0.25,800,2\n")
    arguments = ("--trace", str(trace), "--workloads", str(models), "--policies", "drs", "--json")
    status, out, err = run(capsys, *arguments, "--nodes", "1", "--gpus", "1")
    assert (status, err) == (0, "")
    assert json.loads(out)["policies"][0]["mean_completion_s"] == 200 * 0.25


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("Mine,1,8,0,1,1\n", ":2: compute_s: '0' is too small"),
        ("Mine,1,8,nan,1,1\n", ":2: compute_s: 'nan' is no number"),
        ("Mine,1,8,1,1,1\nMine,1,8,1,1,1\n", ":3: workload: 'Mine' is there twice"),
        ("", ": expected a workload or more, got none"),
    ],
)
def test_a_bad_table_of_models_is_named(capsys, tmp_path, rows, message):
    trace, models = tmp_path / "mine.csv", tmp_path / "models.csv"
    trace.write_text("job_id,arrival_s,workload,alpha\na,0,Mine,1\n")
    models.write_text(MODELS + rows)
    status, _, err = run(capsys, "--trace", str(trace), "--workloads", str(models))
    assert (status, f"{models}{message}" in err) == (2, True)
    status, _, err = run(capsys, "--workloads", str(models))
    assert (status, "--workloads: expected only with --trace, got '" in err) == (2, True)


@pytest.mark.parametrize("name", ["philly_cluster_job_log.json", "pai_job_table.csv"])
def test_recorded_traces_get_deadlines(capsys, name):
    arguments = ("--trace", str(DATA / name), "--policies", "edf,pollux,lwf-2", "--json")
    status, out, err = run(capsys, *arguments)
    stem = name.partition(".")[0]
    assert (status, err.count("\n")) == (0, 1)
    assert err.startswith(f"mltcp-placement: {stem}: left out: 1 ended before it started, ")
    found = json.loads(out)
    assert all(policy["traces"][0]["jobs"] == 3 for policy in found["policies"])
    assert found["left_out"][stem]["reasons"]["no GPUs"] == 1
    assert run(capsys, *arguments)[1] == out


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("a,100,TSN,99", ":2: deadline_s: '99' is in the past; expected more than its arrival_s, 100"),
        ("a,x,TSN,99", ":2: arrival_s: 'x' is no number"),
        ("a,-1,TSN,99", ":2: arrival_s: '-1' is too small"),
        ("a,0,TSN,nan", ":2: deadline_s: 'nan' is no number"),
        ("a,1,GPT-7,99", ":2: workload: 'GPT-7' is unknown; expected AlexNet, VGG-16"),
        ("a,1,TSN", ":2: line: 3 fields; expected 4"),
        (",1,TSN,99", ":2: job_id: is empty"),
        ("", ":1: file: no jobs follow"),
    ],
)
def test_bad_lines_are_named(assert_refused, row, message):
    assert_refused(f"job_id,arrival_s,workload,deadline_s\n{row}\n", message)


@pytest.mark.parametrize(
    ("alpha", "problem"),
    [("-1", "'-1' is out of range"), ("0", "'0' is out of range"), ("nan", "'nan' is no number")],
)
def test_a_bad_priority_is_named(assert_refused, alpha, problem):
    message = f":2: alpha: {problem}; expected a number above 0 up to 1000"
    assert_refused(f"job_id,arrival_s,workload,alpha\na,0,TSN,{alpha}\n", message)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("job_id,arrival_s,workload", "alpha and deadline_s: both are missing; expected one of them"),
        ("job_id,arrival_s,workload,alpha,deadline_s", "alpha and deadline_s: both are there"),
        ("job_id,arrival_s,alpha", "workload: the column is missing"),
        ("job_id,arrival_s,workload,alpha,size", "columns: 'size' is unknown"),
        ("job_id,arrival_s,workload,alpha,alpha", "alpha: is there twice"),
    ],
)
def test_bad_columns_are_named(assert_refused, header, message):
    assert_refused(f"{header}\n", f":1: {message}")


def test_a_job_larger_than_the_cluster(capsys, tmp_path):
    path = tmp_path / "large.csv"
    path.write_text("job_id,arrival_s,workload,alpha,gpus\na,0,TSN,1,17\n")
    status, _, err = run(capsys, "--trace", str(path))
    assert status == 2
    assert f"{path}:2: gpus: job 'a' asks for 17 GPUs; expected at most the 16 of the cluster" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--policies", "best"), "scheduler: expected themis, pollux, random, drs, norm"),
        (("--policies", "drs,drs"), "--policies: expected each name once"),
        (("--seeds", "3:3"), "--seeds: expected 1 to 100000 seeds, got '3:3'"),
        (("--seeds", "x"), "--seeds: expected a number or a range"),
        (("--rate", "0"), "rate: expected more than 0"),
        (("--bandwidth", "1e9"), "--bandwidth: expected two numbers such as 10e9,6e9, got '1e9'"),
        (("--bandwidth", "0,1"), "inside_bytes_per_s: expected 1 or more, got 0"),
        (("--restart-cost", "-1"), "--restart-cost: expected a number from 0"),
        (("--nodes", "0"), "nodes and gpus: expected 1 or more"),
        (("--figures", "7"), "--figures: expected only with -o and without --trace"),
        (("--figures", "6", "-o", "x"), "--figures: expected some of 7, 8, 9, 10, 11, got '6'"),
        (("--processes", "0"), "--processes: expected 1 or more"),
        (("--trace", "nowhere.csv"), "nowhere.csv: No such file"),
        (("--trace", "nowhere.csv", "--rate", "3"), "--rate: expected only without --trace, got 3"),
        (("--trace", "a.csv", "--seeds", "1"), "not allowed with argument"),
        (("--policies", ""), "--policies: expected one or more names, separated by commas, got none"),
        (("--seeds", ""), "--seeds: expected a number or a range such as 0:100, got ''"),
        (("--restart-cost", ""), "--restart-cost: expected a number from 0 to 100000000, got ''"),
        (("--restart-cost", "nan"), "--restart-cost: expected a number from 0 to 100000000, got 'nan'"),
        (("--rate", "nan"), "rate: expected more than 0 up to 1000000, got nan"),
        (("--hours", "inf"), "hours: expected more than 0 up to 250000, got inf"),
        (("--hours", "1e6", "--rate", "1e-4"), "hours: expected more than 0 up to 250000, got 1000000.0"),
        (("--rate", "1e-300"), "drs-0: jobs: expected one or more, got no jobs"),
        (("--fat", "nan"), "fat: expected 0 to 1, got nan"),
        (("--urgent", "1.1"), "urgent: expected 0 to 1, got 1.1"),
        (("--bandwidth", "nan,1"), "--bandwidth: expected a number from 0 to 1000000000000000000, got 'nan'"),
        (("-o", __file__), "test_jobs.py: File exists"),
        (
            ("--workload", "async-sgd", "--rate", "0"),
            "--rate: expected only with --workload drs, got 0.0",
        ),
    ],
)
def test_bad_arguments_are_named(capsys, arguments, message):
    status, out, err = run(capsys, *arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_times_that_are_too_long_to_count_are_an_error(capsys):
    arguments = ("--seeds", "0", "--hours", "2", "--policies", "edf", "--bandwidth", "1,1")
    status, out, err = run(capsys, *arguments)
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert "drs-0: end_ns: expected up to 9223372036854775807, got " in err


def test_runs_are_kept_and_pictures_drawn(capsys, tmp_path):
    folder = tmp_path / "kept"
    arguments = (
        "--seeds",
        "0:2",
        "--hours",
        "2",
        "--policies",
        "norm,elastic-edf",
        "--figures",
        "8",
        "-o",
        str(folder),
    )
    assert run(capsys, *arguments, "--processes", "1")[0] == 0
    kept = (folder / "runs.jsonl").read_bytes()
    pictures = {path.name for path in folder.glob("*.svg")}
    assert pictures == {
        "figure5.svg",
        "figure8.svg",
        "figure12.svg",
        "gantt-norm.svg",
        "gantt-elastic-edf.svg",
    }
    (figure,) = json.loads((folder / "figures.json").read_text())
    assert (figure["field"], figure["values"]) == ("nodes", [2, 3, 4])
    document = json.loads((folder / "jobs.json").read_text())
    rates = [each["guarantee_rate"] for each in figure["policies"]["norm"]]
    assert rates[2] == document["policies"][0]["guarantee_rate"]
    # A part that was being written when the command was stopped is run again; nothing else is.
    (folder / "runs.jsonl").write_bytes(kept[:-10])
    status, out, _ = run(capsys, *arguments, "--json", "--processes", "1")
    assert (status, json.loads(out)) == (0, document)
    assert (folder / "runs.jsonl").read_bytes() == kept
    assert run(capsys, *arguments, "--processes", "1")[0] == 0
    assert (folder / "runs.jsonl").read_bytes() == kept


def test_the_folder_of_something_else_is_refused(capsys, tmp_path):
    (tmp_path / "runs.jsonl").write_text("{}\n")
    status, _, err = run(capsys, "--seeds", "0", "-o", str(tmp_path))
    assert status == 2
    assert "runs.jsonl:1: this is no run of a comparison" in err


def test_differences_from_a_baseline_and_the_upper_bound(capsys):
    arguments = (
        "--seeds",
        "0:3",
        "--hours",
        "4",
        "--rate",
        "6",
        "--policies",
        "fifo,edf-efficient",
        "--processes",
        "1",
    )
    more = ("--baseline", "fifo", "--bound")
    status, out, err = run(capsys, *arguments, *more, "--json")
    assert (status, err) == (0, "")
    found = json.loads(out)
    plain, better = found["policies"]
    assert "difference" not in plain
    points = 100 * (better["guarantee_rate"] - plain["guarantee_rate"])
    assert better["difference"]["points"] == pytest.approx(points)
    assert better["difference"]["low_points"] <= points <= better["difference"]["high_points"]
    assert found["bound"]["guarantee_rate"] >= better["guarantee_rate"]
    status, out, err = run(capsys, *arguments, *more)
    assert f"edf-efficient - fifo: {points:+.2f} +- " in out
    assert "upper bound" in out
    status, out, err = run(capsys, *arguments, "--baseline", "drs")
    assert (status, err) == (
        2,
        "mltcp-placement: --baseline: expected one of fifo, edf-efficient, got 'drs'\n",
    )
