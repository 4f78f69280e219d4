import json

import pytest

from placement.cli import main as cli
from placement.cli.simulation.async_jobs import METHODS, SERVER_NODES
from placement.model.parameter_server import ServerNode
from placement.model.queueing import Method

HEADER = "arrival_units,model,epochs\n"


def run(capsys, *arguments):
    status = cli.main(["jobs", "--workload", "async-sgd", *arguments])
    return status, *capsys.readouterr()


def test_json_has_the_contract(capsys):
    arguments = ("--seeds", "1:3", "--jobs", "2400", "--load", "0.5", "--json", "--processes", "1")
    status, out, err = run(capsys, *arguments, "--policies", "srpt,hell+fill,jsq-chunk-20")
    assert (status, err) == (0, "")
    document = json.loads(out)
    assert (document["workload"], document["models"], document["load"]) == ("async-sgd", "four", 0.5)
    assert (document["nodes"], document["server_node"], document["throughput"]) == (100, "free", "hybrid")
    assert [each["policy"] for each in document["policies"]] == ["srpt", "hell+fill", "jsq-chunk-20"]
    srpt, hell, jsq = document["policies"]
    assert (srpt["stable"], hell["stable"], jsq["stable"], jsq["chunk"]) == (False, True, True, 20)
    for policy in document["policies"]:
        assert [trace["seed"] for trace in policy["traces"]] == [1, 2]
        for each in (policy, *policy["traces"]):
            assert each["mean_response_h"] > each["to_40_percent_h"] > 0
            assert each["interval_95_h"] > 0
    assert run(capsys, *arguments, "--policies", "srpt,hell+fill,jsq-chunk-20")[1] == out


def test_two_servers_take_half_the_time_of_transfers_and_updates(capsys):
    arguments = ("--seeds", "1:2", "--jobs", "2400", "--load", "0.1", "--json", "--policies", "equi")
    responses = []
    for servers in ("1", "2"):
        status, out, _ = run(capsys, *arguments, "--servers", servers)
        document = json.loads(out)
        assert (status, document["servers"]) == (0, int(servers))
        responses.append(document["policies"][0]["mean_response_h"])
    assert responses[1] < 0.8 * responses[0]


def test_a_trace_of_ones_own(capsys, tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("epochs,arrival_units,model\n90,4,AlexNet\n74.5,0,VGG19\n")
    status, out, err = run(
        capsys, "--models", "two", "--trace", str(path), "--nodes", "1", "--policies", "equi,hell", "--json"
    )
    assert (status, err) == (0, "")
    # At load 0.6 on one node, 4 units are 4 / 0.6 mean service times.
    for policy in json.loads(out)["policies"]:
        (trace,) = policy["traces"]
        assert (trace["trace"], trace["jobs"], trace["dropped"], trace["interval_95_h"]) == (
            "mine",
            2,
            0,
            None,
        )
        alone_h = (74.5 / 74 * 107.2348 + 11.81615) * 24 / 2
        assert trace["mean_response_h"] == pytest.approx(alone_h, rel=1e-4)


def test_the_table_names_the_chunk_that_was_found(capsys):
    status, out, err = run(
        capsys, "--models", "one", "--jobs", "300", "--nodes", "6", "--policies", "jsq-chunk,node-price"
    )
    assert (status, err) == (0, "")
    assert "jsq-chunk, K = " in out
    assert "models: one, load 0.6, 3 traces, 6 nodes" in out


def test_a_figure_is_printed_and_drawn(capsys, tmp_path):
    arguments = ("--figure", "13", "--seeds", "1", "--jobs", "400", "--nodes", "20", "--processes", "1")
    status, out, err = run(capsys, *arguments, "-o", str(tmp_path / "results"))
    assert (status, err) == (0, "")
    assert "paper: KNEE and HELL are alike at low load" in out
    document = json.loads((tmp_path / "results" / "figure13.json").read_text())
    assert len(document["cells"]) == 12
    assert (tmp_path / "results" / "figure13.svg").read_text().startswith("<?xml")


def test_choices_are_those_of_the_models():
    assert sorted(METHODS) == sorted(Method)
    assert sorted(SERVER_NODES) == sorted(ServerNode)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("x,NiN,1", ":2: arrival_units: 'x' is no number"),
        ("-1,NiN,1", ":2: arrival_units: '-1' is out of range; expected a number, 0 to 1000000000"),
        ("1,NiN,0", ":2: epochs: '0' is out of range; expected a number, more than 0 to 1000000"),
        ("1,NiN,nan", ":2: epochs: 'nan' is no number"),
        (
            "1,GPT-7,1",
            ":2: model: 'GPT-7' is not in the set of models; expected NiN, GoogLeNet, AlexNet, VGG19",
        ),
        ("1,NiN", ":2: line: 2 fields; expected 3"),
        ("", ":1: file: no jobs follow the names of the columns; expected 1 or more"),
    ],
)
def test_bad_lines_are_named(assert_refused, rows, message):
    assert_refused(f"{HEADER}{rows}\n", message, "--workload", "async-sgd")


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("arrival_units,model", "epochs: the column is missing; expected arrival_units, model, epochs"),
        ("arrival_units,model,epochs,size", "columns: 'size' is unknown"),
        ("arrival_units,model,epochs,epochs", "epochs: is there twice"),
    ],
)
def test_bad_columns_are_named(assert_refused, header, message):
    assert_refused(f"{header}\n", f":1: {message}", "--workload", "async-sgd")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--policies", "best"), "policy: expected srpt, waterfill, equi, knee, knee+fill"),
        (
            ("--policies", "jsq-chunk-101"),
            "jsq-chunk-K: expected K up to the 100 nodes of the cluster, got 101",
        ),
        (("--policies", "hell,hell"), "--policies: expected each name once"),
        (("--policies", "knee", "--alpha", "-1"), "alpha: expected 0 to 1, got -1"),
        (("--policies", "hell", "--gamma", "nan"), "gamma: expected 0 to 100, got nan"),
        (("--alpha-range", "1"), "--alpha-range: expected two numbers such as 0.01,0.05, got '1'"),
        (("--load", "0"), "load: expected more than 0 up to 100, got 0"),
        (("--load", "nan"), "load: expected more than 0 up to 100, got nan"),
        (("--nodes", "0"), "nodes: expected 1 to 10000, got 0"),
        (("--servers", "0"), "servers: expected 1 or more, got 0"),
        (
            ("--servers", "2", "--server-node", "charged"),
            "--servers: expected 1 with --server-node charged, got 2",
        ),
        (("--jobs", "0"), "jobs: expected 1 to 1000000, got 0"),
        (("--seeds", "3:3"), "--seeds: expected 1 to 100000 seeds, got '3:3'"),
        (("--trace", "nowhere.csv"), "nowhere.csv: No such file"),
        (("--trace", "nowhere.csv", "--jobs", "5"), "--jobs: expected only without --trace, got 5"),
        (("--figure", "7"), "--figure: expected one of 1, 12, 13, 14, got 7"),
        (("--figure", "1", "--load", "0.5"), "--load: expected only without --figure"),
        (("-o", "/dev/null"), "--output: /dev/null: File exists"),
        (("--baseline", "srpt"), "--baseline: expected one of equi, jsq-chunk, "),
        (("--gpus", "4"), "--gpus: expected only with --workload drs, got 4"),
        (("--rate", "4"), "--rate: expected only with --workload drs, got 4.0"),
        (("--processes", "0"), "--processes: expected 1 or more"),
    ],
)
def test_bad_arguments_are_named(capsys, arguments, message):
    status, out, err = run(capsys, *arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_options_of_the_other_workload_are_refused(capsys):
    assert cli.main(["jobs", "--models", "one"]) == 2
    assert "--models: expected only with --workload async-sgd, got 'one'" in capsys.readouterr().err


@pytest.mark.parametrize("policies", ["hell+fill,node-price,jsq-chunk-4,srpt"])
def test_the_schedulers_run_on_the_other_workload(capsys, policies):
    status = cli.main(["jobs", "--seeds", "0", "--hours", "6", "--policies", policies, "--json"])
    out, err = capsys.readouterr()
    assert (status, err) == (0, "")
    assert [each["policy"] for each in json.loads(out)["policies"]] == policies.split(",")
