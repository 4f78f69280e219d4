"""Jobs of a trace that are left out: how many, for which reasons, and the first that could not be read."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from mltcp.core.errors import UsageError
from mltcp.core.one_line import one_line

UNREADABLE = "cannot be read"
TWICE = "listed twice"


@dataclass(frozen=True)
class LeftOut:
    """The jobs of a file that are not in its trace.

    Attributes:
        counts: by reason.
        first: of those that cannot be read: "file:line: field: reason; expected what"; empty without any.
    """

    counts: Mapping[str, int] = field(default_factory=dict)
    first: str = ""

    def __str__(self) -> str:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(self.counts.items()))
        first = f" (first: {self.first})" if self.first else ""
        return f"left out: {reasons}{first}"

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {"jobs": sum(self.counts.values()), "reasons": dict(self.counts), "first": self.first or None}


class ReadTrace(Protocol):
    """A trace that was read from a file."""

    @property
    def name(self) -> str:
        """For reports."""

    @property
    def left_out(self) -> LeftOut:
        """The jobs of its file that are not in it."""


def tell_left_out(tool: str, *traces: ReadTrace) -> None:
    """Say on standard error what was left out of traces, a line each."""
    for trace in traces:
        if trace.left_out.counts:
            print(f"{tool}: {one_line(f'{trace.name}: {trace.left_out}')}", file=sys.stderr)


def left_out_document(traces: Iterable[ReadTrace]) -> dict[str, Any]:
    """What was left out of traces as JSON, by their names."""
    return {trace.name: trace.left_out.document() for trace in traces if trace.left_out.counts}


class JobSieve:
    """Collects, while a file is read, what is to be left out."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._first: UsageError | None = None
        self._kept: set[Hashable] = set()

    def leave_out(self, reason: str, count: int = 1) -> None:
        """Count jobs that are left out."""
        if count:
            self._counts[reason] += count

    @contextmanager
    def faults(self) -> Iterator[None]:
        """Leave the job out in whose reading a UsageError is raised."""
        try:
            yield
        except UsageError as error:
            self._first = self._first or error
            self.leave_out(UNREADABLE)

    def is_new(self, key: Hashable) -> bool:
        """Whether no job with this key has been asked for; one that has is left out."""
        if key in self._kept:
            self.leave_out(TWICE)
            return False
        self._kept.add(key)
        return True

    def check_some_left(self, jobs: int) -> None:
        """Refuse a file of which no job is left.

        Raises:
            UsageError: the first that was raised in `faults`.
        """
        if not jobs and self._first is not None:
            raise self._first

    def result(self) -> LeftOut:
        """What was left out so far."""
        return LeftOut(dict(self._counts), str(self._first or ""))
