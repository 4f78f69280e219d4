"""The daemon's log: one line for each action, in the form that its reader wants."""

import io
import logging
import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltcp.daemon.service import log

TELL = logging.getLogger("mltcp.daemon")


@pytest.fixture(autouse=True)
def as_before():
    before = TELL.handlers[:], TELL.level, TELL.propagate, TELL.filters[:]
    yield
    TELL.handlers[:], TELL.propagate, TELL.filters[:] = before[0], before[2], before[3]
    TELL.setLevel(before[1])


def logged(*message, level=logging.INFO, **more):
    stream = io.StringIO()
    log.configure(stream)
    TELL.log(level, *message, **more)
    return stream.getvalue()


@pytest.fixture
def journal(tmp_path, monkeypatch):
    with open(tmp_path / "journal", "w+") as stream:
        status = os.fstat(stream.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}")
        yield stream


def test_a_line_has_time_level_and_what():
    line = logged("eth0: a tree, because it was named", level=logging.WARNING)
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} WARNING eth0: a tree, because it was named\n", line
    )


def test_what_users_name_cannot_begin_a_line_or_move_the_cursor():
    line = logged("job %s", "a\n2026-01-01 INFO b\x1b[2J\u2028\udc80")
    assert line.endswith("INFO job a\\n2026-01-01 INFO b\\x1b[2J\\u2028\\udc80\n")
    assert line.count("\n") == 1


@given(st.text())
def test_every_record_is_one_printable_line(text):
    line = logged("%s", text)
    assert line.endswith("\n")
    assert line[:-1].isprintable()


def raised():
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        return error


def test_a_traceback_is_in_the_same_line():
    line = logged("failed", exc_info=raised())
    assert line.count("\n") == 1
    assert "ValueError: two\\nlines" in line


def test_the_journal_gets_priorities_and_no_times(journal):
    log.configure(journal)
    TELL.info("began")
    TELL.error("tick failed", exc_info=raised())
    journal.seek(0)
    first, second = journal.read().splitlines()
    assert first == "<6>began"
    assert second.startswith("<3>tick failed Traceback")
    assert second.endswith("ValueError: two\\nlines")


def test_who_inherits_the_variable_but_writes_elsewhere_gets_times(journal, tmp_path):
    with open(tmp_path / "elsewhere", "w+") as stream:
        log.configure(stream)
        TELL.info("began")
        stream.seek(0)
        assert stream.read().endswith(" INFO began\n")
