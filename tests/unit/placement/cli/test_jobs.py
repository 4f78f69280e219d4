import json

from placement.cli import main as cli


def run(capsys, *arguments):
    status = cli.main(["jobs", *arguments])
    return status, *capsys.readouterr()


def test_json_has_the_contract(capsys):
    arguments = ("--seeds", "0:2", "--hours", "6", "--policies", "drs,fifo", "--json", "--processes", "1")
    status, out, err = run(capsys, *arguments)
    assert (status, err) == (0, "")
    document = json.loads(out)
    assert document["workload"] == "drs"
    assert [each["policy"] for each in document["policies"]] == ["drs", "fifo"]
    for policy in document["policies"]:
        names = ("guarantee_rate", "mean_wait_s", "mean_completion_s", "utilization_arrivals", "utilization")
        assert all(policy[name] >= 0 for name in names)
        assert [trace["seed"] for trace in policy["traces"]] == [0, 1]
        for trace in policy["traces"]:
            assert 0 <= trace["met"] <= trace["jobs"]
            assert trace["makespan_s"] >= trace["mean_completion_s"] >= trace["mean_wait_s"]
            assert {"migrations", "restarts"} <= set(trace)
    assert run(capsys, *arguments) == (status, out, err)
