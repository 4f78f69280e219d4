"""mltcp-placement serve, submit, status, score, shifts, explain and release, as a person or a program uses them."""

import json
import signal
import subprocess
import sys

import pytest

from bench.lab.programs import ServiceProcess
from placement.cli.main import main

CLUSTER = {
    "servers": [
        {"name": f"s{each}", "gpus": 4, "nic_bps": 10_000_000_000, "switch": f"r{each // 2}"}
        for each in range(4)
    ],
    "links": [{"switch": f"r{each}", "above": "core", "capacity_bps": 10_000_000_000} for each in range(2)],
}
HALF = {"phases": [{"duration_s": 0.05, "bandwidth_bps": 0}, {"duration_s": 0.05, "bandwidth_bps": 10e9}]}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    made = tmp_path_factory.mktemp("service")
    (made / "cluster.json").write_text(json.dumps(CLUSTER))
    (made / "half.json").write_text(json.dumps(HALF))
    jobs = [
        {"id": name, "gpus": 6, "iterations": 100, "profile": HALF, "servers": servers}
        for name, servers in (("a", ["s0", "s1"]), ("b", ["s1", "s2"]))
    ]
    (made / "jobs.json").write_text(json.dumps({"jobs": jobs}))
    return made


@pytest.fixture(scope="module")
def service(directory):
    with ServiceProcess(directory, "lwf-1+cassini", "--cluster", str(directory / "cluster.json")) as process:
        yield process
        assert process.stop() == 0


@pytest.fixture
def command(service, capsys, monkeypatch):
    """Runs a command against the service; returns status, standard output and standard error."""
    monkeypatch.setenv("MLTCP_PLACEMENT", service.address)

    def run(*arguments):
        capsys.readouterr()
        status = main(arguments)
        told = capsys.readouterr()
        return status, told.out, told.err

    return run


@pytest.fixture
def shared(command, directory):
    """Jobs a and b, which share s1."""
    status, out, err = command("submit", "--file", str(directory / "jobs.json"), "--wait", "placed", "--json")
    assert (status, err) == (0, "")
    return json.loads(out)["jobs"]


@pytest.mark.slow
def test_submitted_jobs_have_places_and_shifts(shared, command):
    assert [(each["id"], each["state"]) for each in shared] == [("a", "PLACED"), ("b", "PLACED")]
    status, out, _ = command("shifts", "--json")
    shifts = {each["job_id"]: each["shift_ns"] for each in json.loads(out)["shifts"]}
    assert status == 0
    assert (shifts["b"] - shifts["a"]) % 10**8 == 5 * 10**7
    assert "50.000 ms" in command("shifts")[1]


def test_status_shows_jobs_servers_and_links(shared, command):
    _, out, _ = command("status", "--json")
    found = json.loads(out)
    assert found["schema"] == 1
    assert {each["server"]["name"]: each["gpus_free"] for each in found["servers"]} == {
        "s0": 0, "s1": 0, "s2": 0, "s3": 4,
    }  # fmt: skip
    assert {each["name"]: each["jobs"] for each in found["links"]}["s1"] == ["a", "b"]
    _, text, _ = command("status", "a")
    assert "s0:0,1,2,3 s1:0,1" in text
    assert "s3" not in text


def test_score_and_explain_tell_scores(shared, command, directory):
    _, out, _ = command("score", "a", str(directory / "half.json"), "--capacity-gbps", "10", "--json")
    assert json.loads(out)["score"] == 1
    assert "score 1.0000 (the optimum)" in command("score", "a", "b", "--link", "s1")[1]
    _, out, _ = command("explain", "b", "--json")
    found = json.loads(out)
    assert [each["score"] for each in found["candidates"] if each["chosen"]] == [1]
    assert "the best of" in command("explain", "b")[1]


def test_what_others_write_is_shown_as_it_is(command):
    job_id, reason = "x[/INST]\x1b[2J", "out [/INST]\x1b]0;title\x07\njob forged: ENDED\u202e"
    assert command("submit", "--id", job_id, "--gpus", "1", "--iterations", "1")[0] in (0, 2)
    assert command("submit", "--id", "plain", "--gpus", "1", "--iterations", "1")[0] == 0
    assert command("release", "plain", "--reason", reason)[0] == 0
    status, out, err = command("status", "--all")
    assert (status, err) == (0, "")
    assert "out [/INST]\\x1b]0;title\\x07\\njob forged: ENDED\\u202e" in out
    assert out.replace("\n", "").isprintable()


def test_release_ends_and_status_all_remembers(command):
    command("submit", "--id", "short", "--gpus", "1", "--iterations", "5", "--", "train.py", "--lr", "0.1")
    status, out, _ = command("release", "short", "--reason", "seen enough", "--json")
    ended = json.loads(out)["jobs"][0]
    assert (status, ended["state"], ended["reason"]) == (0, "ENDED", "seen enough")
    assert ended["job"]["command"] == ["train.py", "--lr", "0.1"]
    assert "short" not in command("status")[1]
    assert "seen enough" in command("status", "--all")[1]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (
            "submit --id z --gpus 99 --iterations 1",
            2,
            "job.gpus: expected at most 16, the GPUs of the cluster, got 99",
        ),
        ("submit --id z", 2, "job.gpus: expected 1 or more of either gpus or cpu_slots, got 0 and 0"),
        (
            "submit --id z --gpus 1 --iterations 1 --deadline soon",
            2,
            "--deadline: expected a time in ISO 8601, such as 2030-01-31T18:00, or +SECONDS, got 'soon'",
        ),
        ("submit --id z --gpus 1 --iterations 1 --deadline +x", 2, "--deadline: expected a number"),
        *(
            (
                f"submit --id z --gpus 1 --iterations 1 --deadline {time}",
                2,
                f"--deadline: expected a time from 1970 to 2116, got '{time}'",
            )
            for time in ("+1e30", "9999-12-31")
        ),
        (
            "submit --id z --gpus 1 --iterations 1 --deadline 2023-11-14T22:13:20Z",
            2,
            "job.deadline_ns: expected a time after ",
        ),
        (
            "submit --id z --gpus 1 --iterations 1 --priority 1",
            2,
            "job.priority: expected a job with a profile",
        ),
        ("submit", 2, "expected either --file or --id with --gpus and --iterations"),
        ("submit --file /none.json", 2, "/none.json: No such file or directory"),
        ("status z", 2, "job_ids[0]: expected a known job, got 'z'"),
        ("score a", 2, "expected either --link or --capacity-gbps"),
        ("explain z", 2, "job_id: expected a known job, got 'z'"),
        ("status --address unix:/none/s", 1, "unix:/none/s: no placement service answers there"),
        ("status --address unix:/none", 1, "unix:/none: no placement service answers there"),
        ("status --address nonsense", 2, "--address: expected unix:/path or host:port, got 'nonsense'"),
        ("serve --address 0.0.0.0:1", 2, "--address: expected unix:/path or a loopback address"),
        ("serve --policy best", 2, "--policy: expected random, first-fit"),
        ("serve --lease 0", 2, "--lease: expected more than 0 and at most 86400 s, got 0"),
        ("serve --socket-mode 999", 2, "--socket-mode: expected 600 to 777 in octal, got 999"),
        ("serve --engine local", 2, "--engine local: expected --hosts FILE, got none"),
        ("serve --engine local --classes 9", 2, "--classes: expected 2 to 8, got 9"),
        (
            "serve --engine local --classes 0,64",
            2,
            "--classes: expected 2 to 8, or as many different DSCPs of 0 to 63",
        ),
        (
            "serve --engine local --classes 4 --class-rule age",
            2,
            "--class-rule: expected intensity or remaining",
        ),
        ("serve --engine local --classes 4 --class-age 0", 2, "--class-age: expected 1 to 1e9 s, got 0"),
        ("serve --classes 4", 2, "--classes: expected --engine with it, which starts the jobs, got none"),
        ("serve --class-sl", 2, "--class-sl: expected --classes with it"),
        (
            "serve --engine local --address 127.0.0.1:0 --hosts hosts.json",
            2,
            "--engine: expected a Unix socket (--address unix:/path), or --tokens with TLS (--certificate and --key)",
        ),
        (
            "serve --engine local --socket-mode 666 --hosts hosts.json",
            2,
            "--engine: expected --socket-mode 600 or --tokens, since every caller can run commands, got mode 666",
        ),
        (
            "serve --tokens tokens --address 127.0.0.1:0",
            2,
            "--tokens: expected unix:/path or --certificate and --key, so that no token is sent in clear text",
        ),
        (
            "status --address 127.0.0.1:1 --token-file /proc/sys/kernel/random/uuid",
            2,
            "token: expected unix:/path or TLS (--ca or MLTCP_PLACEMENT_CA), so that it is not sent in clear text",
        ),
        (
            "status --address 127.0.0.1:1 --token-file /proc/sys/kernel/random/uuid --plain-text-tokens",
            1,
            "127.0.0.1:1: no placement service answers there",
        ),
        ("status --address unix:/tmp/s", 2, "/tmp: expected a directory that only its owner can write to"),
        ("status --socket-owner no-one", 2, "--socket-owner: expected the name or the number of an account"),
    ],
)
def test_errors_are_one_line(command, arguments, status, message):
    found, out, err = command(*arguments.split())
    assert (found, out) == (status, "")
    assert err.startswith(f"mltcp-placement: {message}")
    assert err.count("\n") == 1


@pytest.mark.slow
def test_a_second_service_on_the_same_state_is_refused(service, tmp_path):
    command = [each.replace(service.address, f"unix:{tmp_path}/s") for each in service.command]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("another placement service uses it")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_stops_in_order_and_leaves_no_socket(tmp_path, number):
    process = ServiceProcess(tmp_path)
    process.process.send_signal(number)
    assert process.process.wait(20) == 0
    process.process.stdout.close()
    assert not (tmp_path / "s").exists()
    assert (tmp_path / "state.db").exists()


@pytest.mark.slow
def test_the_client_and_the_command_line_start_without_grpc():
    script = (
        "import sys, placement.client.client\n"
        "from placement.cli.main import SUBCOMMANDS, _parser\n"
        "for each in SUBCOMMANDS:\n"
        "    if 'service' in each.module:\n"
        "        _parser(each)\n"
        "print(*sorted({'grpc', 'google.protobuf'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.slow
def test_users_see_whose_jobs_are_whose_and_stop_their_own(tmp_path, directory, capsys, monkeypatch):
    tokens = tmp_path / "tokens"
    tokens.write_text("user alice token-of-alice-1\nuser bob token-of-bob-123\n")
    tokens.chmod(0o600)
    arguments = ("--cluster", str(directory / "cluster.json"), "--tokens", str(tokens))
    with ServiceProcess(tmp_path, "lwf-1", *arguments) as process:
        monkeypatch.setenv("MLTCP_PLACEMENT", process.address)
        monkeypatch.setenv("MLTCP_PLACEMENT_TOKEN", "token-of-alice-1")
        assert main(["submit", "--id", "a", "--gpus", "1", "--iterations", "5", "--wait", "placed"]) == 0
        monkeypatch.setenv("MLTCP_PLACEMENT_TOKEN", "token-of-bob-123")
        capsys.readouterr()
        assert main(["status"]) == 0
        first, second = capsys.readouterr().out.splitlines()[:2]
        assert (first.split()[:3], second.split()[:3]) == (
            ["job", "owner", "state"],
            ["a", "alice", "placed"],
        )
        assert main(["release", "a"]) == 2
        assert capsys.readouterr().err == (
            "mltcp-placement: job_id: expected a job of user 'bob', got 'a', which belongs to another user\n"
        )
