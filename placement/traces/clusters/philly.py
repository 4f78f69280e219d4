"""The trace of Microsoft's Philly clusters: `cluster_job_log` of github.com/msr-fiddle/philly-traces.

From "Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads" (Jeon et al., ATC 2019). The file is
a JSON list of jobs:

    {"status": "Pass", "vc": "ee9e8c", "jobid": "application_1506638472019_14199",
     "attempts": [{"start_time": "2017-10-07 01:12:09", "end_time": "2017-10-07 01:13:23",
                   "detail": [{"ip": "m47", "gpus": ["gpu0", "gpu1"]}]}],
     "submitted_time": "2017-10-07 01:11:39", "user": "ce2f4c"}

A job's GPUs are those of its first attempt that started with any, and its duration is from that start to the end of
the last attempt that started, as in the analysis that comes with the trace; its arrival is `submitted_time`. Times are
local, as written: the hour that the end of summer time repeats is not told apart. Whether a job passed, failed or was
killed makes no difference: it had its GPUs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

from mltcp.core.errors import shown
from placement.model.table_reader import Field, Source, fault
from placement.traces.recorded_trace import (
    UNKNOWN,
    RecordedJob,
    RecordedTrace,
    moment_ns,
    recorded_trace,
)
from placement.traces.trace import TWICE, JobSieve

FILES = ("cluster_job_log",)

_SPACE = re.compile(r"[ \t\r\n]*")


def parse(source: Source) -> RecordedTrace:
    """Read a trace.

    Jobs are left out, and counted in `Trace.left_out`, that were never submitted, never started, have no end, ended
    before they started, had no GPUs, or are listed before; and those of which a key is missing or of another type, or
    a time is none.

    Raises:
        UsageError: not JSON, not a list of jobs, or no job is left.
    """
    sieve = JobSieve()
    kept: dict[str, RecordedJob] = {}
    for place, document in _documents(source):
        with sieve.faults():
            jobid = _get(place, document, "jobid", str)
            entry = _entry(place, jobid, document)
            if not isinstance(entry, RecordedJob):
                sieve.leave_out(entry)
            elif jobid in kept:
                sieve.leave_out(TWICE)
            else:
                kept[jobid] = entry
    return recorded_trace(source, kept.values(), sieve)


def _entry(place: str, jobid: str, document: Any) -> RecordedJob | str:
    """The job, or the reason why it is left out."""
    arrival_ns = _time_ns(place, document, "submitted_time")
    attempts = [_Attempt.of(place, each) for each in _list(place, document, "attempts")]
    started = [each for each in attempts if each.begin_ns is not None]
    with_gpus = next((each for each in started if each.gpus), None)
    if arrival_ns is None:
        return "never submitted"
    if not started:
        return "never started"
    first, last = with_gpus or started[0], started[-1]
    if last.end_ns is None:
        return "no end"
    duration_ns = last.end_ns - (first.begin_ns or 0)
    if duration_ns < 0:
        return "ended before it started"
    if not with_gpus:
        return "no GPUs"
    user = document.get("user")
    return RecordedJob(
        jobid, arrival_ns, first.gpus, duration_ns, place, user if isinstance(user, str) else ""
    )


@dataclass(frozen=True)
class _Attempt:
    gpus: int
    begin_ns: int | None
    end_ns: int | None

    @classmethod
    def of(cls, place: str, document: Any) -> Self:
        gpus = sum(len(_list(place, each, "gpus")) for each in _list(place, document, "detail"))
        return cls(gpus, _time_ns(place, document, "start_time"), _time_ns(place, document, "end_time"))


def _list(place: str, document: Any, key: str) -> list[Any]:
    """The list of this key, empty where it is null."""
    if isinstance(document, dict) and key in document and document[key] is None:
        return []
    found: list[Any] = _get(place, document, key, list)
    return found


def _get(place: str, document: Any, key: str, kind: type) -> Any:
    expected = "a list" if kind is list else "a string"
    if not isinstance(document, dict):
        raise fault(place, key, f"{shown(document)} is no object", "an object with this key")
    if key not in document:
        raise fault(place, key, "is missing", expected)
    if not isinstance(document[key], kind):
        raise fault(place, key, f"{shown(document[key])} is none", expected)
    return document[key]


def _time_ns(place: str, document: Any, key: str) -> int | None:
    if isinstance(document, dict) and key in document and str(document[key]).strip().lower() in UNKNOWN:
        return None
    return moment_ns(Field(place, key, _get(place, document, key, str)))


def _documents(source: Source) -> Iterator[tuple[str, Any]]:
    """Yield the elements of the list, each with its line, which json.loads would not tell."""
    cursor = _Cursor(source)
    cursor.expect("[", "a list of jobs")
    is_open = not cursor.take("]")
    while is_open:
        place = source.place(cursor.line)
        yield place, cursor.value()
        is_open = cursor.take(",")
        if not is_open:
            cursor.expect("]", "a comma and another job, or the end of the list")
    if cursor.position < len(source.text):
        raise fault(source.place(cursor.line), "file", "more follows the list", "the end of the file")


class _Cursor:
    """A position in JSON text, past any white space."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.position = 0
        self.line = 1
        self._decoder = json.JSONDecoder()
        self._move(0)

    def take(self, mark: str) -> bool:
        """Skip `mark` if it is here; returns whether it was."""
        if not self.source.text.startswith(mark, self.position):
            return False
        self._move(self.position + len(mark))
        return True

    def expect(self, mark: str, expected: str) -> None:
        """Pass over `mark`.

        Raises:
            UsageError: something else is here.
        """
        if not self.take(mark):
            raise fault(self.source.place(self.line), "file", f"no {mark!r} where one must be", expected)

    def value(self) -> Any:
        """Pass over a value.

        Raises:
            UsageError: none is here.
        """
        place, expected = self.source.place(self.line), "JSON"
        try:
            value, end = self._decoder.raw_decode(self.source.text, self.position)
        except json.JSONDecodeError as error:
            raise fault(self.source.place(error.lineno), "file", error.msg, expected) from None
        except RecursionError:
            raise fault(place, "file", "nested too deeply", expected) from None
        except ValueError:
            raise fault(place, "file", "a number of thousands of digits", expected) from None
        self._move(end)
        return value

    def _move(self, position: int) -> None:
        match = _SPACE.match(self.source.text, position)
        assert match, "the pattern matches the empty string"
        self.line += self.source.text.count("\n", self.position, match.end())
        self.position = match.end()
