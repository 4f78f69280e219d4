"""The `mltcp-placement` command: its output, its documents, its exit statuses."""

import json
import os
import signal
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path

import pytest

from mltcp.core.errors import UsageError
from placement.cli.main import main
from placement.cli.simulation.arguments import load_contention
from placement.cli.simulation.fit import document as fit_document
from placement.experiments.fit import Measurement, fit
from placement.experiments.simulation import PolicyName, Setting, SimulationModel, parse_policies
from placement.model.cluster import Cluster, Gpu, Server, Switch
from placement.model.job import Contention

ROOT = Path(__file__).resolve().parents[4]
HEADER = "job_id,arrival_s,num_gpus,iterations,model\n"
PUBLISHED = ["--model", "published", "--communication", "srsf-1"]


@pytest.fixture
def trace(tmp_path):
    """Two jobs: one alone on its GPU, and one of two servers' GPUs."""
    path = tmp_path / "two.csv"
    path.write_text(f"{HEADER}0,1.0,1,100,resnet50\n1,2.0,8,10,vgg16\n")
    return path


def succeeds(capsys, *arguments):
    assert main(list(map(str, arguments))) == 0
    said = capsys.readouterr()
    assert said.err == ""
    return said.out


def refused(capsys, *arguments, status=2):
    assert main(list(map(str, arguments))) == status
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("mltcp-placement: ")
    assert said.err.count("\n") == 1
    return said.err


class TestSimulate:
    """One trace, one policy."""

    @pytest.mark.slow
    def test_document(self, capsys, trace):
        found = json.loads(succeeds(capsys, "simulate", "--trace", trace, "--json", *PUBLISHED))
        assert found["schema"] == 1
        assert found["time_scale"] == 1
        first, second = found["jobs"]
        # 25 + 37 ms an iteration; 36 + 54 ms and 526.4 MB at 0.856 ms/MB on the two NICs.
        assert first["jct_s"] == pytest.approx(100 * 0.062, abs=0.01)
        assert second["jct_s"] == pytest.approx(10 * (0.090 + 526.4 * 0.000856), abs=0.03)
        assert second["communication_s"] == pytest.approx(10 * 526.4 * 0.000856, abs=0.03)
        assert found["average_jct_s"] == pytest.approx((first["jct_s"] + second["jct_s"]) / 2)
        assert len(second["gpus"]) == 8
        names = {
            "average_jct_s",
            "median_jct_s",
            "p95_jct_s",
            "average_gpu_utilization",
            "makespan_s",
            "wall_s",
        }
        assert names <= set(found)
        config = found["config"]
        assert config["policy"] == "lwf-1+srsf-1@published"
        assert (config["model"], config["defect"], config["seed"]) == ("published", False, 0)

    @pytest.mark.slow
    def test_config_holds_the_cluster_as_it_can_be_read_again(self, capsys, trace):
        found = json.loads(
            succeeds(capsys, "simulate", "--trace", trace, "--json", "--servers", "3", *PUBLISHED)
        )
        assert Cluster.from_document(found["config"]["cluster"]) == Cluster.star(3, 4)

    @pytest.mark.slow
    def test_file_holds_the_document_and_the_table_is_for_people(self, capsys, trace, tmp_path):
        output = tmp_path / "run.json"
        out = succeeds(capsys, "simulate", "--trace", trace, "-o", output, *PUBLISHED)
        document = json.loads(output.read_text())
        assert "lwf-1+srsf-1@published on two: 2 jobs" in out
        assert f"{document['average_jct_s']:.1f}" in out
        for words in (
            "waiting to be placed",
            "waiting for GPUs",
            "waiting to communicate",
            "of which contention",
        ):
            assert words in out
        assert set(tmp_path.iterdir()) == {output, trace}

    @pytest.mark.slow
    def test_traces_at_a_tenth_are_reported_in_the_seconds_of_the_paper(self, capsys, tmp_path):
        path = tmp_path / "tenth.csv"
        path.write_text(
            "job_id,arrival_s,num_gpus,iterations,model,sim_arrival_ms,sim_iterations\n"
            "0,0.100,1,1000,resnet50,1,10\n"
        )
        found = json.loads(succeeds(capsys, "simulate", "--trace", path, "--json", *PUBLISHED))
        assert found["time_scale"] == 100
        assert found["average_jct_s"] == pytest.approx(1000 * 0.062, abs=0.5)
        assert found["jobs"][0]["arrival_s"] == pytest.approx(0.1)

    @pytest.mark.parametrize(
        ("arguments", "reason"),
        [
            (["--placement", "best"], "'best'"),
            (["--communication", "srsf-0"], "'srsf-0'"),
            (["--placement", "random", "--kappa", "2"], "only lwf has one"),
            (["--model", "exact", "--defect"], "--model published"),
            (["--servers", "1"], "num_gpus: job 1 wants 8 GPUs"),
            (["--servers", "0"], "1 or more"),
            (["--memory-mb", "100"], "train_mem_mb"),
            (["--seed", "-1"], "--seed: expected 0 to 4294967295, got -1"),
            (["--b", "2"], "constants of its own"),
            (["--b", "two"], "--b (ms): expected a number from 0 to 1000000, got 'two'"),
            (["--b", "1/0"], "got '1/0'"),
            (["--eta", "1e308"], "--eta (ms): expected a number from 0 to 1000000, got '1e308'"),
            (["--gpus", str(10**30)], "at most 10000000 GPUs in all"),
            (["--intervals", "4"], "expected only the exact model"),
            (["--format", "xml"], "invalid choice"),
            (["-o", "/nowhere/x.json"], "folder /nowhere"),
            (["-o", "/"], "a folder"),
            (["--contention", "/nowhere/fit.json"], "No such file"),
            (["--contention", "x", "--b", "1"], "--b: expected only without --contention"),
            (["--cluster", "/nowhere/cluster.json"], "/nowhere/cluster.json"),
            (["--cluster", "x", "--gpus", "1"], "--gpus: expected only without --cluster"),
            (["--trace", "/nowhere/trace.csv"], "/nowhere/trace.csv"),
        ],
    )
    def test_bad_usage(self, capsys, trace, arguments, reason):
        assert reason in refused(capsys, "simulate", "--trace", trace, *PUBLISHED, *arguments)

    def test_bad_trace_is_named_by_line_and_field_and_nothing_is_written(self, capsys, tmp_path):
        path, output = tmp_path / "bad.csv", tmp_path / "out.json"
        path.write_text(f"{HEADER}1,-2.0,8,10,vgg16\n2,x,8,10,vgg16\n")
        said = refused(capsys, "simulate", "--trace", path, "-o", output, *PUBLISHED)
        assert said.startswith(f"mltcp-placement: {path}:2: arrival_s: ")
        assert not output.exists()

    @pytest.mark.parametrize("command", ["simulate", "compare"])
    def test_what_is_left_out_is_told_in_a_line_and_in_the_document(self, capsys, tmp_path, command):
        path = tmp_path / "bad.csv"
        path.write_text(f"{HEADER}0,1.0,1,100,resnet50\n1,-2.0,8,10,vgg16\n0,1.0,1,100,resnet50\n")
        options = PUBLISHED if command == "simulate" else ["--policies", "lwf-1+srsf-1"]
        assert main([command, "--trace", str(path), "--json", *options]) == 0
        said = capsys.readouterr()
        assert said.err.startswith(
            f"mltcp-placement: bad: left out: 1 cannot be read, 1 listed twice (first: {path}:3: arrival_s: "
        )
        assert said.err.count("\n") == 1
        left_out = json.loads(said.out)["left_out"]
        assert (left_out if command == "simulate" else left_out["bad"])["jobs"] == 2

    def test_the_published_model_knows_stars_only(self, capsys, trace, tmp_path):
        path = tmp_path / "cluster.json"
        servers = [{"name": "a", "gpus": 4}, {"name": "b", "gpus": 5}]
        path.write_text(json.dumps({"servers": servers}))
        assert "equal servers" in refused(capsys, "simulate", "--trace", trace, "--cluster", path, *PUBLISHED)


class TestExact:
    """The exact model, which is the default."""

    @pytest.mark.slow
    def test_times_are_those_of_the_model(self, capsys, trace):
        arguments = ["simulate", "--trace", trace, "--json", "--communication", "srsf-1"]
        first, second = json.loads(succeeds(capsys, *arguments))["jobs"]
        assert first["jct_s"] == pytest.approx(100 * 0.062, abs=1e-6)
        assert second["jct_s"] == pytest.approx(10 * (0.090 + 526.4 * 0.000856), abs=1e-6)
        more = ["--a", "2", "--b", "1.5", "--eta", "0"]
        _, second = json.loads(succeeds(capsys, *arguments, *more))["jobs"]
        assert second["communication_s"] == pytest.approx(10 * (0.002 + 526.4 * 0.0015), abs=1e-6)

    @pytest.mark.slow
    def test_use_over_time(self, capsys, trace, tmp_path):
        output = tmp_path / "run.json"
        succeeds(capsys, "simulate", "--trace", trace, "--intervals", "20", "-o", output)
        document = json.loads(output.read_text())
        use = document["use"]
        assert (len(use["gpus"]), len(use["links"]), len(use["link_names"])) == (64, 16, 16)
        assert {len(row) for row in use["gpus"] + use["links"]} == {20}
        assert use["width_s"] * 20 >= document["makespan_s"] * (1 - 1e-9)
        busy = sum(map(sum, use["gpus"])) * use["width_s"]
        assert busy == pytest.approx(100 * 0.062 + 8 * 10 * 0.090, rel=0.01)
        sent = sum(map(sum, use["links"])) * use["width_s"]
        assert sent == pytest.approx(2 * 10 * 526.4 * 0.000856, rel=0.01)
        for kind in ("gantt", "links"):
            succeeds(capsys, "plot", kind, output, "-o", tmp_path / f"{kind}.svg")

    def test_unknown_policies(self, capsys, trace):
        for arguments in (["--placement", "best"], ["--communication", "worst"], ["--kappa", "0"]):
            refused(capsys, "simulate", "--trace", trace, *arguments)

    @pytest.mark.slow
    def test_many_policies_on_fresh_traces(self, capsys):
        arguments = [
            "compare",
            "--fresh",
            "2",
            "--scale",
            "10",
            "--policies",
            "lwf-1+srsf-1,lwf-1+srsf-1@published",
        ]
        exact, published = json.loads(succeeds(capsys, *arguments, "--json"))["policies"]
        # A millisecond a step of an iteration of some seventy, and the order among equals, is all they differ in.
        assert exact["average_jct_s"] == pytest.approx(published["average_jct_s"], rel=0.25)


class TestCompare:
    """Many policies on many traces."""

    @pytest.mark.slow
    def test_document_and_table(self, capsys, trace, tmp_path):
        arguments = [
            "compare",
            "--trace",
            trace,
            "--model",
            "published",
            "--policies",
            "lwf+srsf-1,random+srsf-1",
        ]
        found = json.loads(succeeds(capsys, *arguments, "--json", "-o", tmp_path / "kept"))
        assert [each["policy"] for each in found["policies"]] == [
            "lwf-1+srsf-1@published",
            "random+srsf-1@published",
        ]
        assert found["baseline"] == "lwf-1+srsf-1@published"
        assert found["traces"][0]["jobs"] == 2
        assert found["policies"][1]["against_baseline"]["average_jct_s"]["low_percent"] is None
        out = succeeds(capsys, *arguments, "-o", tmp_path / "kept")
        assert f"{found['policies'][0]['average_jct_s']:.1f}" in out
        assert "0 of 1" in out

    @pytest.mark.slow
    def test_without_a_folder_nothing_is_left(self, capsys, trace, tmp_path, monkeypatch):
        place = tmp_path / "tmp"
        place.mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(place))
        succeeds(capsys, "compare", "--trace", trace, "--model", "published", "--policies", "lwf+srsf-1")
        assert not list(place.iterdir())

    @pytest.mark.parametrize(
        ("arguments", "reason"),
        [
            (["--policies", "lwf"], "PLACEMENT+COMMUNICATION"),
            (["--policies", ","], "one or more"),
            (["--policies", "lwf+srsf-1,lwf-1+srsf-1"], "got lwf-1+srsf-1@published twice"),
            (["--policies", "lwf+srsf-1@wrong"], "exact, published, published-defect"),
            (["--policies", "random-2+srsf-1"], "lwf[-K], least-delay (K: 1 to 1000000), got 'random-2'"),
            (["--baseline", "lwf-9+srsf-1"], "--baseline: expected one of lwf-1+srsf-1@published"),
            (["--scale", "10"], "only --fresh has one"),
            (["--processes", "0"], "--processes: expected 1 or more, got 0"),
            (["--fresh", "3"], "not allowed with"),
        ],
    )
    def test_bad_usage(self, capsys, trace, tmp_path, arguments, reason):
        folder = tmp_path / "kept"
        base = ["compare", "--trace", trace, "--model", "published", "-o", folder]
        assert reason in refused(capsys, *base, *arguments)
        assert not folder.exists()

    def test_a_file_is_no_folder(self, capsys, trace):
        arguments = ["compare", "--trace", trace, "--model", "published", "--policies", "lwf+srsf-1"]
        assert f"--output: {trace}: File exists" in refused(capsys, *arguments, "-o", trace)


class TestManners:
    """Behaviour that all commands share."""

    @pytest.mark.parametrize(
        "arguments", [[], ["nonsense"], ["simulate"], ["plot", "cdf"], ["simulate", "--nonsense"]]
    )
    def test_usage_errors_are_one_line(self, capsys, arguments):
        assert "--help` lists the arguments" in refused(capsys, *arguments)

    @pytest.mark.parametrize("command", [[], ["simulate"], ["compare"], ["plot"], ["fit"]])
    def test_help_has_examples(self, capsys, command):
        with pytest.raises(SystemExit) as leaving:
            main([*command, "--help"])
        assert leaving.value.code == 0
        assert "\nexamples:\n  mltcp-" in capsys.readouterr().out

    @pytest.mark.slow
    def test_nobody_reads_the_output(self, trace):
        read, write = os.pipe()
        os.close(read)
        command = [
            sys.executable,
            "-m",
            "placement.cli",
            "simulate",
            "--trace",
            str(trace),
            "--json",
            *PUBLISHED,
        ]
        done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False)
        os.close(write)
        assert (done.returncode, done.stderr) == (1, "")

    @pytest.mark.slow
    def test_interrupt(self, tmp_path):
        """While it waits for the trace, which nobody writes."""
        fifo = tmp_path / "trace.csv"
        os.mkfifo(fifo)
        process = subprocess.Popen(
            [sys.executable, "-m", "placement.cli", "compare", "--trace", str(fifo), "--model", "published"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        try:
            end = opened(fifo, process)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
            os.close(end)
        finally:
            process.kill()
        assert (process.returncode, out, err) == (130, "", "mltcp-placement: interrupted\n")


def opened(fifo, process):
    """The writing end of a pipe, once the process has opened the other one."""
    end = time.monotonic() + 60
    while time.monotonic() < end and process.poll() is None:
        try:
            return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            time.sleep(0.02)
    raise AssertionError(process.communicate())


class TestNames:
    """Policies on the command line."""

    @pytest.mark.parametrize(
        "text",
        [
            "lwf-1+ada-srsf",
            "lwf-12+srsf-3",
            "random+srsf-1",
            "list-scheduling+ada-srsf@published",
            "first-fit+ada-srsf@published-defect",
        ],
    )
    def test_a_name_is_read_as_it_is_written(self, text):
        assert str(PolicyName.parse(text)) == text

    def test_defaults(self):
        assert parse_policies(" lwf+srsf-1 , random+srsf-1@exact,", SimulationModel.PUBLISHED) == (
            PolicyName("lwf", "srsf-1", 1, SimulationModel.PUBLISHED),
            PolicyName("random", "srsf-1", 1, SimulationModel.EXACT),
        )


class TestContention:
    """The constants of the contention model."""

    def test_of_a_fit(self, tmp_path):
        truth = Contention(Fraction(650_000), Fraction("0.853"), Fraction("0.21"))
        sizes, jobs = (10**6, 10**7, 10**8), range(1, 9)
        measured = [
            Measurement(k, size, float(truth.duration_ns(size, k)) / 1000) for k in jobs for size in sizes
        ]
        path = tmp_path / "fit.json"
        path.write_text(json.dumps(fit_document(fit(measured))))
        assert load_contention(path) == truth

    @pytest.mark.parametrize("text", ["", "{}", "[]", '{"latency_ns": 1}', '{"latency_ns": {"value": "x"}}'])
    def test_of_something_else(self, tmp_path, text):
        path = tmp_path / "fit.json"
        path.write_text(text)
        with pytest.raises(UsageError, match="fit --json"):
            load_contention(path)


def test_a_setting_is_told_by_its_document():
    third = Fraction(1, 3)
    cluster = Cluster(
        (Server("a", (Gpu(), Gpu(16000, third)), "x", Fraction("2.5")), Server("b", (Gpu(),) * 3, "y")),
        (Switch("x"), Switch("y", "x", third)),
    )
    setting = Setting(cluster, Contention(Fraction(1), third, Fraction("0.1")))
    document = json.loads(json.dumps(setting.document()))
    assert Cluster.from_document(document["cluster"]) == cluster
    assert {name: Fraction(str(value)) for name, value in document["contention"].items()} == {
        "latency_ns": 1,
        "ns_per_byte": third,
        "penalty_ns_per_byte": Fraction("0.1"),
    }
