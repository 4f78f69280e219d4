"""`mltcp top`: the table at any width, and the jobs of other users."""

import argparse
import io
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from mltcp.cli.top import COLUMNS, _amount, add_parser, execute, fitting, headline, screen
from mltcp.core.errors import MltcpError, UsageError
from mltcp.daemon.client.status import (
    OTHERS,
    Contender,
    DaemonStatus,
    InterfaceStatus,
    JobLoss,
    JobStatus,
    OutsideChange,
)


def job(number=16, name="bert", **changes):
    values = {
        "number": number, "user": "alice", "ranks": 8, "flows": 64, "how": "tc", "job": name, "uid": 1000,
        "factor": 1.5, "bytes_ratio": 0.7, "iterations": 120, "iteration_s": 0.4, "typical_iteration_s": 0.41,
        "best_iteration_s": 0.39, "slowdown": 1.051, "bytes_per_s": 1.25e8, "rate_bps": 2.5e10,
        "retransmits": 3, "marks": 12345, "total_bytes": 10**8, "gap_s": 0.05,
    }  # fmt: skip
    return JobStatus(**{**values, **changes})


def status(*jobs, **changes):
    values = {
        "pid": 42, "version": 1, "uptime_s": 3700.0, "pacing": "tc", "law": "mltcp_dcqcn", "interval_s": 0.002,
        "control_cpu": 0.05, "daemon_cpu": 0.07, "connections": 8, "controls": (),
        "interfaces": (InterfaceStatus("eth0", "paced", 25 * 10**9),), "jobs": jobs,
    }  # fmt: skip
    return DaemonStatus(**{**values, **changes})


def drawn(shown, width):
    console = Console(width=width, file=io.StringIO(), highlight=False)
    console.print(shown)
    return console.file.getvalue()


def options(*arguments):
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    return parser.parse_args(["top", *arguments])


def test_a_job_is_one_line_with_all_its_columns():
    lines = drawn(screen(status(job()), "job", 200), 200).splitlines()
    assert len(lines) == 3
    assert [column.name for column in COLUMNS] == lines[1].split()
    for expected in ("bert", "alice", "tc", "1.50", "███████░░░", "0.400 s", "0.410 s", "1.051", "125 MB/s"):
        assert expected in lines[2]
    assert "25 Gbit/s" in lines[2]


LOSS = JobLoss(
    "eth0", 0.23, 0.014, (Contender(2, 0.18), Contender(3, 0.04), Contender(OTHERS, 0.01)), 0.6, 1.42
)


def test_what_a_job_loses_is_shown_with_those_that_take_it():
    bert = job(1, "bert", loss=LOSS)
    others = JobStatus(3, "bob", 1, 1, "tc", detail=False)
    shown = drawn(screen(status(bert, job(2, "gpt"), others), "job", 200), 200)
    assert (
        "bert loses 23.0% ± 1.4% of its time on eth0: 18.0% to gpt, 4.0% to a job of bob, 1.0% to others\n"
    ) in shown
    assert "23.0%" in shown.splitlines()[3].split()


def test_a_job_that_stands_aside_is_shown_with_the_reason_whatever_it_loses():
    aside = job(2, "gpt", aside=True, aside_why="demand 1.42 on eth0 > 1.30")
    shown = drawn(screen(status(job(1, "bert", loss=LOSS), aside), "job", 200), 200)
    assert "gpt stands aside: demand 1.42 on eth0 > 1.30\n" in shown
    both = replace(aside, loss=replace(LOSS, to=(Contender(1, 0.23),)))
    shown = drawn(screen(status(job(1, "bert"), both), "job", 200), 200)
    assert "on eth0: 23.0% to bert; it stands aside: demand 1.42 on eth0 > 1.30\n" in shown


@pytest.mark.parametrize("height", [None, 24])
def test_a_job_whose_iterations_are_not_known_is_named_with_what_that_means(height):
    new = job(1, "new\x1b", iterations=0, total_bytes=0, factor=1.0, bytes_ratio=0.0)
    learning = job(2, "learning", total_bytes=0, factor=1.0)
    shown = drawn(screen(status(job(3, "known"), new, learning), "job", 200, height=height), 200)
    assert (
        "iterations not recognised yet, so F is 1: learning, new?; it takes about five of equal bytes\n"
    ) in shown
    assert shown.count("known") == 1


@pytest.mark.parametrize(
    "changes", [{}, {"how": "none"}, {"flows": 0}, {"detail": False}, {"total_bytes": 10**8}]
)
def test_nothing_is_said_of_iterations_that_are_known_or_that_nothing_looks_for(changes):
    values = {"iterations": 0, "total_bytes": 0, **changes} if changes else {}
    assert "not recognised" not in drawn(screen(status(job(**values)), "job", 200), 200)


def test_of_many_jobs_whose_iterations_are_not_known_five_are_named():
    jobs = [job(16 + n, f"job-{n}", iterations=0, total_bytes=0) for n in range(8)]
    line = drawn(screen(status(*jobs), "job", 200), 200).splitlines()[1]
    assert "F is 1: job-0, job-1, job-2, job-3, job-4 and 3 more; " in line


def test_what_a_job_loses_survives_the_way_to_the_client():
    sent = status(job(1, "bert", loss=LOSS, aside=True, aside_why="demand 1.42 on eth0 > 1.30"))
    assert DaemonStatus.from_document(json.loads(json.dumps(sent.document()))) == sent


@pytest.mark.parametrize("width", [40, 80, 100, 120, 200])
@pytest.mark.parametrize("count", [0, 1, 12, 200])
def test_nothing_is_wrapped_at_any_width(width, count):
    jobs = [job(16 + number, f"job-{number}") for number in range(count)]
    lines = drawn(screen(status(*jobs), "job", width), width).splitlines()
    assert len(lines) == (2 + count if count else 2)
    assert all(len(line) <= width for line in lines)


def test_a_narrow_terminal_keeps_the_most_important_columns():
    assert [column.name for column in fitting(200)] == [column.name for column in COLUMNS]
    narrow = [column.name for column in fitting(60)]
    assert narrow[0] == "job"
    assert {"F", "now", "slowdown"} <= set(narrow)
    assert "iterations" not in narrow


def test_a_strangers_job_shows_only_what_it_tells():
    stranger = JobStatus(17, "bob", 4, 32, "kernel", detail=False)
    line = drawn(screen(status(stranger), "job", 200), 200).splitlines()[2]
    assert line.split() == ["bob", "4", "32", "kernel"]


def test_a_strangers_job_says_whose_it_is_where_there_is_no_column_for_it():
    stranger = JobStatus(17, "bob", 4, 32, "kernel", detail=False)
    assert "user" not in [column.name for column in fitting(80)]
    assert drawn(screen(status(stranger), "job", 80), 80).splitlines()[2].split() == ["(bob)", "kernel"]


@pytest.mark.parametrize("width", [60, 80, 100, 120, 160, 200])
def test_no_digit_is_cut_off_whatever_the_names_and_numbers(width):
    name = "pretraining-of-a-large-model-"
    jobs = [job(16 + n, f"{name}{n}", user="x" * 30, retransmits=7**n) for n in range(14)]
    lines = drawn(screen(status(*jobs), "ranks", width), width).splitlines()
    heads = lines[1].split()
    assert len(lines) == 16
    for line, each in zip(lines[2:], jobs, strict=True):
        assert "1.051" in line.split()
        assert (str(each.retransmits) in line.split()) is ("retrans" in heads)
        assert ("12.3 k" in line) is ("marks" in heads)


def test_a_name_that_is_too_long_is_seen_to_be():
    line = drawn(screen(status(job(name="a" * 31)), "job", 80), 80).splitlines()[2]
    assert line.split()[0].endswith("a…")
    assert drawn(screen(status(job(name="a" * 31)), "job", 200), 200).splitlines()[2].split()[0] == "a" * 31


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0 B/s"), (999.4, "999 B/s"), (999.6, "1 kB/s"), (999.7e6, "1 GB/s"), (2e15, "2e+03 TB/s")],
)
def test_amounts(value, shown):
    assert _amount(value, "B/s") == shown


@pytest.mark.parametrize(
    ("height", "rows", "more"), [(24, 21, "and 179 more"), (202, 200, ""), (201, 198, "and 2 more")]
)
def test_what_a_screen_has_no_room_for_is_counted(height, rows, more):
    jobs = [job(16 + number, f"job-{number}") for number in range(200)]
    lines = drawn(screen(status(*jobs), "job", 80, height=height), 80).splitlines()
    assert len([line for line in lines if line.startswith("job-")]) == rows
    assert len(lines) <= height
    assert (lines[-1] == more) is bool(more)


def test_an_interface_that_is_not_paced_is_told_at_any_width():
    told = status(interfaces=(InterfaceStatus("eth0", "paced"), InterfaceStatus("ib0", "left alone")))
    lines = drawn(screen(told, "job", 60), 60).splitlines()
    assert lines[1].startswith("ib0 left alone: jobs are not paced there")
    assert not any(line.startswith("eth0") for line in lines)


def test_the_last_changes_of_other_programs_are_told_as_far_as_a_screen_has_lines():
    changes = tuple(OutsideChange(1000.0 * each, f"eth{each}: was \x1b changed") for each in range(9))
    told = status(outside_changes=changes)
    lines = drawn(screen(told, "job", 40, height=12), 40).splitlines()
    assert [line[20:25] for line in lines[1:-1]] == [f"eth{each}:" for each in range(4, 9)]
    assert "\x1b" not in "".join(lines)


def test_jobs_are_sorted_by_any_column_and_strangers_last():
    jobs = [
        job(16, "b", slowdown=1.0),
        job(17, "a", slowdown=2.0),
        JobStatus(18, "bob", 1, 1, "tc", detail=False),
    ]
    by_name = drawn(screen(status(*jobs), "job", 200), 200).splitlines()[2:]
    by_slowdown = drawn(screen(status(*jobs), "slowdown", 200), 200).splitlines()[2:]
    assert [line.split()[0] for line in by_name] == ["a", "b", "bob"]
    assert [line.split()[0] for line in by_slowdown] == ["a", "b", "bob"]


def test_the_headline_says_what_the_daemon_does():
    assert headline(status(job())) == (
        "mltcpd 42, up 1 h, 1 jobs, 7.0 % CPU; mltcp_dcqcn every 2 ms (5.0 % CPU) on eth0 paced"
    )
    eBPF = status(pacing="off", interfaces=(), controls=("mltcp_cubic",))
    assert headline(eBPF).endswith("0 jobs, 7.0 % CPU; mltcp_cubic")


def test_every_column_is_described(capsys):
    assert execute(options("--describe"), lambda: pytest.fail("nothing is read")) == 0
    described = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in described] == [column.name for column in COLUMNS]


def test_json_is_the_status_document_and_comes_back_as_it_was(capsys):
    told = status(job(), JobStatus(17, "bob", 4, 32, "kernel", detail=False))
    assert execute(options("--json"), lambda: told) == 0
    assert DaemonStatus.from_document(json.loads(capsys.readouterr().out)) == told


def test_fields_of_a_later_version_are_passed_over_and_missing_ones_refused():
    document = status(job()).document()
    document["jobs"][0]["colour"] = "red"
    assert DaemonStatus.from_document({**document, "later": 1}).jobs[0].job == "bert"
    del document["pid"]
    with pytest.raises(MltcpError, match="cannot be read"):
        DaemonStatus.from_document(document)


def test_a_pipe_gets_the_table_once(capsys):
    assert execute(options(), lambda: status(job())) == 0
    assert capsys.readouterr().out.count("bert") == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--sort", "colour"], "unknown column 'colour'; choose from job, user"),
        (["--interval", "0"], "0.1 to 3600"),
    ],
)
def test_bad_arguments_are_named(arguments, expected):
    with pytest.raises(UsageError, match=expected):
        execute(options(*arguments), status)


@given(st.text(max_size=40), st.text(max_size=20))
def test_names_cannot_draw_anything_but_themselves(name, user):
    text = drawn(screen(status(job(name="[red]" + name, user=user)), "job", 120), 120)
    assert "[red]" in text
    assert len(text.split("\n")) == 4
    assert text.replace("\n", "").isprintable()
