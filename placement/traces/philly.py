"""The trace of Microsoft's Philly clusters: `cluster_job_log` of github.com/msr-fiddle/philly-traces.

From "Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads" (Jeon et al., ATC 2019). The file is
a JSON list of jobs:

    {"status": "Pass", "vc": "ee9e8c", "jobid": "application_1506638472019_14199",
     "attempts": [{"start_time": "2017-10-07 01:12:09", "end_time": "2017-10-07 01:13:23",
                   "detail": [{"ip": "m47", "gpus": ["gpu0", "gpu1"]}]}],
     "submitted_time": "2017-10-07 01:11:39", "user": "ce2f4c"}

A job's GPUs are those of its first attempt, and its duration is from the start of the first to the end of the last
one, as in the analysis that comes with the trace; its arrival is `submitted_time`. Times are local, as written: the
hour that the end of summer time repeats is not told apart. Whether a job passed, failed or was killed makes no
difference: it had its GPUs.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from placement.model.job import Model
from placement.traces import entries
from placement.traces.entries import RecordedJob
from placement.traces.fields import Once, fault, shown
from placement.traces.models import PUBLISHED
from placement.traces.source import Source
from placement.traces.trace import Trace

_TIME = "%Y-%m-%d %H:%M:%S"
_NONE = (None, "", "None")
_NS_PER_S = 10**9
_SPACE = re.compile(r"[ \t\r\n]*")


def parse(source: Source, models: Mapping[str, Model] = PUBLISHED) -> Trace:
    """Read a trace; what each job trains is chosen by its name, and how long by its duration (see `entries`).

    Jobs are left out, and counted in `Trace.skipped`, that were never submitted, never started, have no end, ended
    before they started, or had no GPUs.

    Raises:
        UsageError: not JSON, not a list of jobs, a key is missing or of another type, a time is none, a jobid is
            there twice, or no job is left.
    """
    skipped: Counter[str] = Counter()
    kept: list[RecordedJob] = []
    once = Once()
    for place, document in _documents(source):
        jobid = _get(place, document, "jobid", str)
        once.add(jobid, place, "jobid")
        entry = _entry(place, jobid, document)
        if isinstance(entry, RecordedJob):
            kept.append(entry)
        else:
            skipped[entry] += 1
    return entries.trace(source, kept, models, skipped)


def _entry(place: str, jobid: str, document: Any) -> RecordedJob | str:
    """The job, or the reason why it is left out."""
    arrival_ns = _time_ns(place, document, "submitted_time")
    attempts = _get(place, document, "attempts", list)
    if not attempts:
        return "never started"
    gpus = sum(len(_get(place, each, "gpus", list)) for each in _get(place, attempts[0], "detail", list))
    begin_ns = _time_ns(place, attempts[0], "start_time")
    end_ns = _time_ns(place, attempts[-1], "end_time")
    if arrival_ns is None:
        return "never submitted"
    if begin_ns is None:
        return "never started"
    if end_ns is None:
        return "no end"
    if end_ns < begin_ns:
        return "ended before it started"
    return RecordedJob(jobid, arrival_ns, gpus, end_ns - begin_ns, place) if gpus else "no GPUs"


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
    if isinstance(document, dict) and key in document and document[key] in _NONE:
        return None
    text = _get(place, document, key, str)
    try:
        moment = datetime.strptime(text, _TIME)
    except ValueError:
        raise fault(place, key, f"{shown(text)} is no time", "YYYY-MM-DD hh:mm:ss") from None
    return (moment - datetime(1970, 1, 1)) // timedelta(seconds=1) * _NS_PER_S


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
