"""`mltcp-bench cost`: its benchmarks, their help and their forms of output."""

import argparse
import importlib
import json

import pytest

from bench.cli.cost import BENCHMARKS, execute
from bench.cli.main import main

ROWS = ({"case": "a", "median_ms": 1.25, "jobs": 3}, {"case": "b", "median_ms": 2.0, "jobs": 4})


def options(json, output=None):
    return argparse.Namespace(measure=lambda _: iter(ROWS), benchmark="cassini", json=json, output=output)


@pytest.mark.parametrize("name", [each.name for each in BENCHMARKS])
def test_every_benchmark_has_help(name, capsys):
    with pytest.raises(SystemExit) as end:
        main(["cost", name, "--help"])
    assert end.value.code == 0
    assert "--json" in capsys.readouterr().out


def test_the_help_of_the_group_imports_no_benchmark(monkeypatch, capsys):
    importing = importlib.import_module

    def only_commands(name, *package):
        assert not name.startswith("bench.cost.")
        return importing(name, *package)

    monkeypatch.setattr(importlib, "import_module", only_commands)
    with pytest.raises(SystemExit):
        main(["cost", "--help"])
    printed = capsys.readouterr().out
    assert all(each.name in printed for each in BENCHMARKS)


def test_a_line_for_each_case(capsys):
    assert execute(options(json=False)) == 0
    assert capsys.readouterr().out == "a: median_ms 1.25, jobs 3\nb: median_ms 2, jobs 4\n"


def test_one_document_of_all_cases(capsys, tmp_path):
    assert execute(options(json=True, output=tmp_path / "cost.json")) == 0
    printed = capsys.readouterr().out
    assert json.loads(printed) == {
        "schema": 1,
        "benchmark": "cassini",
        "results": list(ROWS),
    }
    assert (tmp_path / "cost.json").read_text() == printed


@pytest.mark.parametrize(
    "arguments",
    [
        ["gate", "--blocks", "1"],
        ["gate", "--bytes", "0"],
        ["placement-service", "--rate", "0"],
        ["restart", "--ranks", "1,17"],
        ["restart", "--restarts", "0"],
        ["restart", "--micro-batches", "8"],
        ["checkpoint", "--steps", "0"],
    ],
)
def test_bad_input_is_one_line(arguments, capsys):
    assert main(["cost", *arguments]) == 2
    assert capsys.readouterr().err.count("\n") == 1
