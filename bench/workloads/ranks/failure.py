"""The report of a rank that raises, to its launcher."""

import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection


@dataclass(frozen=True)
class RankFailed:
    """The rank raised: the error in one line, and its traceback."""

    error: str
    traceback: str


@dataclass(frozen=True)
class RankLost:
    """The host of a rank cannot be reached any more, or its agent has ended: the cause in one line."""

    cause: str


@contextmanager
def failures_reported(connection: Connection) -> Iterator[None]:
    """The frame of a rank's main function: any error is sent as RankFailed and ends the process with status 1.

    SIGINT is ignored: a terminal sends it to the whole process group, but the launcher ends the ranks.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    except BaseException as error:
        line = "".join(traceback.format_exception_only(error)).splitlines()[0]
        # The launcher may be gone.
        with suppress(OSError):
            connection.send(RankFailed(line, "".join(traceback.format_exception(error))))
        raise SystemExit(1) from None
