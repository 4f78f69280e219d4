"""How many lines of a log a user can cause, and that what is left out is counted."""

import logging

import pytest

from mltcp.core.user_lines import (
    BURST,
    BURST_OF_ALL,
    MOST_KEPT,
    MOST_NAMED,
    PER_S_OF_ALL,
    TELL_EVERY_S,
    UserLines,
    of_user,
)


class Log:
    """A logger with the filter and a clock, and the lines that it has written."""

    def __init__(self):
        self.now_s = 1000.0
        self.lines = []
        self.filter = UserLines(lambda: self.now_s)
        self.logger = logging.Logger("tested")
        self.logger.addFilter(self.filter)
        handler = logging.Handler()
        handler.emit = lambda record: self.lines.append(record.getMessage())
        self.logger.addHandler(handler)

    def by(self, user, count=1):
        before = len(self.lines)
        for _ in range(count):
            self.logger.info("%s does something", user, extra=of_user(user))
        return len(self.lines) - before

    def told(self, later_s=TELL_EVERY_S, **options):
        self.now_s += later_s
        before = len(self.lines)
        self.filter.tell(self.logger, **options)
        return self.lines[before:]


@pytest.fixture
def log():
    return Log()


def test_a_user_has_a_burst_and_then_a_line_a_second(log):
    assert log.by("alice", 1000) == BURST
    log.now_s += 5
    assert log.by("alice", 1000) == 5
    assert log.by("bob", 3) == 3


def test_what_was_left_out_is_counted_and_told_by_user_and_once(log):
    log.by("1000", BURST + 212)
    assert log.told(later_s=1) == []
    assert log.told() == ["212 further lines of user 1000 were left out"]
    assert log.told() == []
    log.by("1000", 100)
    assert log.told(later_s=0, at_once=True) != []


def test_many_users_have_so_many_lines_together_and_are_told_together(log):
    users = [str(uid) for uid in range(2 * MOST_KEPT)]
    for user in users:
        log.by(user, 2)
    assert len(log.lines) == BURST_OF_ALL
    told = log.told()
    assert len(told) == MOST_NAMED + 1
    lines, others = 2 * len(users) - BURST_OF_ALL, len(users) - BURST_OF_ALL // 2 - MOST_NAMED
    assert told[-1] == f"{lines - 2 * MOST_NAMED} further lines of {others} other users were left out"
    log.now_s += 1
    assert sum(log.by(user, 2) for user in users) <= PER_S_OF_ALL * (TELL_EVERY_S + 1)


def test_root_and_what_no_user_has_caused_are_not_limited(log):
    for _ in range(10 * BURST_OF_ALL):
        log.logger.info("an interface is gone")
    assert log.by("root", 10 * BURST_OF_ALL) == 10 * BURST_OF_ALL
    assert log.told() == []
