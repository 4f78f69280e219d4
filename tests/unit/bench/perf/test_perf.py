"""`mltcp-bench perf` on loopback: real connections, what is measured, and who misbehaves."""

import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.cli.main import main
from bench.perf import messages
from bench.perf.plan import DOWN, UP, Bucket, PerfPlan
from bench.perf.report import iteration_summary
from mltcp.core.address import free_port
from mltcp.core.errors import UsageError
from tests.eventually import eventually

pytestmark = pytest.mark.slow

BENCH = [sys.executable, "-m", "bench.cli", "perf"]


@contextmanager
def serving(*arguments):
    """A server on a port of its own; yields the process and the port."""
    port = free_port()
    process = subprocess.Popen(
        [*BENCH, "-s", "-p", str(port), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # As from a terminal: a shell's background jobs would ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        assert "listening on port" in process.stdout.readline()
        yield process, port
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture(scope="module")
def port():
    with serving() as (_, number):
        yield number


def client(port, *arguments, host="127.0.0.1"):
    return subprocess.run(
        [*BENCH, "-c", host, "-p", str(port), *arguments], capture_output=True, text=True, timeout=60
    )


def document(port, *arguments, **options):
    done = client(port, *arguments, "--json", **options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# -- what is measured --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_what_is_sent_is_received(port, host):
    end = document(port, "--bytes", "50M", "-P", "2", host=host)["end"]
    (direction,) = end["directions"]
    assert direction["sender"]["bytes"] == direction["receiver"]["bytes"] == 50 * 1024**2
    assert direction["iterations"] is None
    assert end["control_client"] == end["control_server"] != []


def test_iterations_take_at_least_their_compute_phase_and_are_all_counted(port):
    found = document(
        port, "--bytes", "1M", "--compute", "0.02", "--iterations", "12", "--omit", "2", "-P", "3"
    )
    (direction,) = found["end"]["directions"]
    times = direction["iterations"]
    assert times["count"] == 10
    assert 0.02 <= times["p50_s"] <= times["p99_s"]
    assert direction["receiver"]["bytes"] == 12 * 1024**2


@pytest.mark.parametrize(("flag", "directions"), [("-R", [DOWN]), ("--bidir", [UP, DOWN])])
def test_the_server_sends_too(port, flag, directions):
    found = document(port, "--bytes", "1M", "--compute", "0.01", "--iterations", "5", flag)["end"][
        "directions"
    ]
    assert [each["direction"] for each in found] == directions
    for each in found:
        assert each["receiver"]["bytes"] == 5 * 1024**2
        assert each["iterations"]["count"] == 5
        assert each["sender"]["retransmits"] is not None
        assert each["receiver"]["retransmits"] is None


def test_the_control_that_is_asked_for_is_what_both_sides_really_use(port):
    end = document(port, "--bytes", "1M", "-C", "reno")["end"]
    assert (end["control_client"], end["control_server"]) == (["reno"], ["reno"])


def test_a_profile_sends_its_buckets(port, tmp_path):
    profile = {
        "name": "tiny",
        "source": "made",
        "forward_s": 0.01,
        "backward_s": 0.02,
        "buckets_bytes": [4000, 6000],
    }
    (tmp_path / "tiny.json").write_text(json.dumps(profile))
    (direction,) = document(port, "--profile", str(tmp_path / "tiny.json"), "--iterations", "4")["end"][
        "directions"
    ]
    assert direction["receiver"]["bytes"] == 4 * 10_000
    assert direction["iterations"]["p50_s"] >= 0.03


def test_intervals_and_their_sums_add_up(port):
    found = document(port, "-t", "1.5", "-i", "0.1", "-P", "2")
    sent = found["end"]["directions"][0]["sender"]["bytes"]
    flows = [each for interval in found["intervals"] for each in interval if each["flow"] is not None]
    sums = [each for interval in found["intervals"] for each in interval if each["flow"] is None]
    assert len(sums) >= 4
    assert sum(each["moved_bytes"] for each in flows) == sum(each["moved_bytes"] for each in sums)
    assert sum(each["moved_bytes"] for each in flows) == sent


@pytest.mark.parametrize("flag", ["-R", "--bidir"])
def test_every_iteration_is_in_one_interval_whoever_sends(port, flag):
    found = document(
        port, "--bytes", "100K", "--compute", "0.01", "--iterations", "20", "-P", "3", "-i", "0.05", flag
    )
    for way in (each["direction"] for each in found["end"]["directions"]):
        sums = [
            each
            for part in found["intervals"]
            for each in part
            if (each["direction"], each["flow"]) == (way, None)
        ]
        assert sum(each["iterations"] for each in sums) == 20
        assert all(0 <= each["bytes_ratio"] <= 1 for each in sums)


def test_a_long_test_of_the_server_comes_back_in_full(port):
    """Its iteration times are more than one message may hold."""
    (direction,) = document(port, "-R", "--bytes", "1", "--compute", "0", "--iterations", "6000")["end"][
        "directions"
    ]
    assert direction["iterations"]["count"] == 6000


def test_no_byte_is_lost_between_the_flows_of_a_bulk_test(port):
    (direction,) = document(port, "--bytes", "100", "-P", "3")["end"]["directions"]
    assert direction["sender"]["bytes"] == direction["receiver"]["bytes"] == 100


def test_the_omitted_seconds_end_where_an_interval_ends(port):
    found = document(port, "-t", "2.2", "-i", "10", "--omit", "1")
    after = found["end"]["directions"][0]["after_omitted"]
    assert len(found["intervals"]) == 2
    assert after["bytes"] == found["intervals"][1][0]["moved_bytes"] > 0


def test_a_stream_is_one_object_a_line(port):
    done = client(port, "-t", "0.3", "-i", "0.1", "--json-stream")
    events = [json.loads(line)["event"] for line in done.stdout.splitlines()]
    assert (events[0], events[-1]) == ("start", "end")
    assert set(events[1:-1]) == {"interval"}


def test_a_person_gets_lines_as_iperf3_has_them(port):
    done = client(port, "--bytes", "1M", "--compute", "0.01", "--iterations", "3", "-P", "2", "-i", "0.05")
    assert "[ ID]    Interval" in done.stdout
    assert "[SUM] " in done.stdout
    assert "client to server: 3 iterations: mean 0.0" in done.stdout
    assert "congestion control of the server: " in done.stdout


def test_roles_are_told_apart_where_both_sides_send(port):
    done = client(port, "--bytes", "1M", "--bidir")
    assert "[  1][TX-C] " in done.stdout
    assert "[  1][RX-C] " in done.stdout


def test_a_reader_that_has_seen_enough_is_no_failure_to_report(port):
    process = subprocess.Popen(
        [*BENCH, "-c", "127.0.0.1", "-p", str(port), "-t", "30", "-i", "0.05"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert "connected" in process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(20) == 1


def test_several_clients_at_once(port):
    outcomes = []
    threads = [
        threading.Thread(target=lambda: outcomes.append(document(port, "--bytes", "20M", "-P", "2")))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [each["end"]["directions"][0]["receiver"]["bytes"] for each in outcomes] == [20 * 1024**2] * 3


# -- who misbehaves ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "first_bytes",
    [b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\x02{}", b"\xff\xff\xff\xff", b"\0\0\0\0", b"\0\0\0\x04nope", b""],
)
def test_strangers_are_refused_and_the_server_goes_on(port, first_bytes):
    with socket.create_connection(("127.0.0.1", port), timeout=10) as stranger:
        with suppress(OSError):  # it may have been refused already
            stranger.sendall(first_bytes)
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(1000):
                pass
    assert client(port, "--bytes", "100K").returncode == 0


def test_a_data_connection_of_no_test_is_refused(port):
    with socket.create_connection(("127.0.0.1", port), timeout=10) as stranger:
        greeting = {"greeting": messages.GREETING, "token": "0" * 32, "direction": UP, "flow": 0}
        stranger.sendall(messages.pack(greeting))
        assert messages.receive(stranger) == {"ok": False, "error": "it belongs to no test"}


def test_a_client_that_vanishes_leaves_no_process():
    with serving() as (server, port):
        process = subprocess.Popen(
            [*BENCH, "-c", "127.0.0.1", "-p", str(port), "-t", "60"], stdout=subprocess.DEVNULL
        )
        eventually(lambda: _children(server.pid))
        process.kill()
        process.wait()
        eventually(lambda: not _children(server.pid))


def _children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return file.read().split()


def test_a_server_that_vanishes_is_said_in_one_line():
    with serving() as (server, port):
        process = subprocess.Popen(
            [*BENCH, "-c", "127.0.0.1", "-p", str(port), "-t", "60"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        eventually(lambda: _children(server.pid))
        for child in _children(server.pid):
            os.kill(int(child), signal.SIGKILL)
        _, told = process.communicate(timeout=30)
        assert process.returncode == 1
        assert len(told.splitlines()) == 1


def test_an_interrupt_shows_what_there_is():
    with serving() as (server, port):
        process = subprocess.Popen(
            [*BENCH, "-c", "127.0.0.1", "-p", str(port), "-t", "60", "-i", "0.1"],
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        while not process.stdout.readline().startswith("[  1]"):
            pass
        process.send_signal(signal.SIGINT)
        shown, _ = process.communicate(timeout=30)
        assert process.returncode == 130
        assert "client to server: sender:" in shown
        assert "interrupted: the server's figures are missing" in shown
        server.send_signal(signal.SIGINT)
        assert server.wait(20) == 130


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("form", ["--json", "--json-stream"])
def test_a_signal_ends_the_document(port, number, form):
    process = subprocess.Popen(
        [*BENCH, "-c", "127.0.0.1", "-p", str(port), "-t", "60", "-i", "0.1", form],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(
            number, signal.default_int_handler if number == 2 else signal.SIG_DFL
        ),
    )
    lines = []
    if form == "--json-stream":
        lines = [process.stdout.readline() for _ in range(3)]
    else:
        _wait_until_it_sends(process, port)
    process.send_signal(number)
    if number == signal.SIGTERM:
        process.send_signal(number)  # as `timeout` does
    rest, errors = process.communicate(timeout=30)
    assert process.returncode == 128 + number, errors
    last = json.loads([*lines, *rest.splitlines()][-1])
    end = last["end"] if form == "--json" else last["data"]
    assert end["interrupted"] is True
    assert end["directions"][0]["sender"]["bytes"] > 0
    assert errors == ""


def _wait_until_it_sends(process, port):
    while True:
        assert process.poll() is None
        shown = subprocess.run(["ss", "-tin", f"dport = :{port}"], capture_output=True, text=True, check=True)
        sent = [int(each) for each in re.findall(r"bytes_sent:(\d+)", shown.stdout)]
        if max(sent, default=0) > 10_000_000:
            return


@pytest.mark.parametrize(
    ("arguments", "status", "error"),
    [
        (["-c", "127.0.0.1", "-p", "1"], 1, "no mltcp-bench perf server answers at 127.0.0.1 port 1"),
        (["-c", "no.such.host.invalid"], 2, "no.such.host.invalid: "),
        (["-c", "127.0.0.1", "-p", "0"], 2, "--port: expected 1 to 65535, got 0"),
        (["-c", "127.0.0.1", "-t", "0"], 2, "--time: expected more than 0"),
        (["-c", "127.0.0.1", "-1"], 2, "-1: expected with -s only, got -c"),
        (["-c", "127.0.0.1", "--profile", "no-such-profile"], 2, "no-such-profile"),
        (["-c", "127.0.0.1", "-C", "nosuch"], 2, "congestion control 'nosuch'"),
    ],
)
@pytest.mark.parametrize("form", ["--json", "--json-stream"])
def test_an_error_is_a_document_too(capsys, arguments, status, error, form):
    assert main(["perf", *arguments, form]) == status
    said = capsys.readouterr()
    assert said.err.startswith("mltcp-bench: ")
    assert said.err.count("\n") == 1
    found = json.loads(said.out)
    assert error in found["error"]
    assert found["error"] in said.err
    assert form == "--json-stream" or (found["start"], found["intervals"], found["end"]) == ({}, [], {})


@pytest.mark.parametrize("arguments", [["-t", "-1"], ["-t", "x"], ["--no-such-option"], ["-s"]])
@pytest.mark.parametrize("form", ["--json", "--json-stream"])
def test_arguments_that_cannot_be_parsed_are_a_document_too(capsys, arguments, form):
    with pytest.raises(SystemExit) as end:
        main(["perf", "-c", "127.0.0.1", form, *arguments])
    assert end.value.code == 2
    said = capsys.readouterr()
    assert "error" in json.loads(said.out)
    assert ": error: " in said.err


def test_an_error_of_the_server_is_a_document_too(capsys):
    assert main(["perf", "-s", "-B", "192.0.2.1", "--json"]) in (1, 2)
    said = capsys.readouterr()
    assert json.loads(said.out)["error"] in said.err


def test_a_server_that_vanishes_is_a_document_with_the_intervals_so_far():
    with serving() as (server, number):
        process = subprocess.Popen(
            [*BENCH, "-c", "127.0.0.1", "-p", str(number), "-t", "60", "-i", "0.1", "--json-stream"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        first = [json.loads(process.stdout.readline())["event"] for _ in range(3)]
        children = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(server.pid)], capture_output=True, text=True, check=True
        )
        for child in map(int, children.stdout.split()):
            os.kill(child, signal.SIGKILL)
        rest, errors = process.communicate(timeout=30)
    assert first == ["start", "interval", "interval"]
    last = json.loads(rest.splitlines()[-1])
    assert (process.returncode, last["event"]) == (1, "error")
    assert last["error"] in errors


def test_it_is_told_where_nothing_is_left_after_what_is_omitted(port):
    done = client(port, "--bytes", "1M", "--omit", "5", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["end"]["directions"][0]["after_omitted"] is None
    assert done.stderr == "mltcp-bench: --omit: nothing is left after the first 5 seconds\n"


def test_a_closed_output_is_no_crash(port):
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *BENCH, *f"-c 127.0.0.1 -p {port} --bytes 1M --json".split()],
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_no_server_is_one_line():
    port = free_port()
    done = client(port, "-t", "1")
    assert done.returncode == 1
    assert done.stderr.startswith(
        f"mltcp-bench: no mltcp-bench perf server answers at 127.0.0.1 port {port}: Connection refused"
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["-t", "1", "--iterations", "2"], "--time and --iterations: expected one of them"),
        (["--iterations", "2"], "--iterations: expected at least 1, with --bytes and --compute"),
        (["--compute", "1"], "--compute: expected 0 seconds or more, with --bytes"),
        (["--bytes", "much"], "--bytes: expected a number of bytes, optionally"),
        (["-P", "1000"], "flows: expected 1 to 128, got 1000"),
        (["-R", "--bidir"], "--reverse and --bidir: expected one of them"),
        (["-i", "0"], "--interval: expected 0.05 to 3600 seconds, got 0"),
        (["--bytes", "9" * 400], "a number of bytes"),
        (["-B", "127.0.0.1"], "-B: expected with -s only, got -c"),
        (["-t", "2", "--omit", "2"], "--omit: expected less than the 2 seconds, got 2"),
        (
            ["--bytes", "1K", "--compute", "0", "--iterations", "3", "--omit", "3"],
            "fewer than the 3 iterations",
        ),
        (["--job", "a b"], "job name: expected 1 to 31 letters"),
        (["-C", "nonsense"], "congestion control 'nonsense': No such file or directory; this host has reno"),
        (["--profile", "nosuch"], "or the path of a JSON profile, got 'nosuch'"),
    ],
)
def test_bad_usage_is_one_line_and_exit_status_two(arguments, expected, capsys):
    assert main(["perf", "-c", "127.0.0.1", *arguments]) == 2
    told = capsys.readouterr().err
    assert expected in told
    assert len(told.splitlines()) == 1


def test_options_of_the_client_are_refused_to_the_server(capsys):
    assert main(["perf", "-s", "-P", "2"]) == 2
    assert capsys.readouterr().err == "mltcp-bench: -P: expected with -c only, got -s\n"


def test_the_servers_lines_are_json_where_that_is_asked_for():
    with serving("--json", "-1") as (server, number):
        assert client(number, "--bytes", "1K").returncode == 0
        said = [json.loads(line)["message"] for line in server.stdout]
    assert [each.partition(": ")[2] for each in said] == ["test begins: 1 x 1 flows", "test ended"]


def test_a_strangers_job_name_does_not_get_into_the_log():
    document = PerfPlan(job="bert").document() | {"job": "bert\nforged line"}
    with pytest.raises(UsageError, match="job name"):
        PerfPlan.from_document(document)


@pytest.mark.parametrize("answer", [{"ok": True}, {"ok": True, "token": 7}, {"ok": False}, {}])
def test_an_answer_without_sense_is_one_line(answer):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = subprocess.Popen(
            [*BENCH, "-c", "127.0.0.1", "-p", str(listener.getsockname()[1])],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        listener.settimeout(20)
        connection, _ = listener.accept()
        with connection:
            messages.receive(connection)
            messages.send(connection, answer)
            _, told = process.communicate(timeout=20)
    assert process.returncode == 1
    assert len(told.splitlines()) == 1


# -- plans and summaries -----------------------------------------------------------------------------------------------


@given(st.integers(1, 128), st.lists(st.integers(128, 10**9), min_size=1, max_size=5))
def test_flows_share_every_bucket_to_the_byte(flows, sizes):
    plan = PerfPlan(flows=flows, buckets=tuple(Bucket(0.1, size) for size in sizes))
    shares = [plan.shares(flow) for flow in range(flows)]
    for at, size in enumerate(sizes):
        parts = [share[at].size_bytes for share in shares]
        assert sum(parts) == size
        assert max(parts) - min(parts) <= 1


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text() | st.integers(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(ANY_JSON)
def test_what_is_no_plan_is_refused(document):
    with pytest.raises(UsageError):
        PerfPlan.from_document(document)


@given(st.integers(1, 128), st.integers(1, 10**9))
def test_flows_share_bulk_to_the_byte(flows, size):
    plan = PerfPlan(flows=flows, total_bytes=size)
    assert sum(plan.bulk_share(flow) for flow in range(flows)) == size


def test_a_plan_comes_back_from_json_as_it_was():
    plan = PerfPlan((UP, DOWN), 3, (Bucket(0.1, 1000), Bucket(0.2, 3)), 7, 0.0, 0, "reno", "bert")
    assert PerfPlan.from_document(json.loads(json.dumps(plan.document()))) == plan


def test_a_message_longer_than_any_of_ours_is_refused_by_its_length():
    with pytest.raises(messages.PeerError):
        messages.length_of(struct.pack("!I", messages.MOST_BYTES + 1))


def test_percentiles_are_the_nearest_rank():
    summary = iteration_summary([number / 100 for number in range(1, 101)])
    assert (summary["p50_s"], summary["p99_s"], summary["count"]) == (0.5, 0.99, 100)
    assert iteration_summary([2.0])["p99_s"] == 2.0
    assert iteration_summary([]) is None
