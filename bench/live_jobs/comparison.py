"""What the live comparisons of whole jobs share: policies in turn, records that are kept, tables and pictures."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

from bench.lab.network import namespaces
from bench.plain_documents import made_of
from mltcp.core.atomic_files import write_atomically
from placement.experiments.run_journal import LoggedRun, RunJournal
from placement.simulator.rates.outcome import RatesOutcome, Span

Record = TypeVar("Record", bound=LoggedRun)


class _NamedJob(Protocol):
    @property
    def name(self) -> str: ...


@dataclass(frozen=True)
class SpanRun:
    """The record of a run; classes of comparisons add what else they record.

    Attributes:
        key: the same for the same trace, policy and lab.
        policy: its name.
        spans: of all jobs, on the lab's clock.
    """

    key: str
    policy: str
    spans: tuple[Span, ...]

    def line(self) -> str:
        """The run as a line of JSON, without a newline."""
        return json.dumps(asdict(self), separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_line(cls, line: bytes) -> Self:
        """Read what `line` wrote; ValueError or TypeError if it is anything else."""
        run: Self = made_of(cls, json.loads(line))
        return run


def run_policies(
    policies: Iterable[str],
    jobs: Sequence[_NamedJob],
    key_of: Callable[[str], str],
    run: Callable[[str, str, Callable[[str], None]], Record],
    journal: RunJournal[Any] | None,
    on_end: Callable[[str, str], None],
) -> list[Record]:
    """The record of every policy, run one after the other; those that the journal has are not run again.

    Args:
        policies: their names.
        jobs: of the trace.
        key_of: gives the key of the run under a policy.
        run: runs a policy under a key, and calls a function with the name of each job that ends.
        journal: keeps each record as soon as its run is finished; None: nothing is kept.
        on_end: called with the policy and the job when a job ends, or is found to have ended.

    Raises:
        NotAvailableError: not root, or the kernel lacks something.
        MltcpError: a job failed.
    """
    found = []
    for policy in policies:
        key = key_of(policy)
        record = None if journal is None else journal.runs.get(key)
        if record is None:
            namespaces.require_privileges()
            record = run(policy, key, lambda job, policy=policy: on_end(policy, job))  # type: ignore[misc]
            if journal is not None:
                journal.add(record)
        else:
            for job in jobs:
                on_end(policy, job.name)
        found.append(record)
    return found


def short_key(determines: object) -> str:
    """The key of a run, by the representation of all that determines it."""
    return hashlib.sha256(repr(determines).encode()).hexdigest()[:20]


def print_policies(
    title: str, columns: Sequence[str], rows: Mapping[str, Sequence[str]], of: str = "policy"
) -> None:
    """Print a table with a row of cells for each policy, or of what else it is."""
    from placement.experiments.console import open_console, ruled_table

    table = ruled_table(title, of, columns, [(policy, *cells) for policy, cells in rows.items()])
    open_console(None).print(table)


def write_results(
    file: Path, document: Mapping[str, Any], nodes: int, gpus: int, outcomes: Mapping[str, RatesOutcome]
) -> list[str]:
    """Write the document, and a Gantt picture ``gantt-NAME.svg`` of each outcome beside it; returns the files."""
    from placement.plots import timelines, whole_jobs
    from placement.plots.style import write

    write_atomically(file, json.dumps(document, allow_nan=False).encode() + b"\n")
    written = [file]
    for name, outcome in outcomes.items():
        timeline = whole_jobs.gantt_timeline(outcome, nodes, gpus)
        written.append(file.with_name(f"gantt-{name}.svg"))
        write(lambda timeline=timeline: timelines.gantt_figure(timeline), written[-1])  # type: ignore[misc]
    return [str(path) for path in written]
