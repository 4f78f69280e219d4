"""`mltcp-bench contention`: what it refuses, and what its arguments mean."""

import argparse

import pytest

from bench.cli import contention as contention_command
from bench.cli.main import main
from bench.sensitivity.contention import ContentionResult, ContentionRound


def plan(*arguments):
    parser = argparse.ArgumentParser()
    contention_command.add_parser(parser.add_subparsers())
    return contention_command.plan_of(parser.parse_args(["contention", *arguments]))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--jobs", "0..8"], ["0..8", "from 1 to 24", "1..8"]),
        (["--jobs", "1..25"], ["1..25", "24"]),
        (["--jobs", "8..1"], ["8..1"]),
        (["--jobs", "many"], ["many", "1..8"]),
        (["--jobs", ""], ["--jobs:", "got ''"]),
        (["--jobs", "1,,2"], ["1,,2"]),
        (["--sizes", "1X"], ["1X"]),
        (["--sizes", "0"], ["'0'"]),
        (["--sizes", "6"], ["'6'", "multiples of 4"]),
        (["--sizes", "2G"], ["2G", "1G"]),
        (["--sizes", ""], ["--sizes", "got ''"]),
        (["--repeat", "0"], ["--repeat:", "1 to 10000, got 0"]),
        (["--control", "no-such"], ["no-such", "cubic"]),
        (["--control", "isolated"], ["isolated", "cubic"]),
        (["--control", "mltcp_dcqcn"], ["mltcp_dcqcn", "pacing"]),
        (["--rate", "fast"], ["fast", "mbit"]),
        (["--queue", "much"], ["much"]),
        (["-o", "absent/contention.csv"], ["absent/contention.csv"]),
        (["-o", "."], ["folder"]),
    ],
)
def test_refused_with_one_line_before_anything_is_done(arguments, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["contention", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert all(word in printed.err for word in words), printed.err
    assert list(tmp_path.iterdir()) == []


def test_help_has_examples(capsys):
    with pytest.raises(SystemExit) as end:
        main(["contention", "--help"])
    assert end.value.code == 0
    examples = capsys.readouterr().out.split("examples:")[1]
    assert "mltcp-bench contention" in examples
    assert "mltcp-placement fit" in examples


def test_ranges_and_lists_of_jobs_and_sizes():
    found = plan("--jobs", "1,4..6,5", "--sizes", "4M,1M,64K")
    assert found.jobs == (1, 4, 5, 6)
    assert found.sizes_bytes == (1 << 16, 1 << 20, 4 << 20)


def test_defaults_measure_one_to_eight():
    found = plan()
    assert found.jobs == tuple(range(1, 9))
    assert found.total == 8 * len(found.sizes_bytes) * found.repeat


def test_every_repeat_has_every_number_of_jobs_and_size_once():
    rounds = list(plan("--jobs", "1..3", "--sizes", "1M,2M", "--repeat", "2").rounds())
    for repeat in (0, 1):
        mine = [(jobs, size) for number, jobs, size in rounds if number == repeat]
        assert sorted(mine) == [(jobs, size) for jobs in (1, 2, 3) for size in (1 << 20, 2 << 20)]
    assert [repeat for repeat, _, _ in rounds] == sorted(repeat for repeat, _, _ in rounds)


def test_a_measurement_is_the_mean_over_the_jobs():
    measurement = ContentionRound(0, 4096, (100.0, 200.0, 600.0), 0.1, 1.0).measurement
    assert (measurement.jobs, measurement.size_bytes, measurement.latency_us) == (3, 4096, 300.0)


def test_processor_time_is_of_the_rounds_with_so_many_jobs():
    measured = ContentionResult(
        (
            ContentionRound(0, 4, (1.0,), 0.5, 1.0),
            ContentionRound(0, 4, (1.0, 1.0), 1.5, 1.0),
            ContentionRound(1, 4, (1.0,), 1.5, 3.0),
        ),
        drops=0,
        marks=0,
        processors=2,
    )
    assert measured.cpu_busy(1) == pytest.approx(0.25)
    assert measured.cpu_busy(2) == pytest.approx(0.75)
