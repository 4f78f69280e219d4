"""The daemon's log: one line for each action, with names of users escaped; a user can cause so many lines only."""

from __future__ import annotations

import logging
import os
from typing import TextIO

from mltcp.core.one_line import one_line
from mltcp.core.user_lines import UserLines

_PRIORITY = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}


_LINES = UserLines()


def tell_left_out(at_once: bool = False) -> None:
    """Log how many lines of users were left out; to be called about once a second, and at the end."""
    _LINES.tell(logging.getLogger("mltcp.daemon"), at_once)


def configure(stream: TextIO) -> None:
    """Log to a stream; in the format of the systemd journal, without times, if that is connected (sd-daemon(3))."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_OneLine(for_journal=_is_journal(stream)))
    logger = logging.getLogger("mltcp.daemon")
    logger.handlers[:] = [handler]
    logger.filters[:] = [_LINES]
    logger.setLevel(logging.INFO)
    logger.propagate = False


def _is_journal(stream: TextIO) -> bool:
    """Whether systemd connected this stream to its journal; source: JOURNAL_STREAM in systemd.exec(5)."""
    try:
        status = os.fstat(stream.fileno())
    except OSError:  # it is not a file
        return False
    # A process started from a unit inherits the variable even if its stream is redirected.
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


class _OneLine(logging.Formatter):
    def __init__(self, for_journal: bool) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")
        self._for_journal = for_journal

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage() if self._for_journal else super().format(record)
        if self._for_journal and record.exc_info:
            text += " " + self.formatException(record.exc_info)
        line = one_line(text)
        return f"<{_PRIORITY.get(record.levelno, 6)}>{line}" if self._for_journal else line
