"""`mltcp-placement throughput` and `profile --parameter-server`: tables, documents, pictures, exit statuses."""

import json
import re
from dataclasses import replace

import pytest

from placement.cli.main import main
from placement.cli.simulation.throughput import execute_figure
from placement.experiments.worker_throughput import FIGURES
from placement.model.queueing import solve_mixture, throughputs
from placement.model.service_times import LinkSharing, ServiceTimes
from tests.unit.placement.experiments.captures import training

TIMES = {"worker_s": 0.029, "uplink_s": 0.072, "server_s": 0.018, "downlink_s": 0.072}
DENSE_8_MB = ServiceTimes(**TIMES)
METHODS = ("exact", "approximate", "hybrid")


@pytest.fixture
def profile(tmp_path):
    path = tmp_path / "ps.json"
    path.write_text(json.dumps({"name": "8 MB", **TIMES}))
    return path


def document(capsys, *arguments):
    assert main(["throughput", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys, *arguments):
    """The message of a command that ends with status 2."""
    assert main([*map(str, arguments)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    return said.err.removeprefix("mltcp-placement: ").strip()


def test_document(capsys, profile):
    found = document(capsys, "--profile", profile, "--workers", "1:30", "--model", ",".join(METHODS))
    assert found["workers"] == list(range(1, 31))
    assert found["service"] == TIMES
    assert found["bound"] == pytest.approx([min(k / 0.191, 1 / 0.072) for k in range(1, 31)])
    for method in METHODS:
        expected = throughputs(DENSE_8_MB, 30, method=method).tolist()
        assert found["methods"][method]["throughput"] == expected
    busy = found["methods"]["exact"]["utilisation"][1]
    assert busy["uplink"] == pytest.approx(0.072 * found["methods"]["exact"]["throughput"][1])


def test_table(capsys, profile):
    assert main(["throughput", "--profile", str(profile), "--workers", "1,2,6"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["workers", "exact", "approximate", "hybrid", "bound"]
    assert lines[3].split() == ["2", "8.098", "9.098", "9.098", "10.47"]
    assert lines[4].split() == ["6", "11.67", "13.77", "12.53", "13.89"]


def test_servers_and_sharing(capsys, profile):
    options = ("--profile", profile, "--model", "exact", "--workers", "4")
    halves = document(capsys, *options, "--servers", 2)["methods"]["exact"]["throughput"]
    assert halves == throughputs(DENSE_8_MB, 4, method="exact", servers=2)[-1:].tolist()
    uneven = document(capsys, *options, "--shares", "0.5,0.25,0.25")["methods"]["exact"]["throughput"]
    assert uneven == halves
    exact = document(capsys, *options)["methods"]["exact"]["throughput"]
    always = document(capsys, *options[:2], "--workers", 4, "--model", "hybrid", "--sharing", "0:1e-9")
    assert always["methods"]["hybrid"]["throughput"] == pytest.approx(exact)


def test_workers_that_differ(capsys, profile, tmp_path):
    slow = ServiceTimes(0.3, 0.072, 0.018, 0.072)
    (tmp_path / "slow.json").write_text(json.dumps({**TIMES, "worker_s": 0.3}))
    mix = f"{profile}=4,{tmp_path / 'slow.json'}=2"
    found = document(capsys, "--mix", mix, "--model", "exact")
    expected = [each.throughput for each in solve_mixture([(DENSE_8_MB, 4), (slow, 2)], method="exact")]
    assert [each["throughput"]["exact"] for each in found["classes"]] == expected
    assert found["throughput"]["exact"] == sum(expected)
    assert main(["throughput", "--mix", mix]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[:2] == ["all", "6"]


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_picture(capsys, profile, tmp_path, suffix):
    picture = tmp_path / f"ps.{suffix}"
    assert main(["throughput", "--profile", str(profile), "-o", str(picture)]) == 0
    assert picture.stat().st_size > 5000


def test_figure_7(capsys, tmp_path):
    found = document(capsys, "--figure", 7, "-o", tmp_path / "figure7.svg")
    assert (tmp_path / "figure7.svg").exists()
    [panel] = found["panels"]
    shared, first_come = panel["simulated"]["shared"], panel["simulated"]["first_come"]
    for exact, bound, each, other in zip(
        panel["methods"]["exact"]["throughput"], panel["bound"], shared, first_come, strict=True
    ):
        assert each["value"] == pytest.approx(exact, rel=0.015)
        assert 0.98 * bound < other["value"] < 1.002 * bound
        assert max(each["half_interval"] / each["value"], other["half_interval"] / other["value"]) < 0.025


def test_figures_are_printed_with_what_the_paper_says(capsys):
    assert execute_figure(replace(FIGURES[7], cycles=20_000), None, as_json=False) == 0
    said = capsys.readouterr().out
    assert "the paper: almost linear at 2 workers" in said
    assert "of a simulation" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--workers", "0"), "--workers: expected 1 to 1000000, got 0"),
        (("--workers", "0:3"), "--workers: expected 1 to 1000000, got 0"),
        (("--workers", "3:2"), "--workers: expected 1 to 10000 numbers, got '3:2'"),
        (("--workers", "a"), "--workers: expected first:last or a list such as 1,2,4, got 'a'"),
        (
            ("--model", "mva"),
            "method: expected exact, approximate, approximate-capped, hybrid, got 'mva'",
        ),
        (("--servers", "0"), "servers: expected 1 or more, got 0"),
        (("--shares", "0.5,0.6"), "shares: expected numbers that sum to 1, got [0.5, 0.6]"),
        (("--sharing", "0.8"), "--sharing: expected LOW:HIGH, such as 0.8:1, got '0.8'"),
        (("--sharing", "1:0.8"), "full: expected more than threshold (1), got 0.8"),
        (("-o", "ps.gif"), "ps.gif: expected a name that ends in .svg, .png, .pdf"),
    ],
)
def test_bad_arguments(capsys, profile, arguments, message):
    assert refused(capsys, "throughput", "--profile", profile, *arguments) == message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({**TIMES, "uplink_s": -0.1}, "uplink_s: expected a number between 0 and 1e+09, got -0.1"),
        ({"worker_s": 1, "uplink_s": 1, "downlink_s": 1}, "server_s: expected a number of seconds, got none"),
        ({**TIMES, "server_s": None}, "server_s: expected a number between 0 and 1e+09, got None"),
        (dict.fromkeys(TIMES, 0), "service times: expected a sum of at least 1e-09 s, got 0"),
        ([1], "profile: expected an object, got [1]"),
    ],
)
def test_bad_profiles(capsys, tmp_path, content, message):
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(content))
    assert refused(capsys, "throughput", "--profile", path) == f"{path}: {message}"


def test_bad_files_and_combinations(capsys, profile, tmp_path):
    absent = tmp_path / "absent.json"
    assert refused(capsys, "throughput", "--profile", absent) == f"{absent}: No such file or directory"
    absent.write_text("{")
    refusal = refused(capsys, "throughput", "--profile", absent)
    assert refusal.startswith(f"{absent}: expected a JSON document: Expecting property name")
    assert refused(capsys, "throughput", "--figure", 8) == "figure: expected 7, 11, 15, got 8"
    assert refused(capsys, "throughput", "--mix", f"{profile}") == (
        f"--mix: expected FILE=N, such as fast.json=4, got '{profile}'"
    )
    assert refused(capsys, "throughput", "--mix", f"{profile}=0") == "workers: expected 1 or more, got 0"
    assert "--workers: expected only without --mix" in refused(
        capsys, "throughput", "--mix", f"{profile}=1", "--workers", "2"
    )


def test_from_a_capture_to_a_prediction(capsys, tmp_path):
    trace, path = training(tmp_path / "trace.pcap").write(), tmp_path / "ps.json"
    assert main(["profile", "--parameter-server", str(trace), "-o", str(path)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("10.0.0.2 with parameter server 10.0.0.1: 5 cycles of 200 ms, 5 mini-batches/s")
    assert said[-1].split() == ["S^D", "downlink", "80", "0", "40.0%"]
    found = document(capsys, "--profile", path, "--workers", "1")
    assert found["methods"]["hybrid"]["throughput"] == pytest.approx([5])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--parameter-server", "--bin-ms", "1"), "--bin-ms: expected only without --parameter-server"),
        (("--server", "10.0.0.1"), "--server: expected only with --parameter-server"),
        (("--parameter-server", "--cycles", "2"), "cycles: expected 3 or more, got 2"),
        (("--parameter-server", "--warmup", "-1"), "warmup: expected 0 or more, got -1"),
    ],
)
def test_bad_arguments_of_profile(capsys, tmp_path, arguments, message):
    trace = training(tmp_path / "trace.pcap").write()
    assert refused(capsys, "profile", trace, *arguments) == message


def test_a_short_capture_is_refused(capsys, tmp_path):
    trace = training(tmp_path / "trace.pcap", cycles=7).write()
    assert refused(capsys, "profile", "--parameter-server", trace) == (
        f"{trace}: cycles: expected 3 or more after 5 of warm-up, got 2 (7 in all)"
    )


@pytest.mark.parametrize("ramp", [(0.8, 1.0), (0.3, 1.2)])
def test_a_known_g_is_found_from_odd_numbers_of_workers(capsys, profile, ramp):
    rates = throughputs(DENSE_8_MB, 8, sharing=LinkSharing(*ramp))
    measured = ",".join(f"{workers}={rate!r}" for workers, rate in enumerate(rates.tolist(), 1))
    found = document(capsys, "--profile", profile, "--workers", "1:8", "--measured", measured)
    fit = found["fit"]
    assert (fit["fitted"], fit["others"]) == ([1, 3, 5, 7], [2, 4, 6, 8])
    assert fit["error"] < 0.004
    assert fit["error_of_others"] < 0.01
    assert found["sharing"] == fit["sharing"]


def test_what_no_g_explains_has_an_error(capsys, profile):
    """Beyond the approximate solution, and falling as real TCP does."""
    assert main(["throughput", "--profile", str(profile), "--measured", "1=5.2,3=13.8,4=12,5=10"]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    found = re.fullmatch(
        r"g from \S+ to \S+, fitted to K = 1,3,5: mean error (\S+)%; not fitted, K = 4: \S+% \(with .* \S+%\)",
        line,
    )
    assert float(found[1]) > 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *(
            (
                [rates],
                "measured: expected an odd number of workers above 1, since g does nothing to one, got none",
            )
            for rates in ("2=3", "1=1.8,2=3")
        ),
        (["1=0"], "measured: expected a finite number above 0 for K = 1, got 0.0"),
        (["1=1,1=2"], "--measured: expected K=RATE,..., each K once, such as 1=1.8,2=3.6, got '1=1,1=2'"),
        (["x"], "--measured: expected K=RATE,..., each K once, such as 1=1.8,2=3.6, got 'x'"),
        (["1=2", "--sharing", "0:1"], "--sharing: expected only without --measured, to which it is fitted"),
    ],
)
def test_bad_measurements_are_named(capsys, profile, arguments, message):
    assert refused(capsys, "throughput", "--profile", profile, "--measured", *arguments) == message
