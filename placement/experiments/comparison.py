"""One comparison for all workloads: policies on the same traces, on all cores, kept, and compared in pairs.

A `ComparisonWorkload` says how a policy runs on a trace and which values come of it; a `ComparisonPlan` says which
policies run on which traces. The values of each finished run are a line of a journal, from which an interrupted
comparison goes on.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar, Generic, Protocol, TextIO, TypeVar

import numpy as np

from mltcp.core import atomic_files
from mltcp.core.errors import UsageError, shown
from mltcp.core.progress import progress_bar
from placement.experiments.console import open_console, ruled_table
from placement.experiments.run_journal import RunJournal, kept_runs, read_journal
from placement.experiments.statistics import Paired, paired
from placement.experiments.workers import Workers

_SOURCES = ("cassini", "experiments", "learning", "model", "policies", "simulator", "traces")
"""The sub-packages that determine the values of a run, beside `mltcp.core`."""

_RUN = ("key", "policy", "trace", "seed")


# -- traces and runs ---------------------------------------------------------------------------------------------------


class Mix(Hashable, Protocol):
    """What traces are drawn from: a value."""

    def trace(self, seed: int) -> Any:
        """The trace of a seed."""


@dataclass(frozen=True)
class Drawn:
    """A trace that is drawn in the process that runs it.

    Attributes:
        mix: the parameters.
        seed: of the trace.
    """

    mix: Mix
    seed: int


@lru_cache(maxsize=64)
def _drawn(mix: Mix, seed: int) -> Any:
    return mix.trace(seed)


def trace_of(trace: Any) -> Any:
    """The trace itself; one that is `Drawn` is drawn, once in a process.

    Raises:
        UsageError: the mix has no trace of this seed.
    """
    return _drawn(trace.mix, trace.seed) if isinstance(trace, Drawn) else trace


@dataclass(frozen=True)
class TraceRun:
    """What came of a policy on a trace.

    Attributes:
        key: the same for the same trace, policy and workload, run by the same code.
        policy: its name.
        trace: its name.
        seed: of the trace; None if it was read.
        values: by name, as JSON has them.
    """

    key: str
    policy: str
    trace: str
    seed: int | None
    values: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def line(self) -> str:
        """The run as a line of JSON, without a newline."""
        named = {name: getattr(self, name) for name in _RUN}
        return json.dumps({**named, **self.values}, separators=(",", ":"), allow_nan=False)

    def document(self, names: Sequence[str]) -> dict[str, Any]:
        """The entry of `traces` in the JSON document, with the values of these names."""
        which = {"trace": self.trace} if self.seed is None else {"seed": self.seed}
        return which | {name: self.values[name] for name in names}


def mean(runs: Sequence[TraceRun], name: str) -> float:
    """The mean of a value over traces, each of which counts the same."""
    return fmean(run[name] for run in runs)


def pooled(runs: Sequence[TraceRun], name: str) -> np.ndarray:
    """A value that is a list, of all traces together."""
    return np.concatenate([run[name] for run in runs])


# -- workloads ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """A column of the table of policies.

    Attributes:
        header: of one line or two.
        cell: the text for the runs of a policy.
    """

    header: str
    cell: Callable[[Sequence[TraceRun]], str]


def mean_column(header: str, name: str, form: str, unit: float = 1) -> Column:
    """A column of means over traces, in multiples of `unit`."""
    return Column(header, lambda runs: format(mean(runs, name) / unit, form))


class ComparisonWorkload(ABC):
    """One kind of comparison: how a policy runs on a trace, and what is measured; a frozen dataclass of its settings.

    Attributes:
        shown: the values of a run that its entry in the JSON document has, in its order.
        kept: the values that are kept besides, for means, tables and pictures.
        means: the values whose means over traces the JSON document has.
        columns: of the table.
        compared: the value by which policies are compared with the baseline, in pairs of runs on the same trace.
    """

    shown: ClassVar[tuple[str, ...]]
    kept: ClassVar[tuple[str, ...]] = ()
    means: ClassVar[tuple[str, ...]] = ()
    columns: ClassVar[tuple[Column, ...]] = ()
    compared: ClassVar[str]

    @abstractmethod
    def run(self, trace: Any, policy: str) -> dict[str, Any]:
        """The values of `shown` and `kept`, as JSON has them.

        Raises:
            UsageError: the policy or the trace does not fit.
            MltcpError: the policy never places a job.
        """

    def identity(self, trace: Any, policy: str) -> object:
        """A value whose `repr` differs wherever the result of a run may."""
        return self, trace, policy

    def variants(self, policy: str) -> tuple[str, ...]:
        """The policies that are run for one: itself, or those of which `best` takes one.

        Raises:
            UsageError: the policy cannot be run.
        """
        return (policy,)

    def best(self, candidates: Sequence[Sequence[TraceRun]]) -> Sequence[TraceRun]:
        """The runs of the best variant."""
        return candidates[0]

    def policy_document(self, policy: str, runs: Sequence[TraceRun]) -> dict[str, Any]:
        """The entry of `policies` in the JSON document."""
        means = {name: mean(runs, name) for name in self.means}
        return {"policy": policy, **means, "traces": [run.document(self.shown) for run in runs]}

    def against(self, comparison: PolicyComparison, policy: str) -> dict[str, Any]:
        """What the entry of `policies` has besides where there is a baseline."""
        paired = comparison.paired(policy, self.compared)
        return {"against_baseline": {self.compared: paired.document()}}

    def against_text(self, comparison: PolicyComparison, policy: str) -> str:
        """The difference from the baseline, as a line."""
        found = comparison.paired(policy, self.compared)
        half = "" if found.half_percent is None else f" +- {found.half_percent:.2f}"
        name = self.compared.removesuffix("_h").removesuffix("_s").replace("_", " ")
        return f"{policy} - {comparison.baseline}: {found.difference_percent:+.2f}{half} % of the {name}"

    @classmethod
    def parse(cls, line: bytes) -> TraceRun:
        """Read what `TraceRun.line` wrote; ValueError if it is anything else, or of another workload."""
        document = json.loads(line)
        names = (*cls.shown, *cls.kept)
        if not isinstance(document, dict) or set(document) != {*_RUN, *names}:
            raise ValueError("not a run")
        key, policy, trace, seed = (document[name] for name in _RUN)
        return TraceRun(key, policy, trace, seed, {name: document[name] for name in names})


# -- plans -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """What a process does at a time: a policy on some traces."""

    workload: ComparisonWorkload
    policy: str
    traces: tuple[Any, ...]

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The key of the run on each trace."""
        identities = (self.workload.identity(trace, self.policy) for trace in self.traces)
        return tuple(digest(f"{identity!r} {_program()}") for identity in identities)

    def run(self) -> tuple[TraceRun, ...]:
        """The runs."""
        found = []
        for key, given in zip(self.keys, self.traces, strict=True):
            trace = trace_of(given)
            found.append(
                TraceRun(key, self.policy, trace.name, trace.seed, self.workload.run(trace, self.policy))
            )
        return tuple(found)


WorkloadT = TypeVar("WorkloadT", bound=ComparisonWorkload)


@dataclass(frozen=True)
class ComparisonPlan(Generic[WorkloadT]):
    """The plan of a comparison: every policy on every trace.

    Attributes:
        workload: how they run.
        policies: their names.
        traces: each `Drawn`, or a trace with a `name` and a `seed`, which is None if it was read.
        baseline: the policy that the others are compared with; None for none.
        at_a_time: traces that a process runs before it is asked again.

    Raises:
        UsageError: no traces, a baseline that is not among the policies, or a policy that cannot be run.
    """

    workload: WorkloadT
    policies: tuple[str, ...]
    traces: tuple[Any, ...]
    baseline: str | None = None
    at_a_time: int = 1

    def __post_init__(self) -> None:
        if not self.traces:
            raise UsageError("traces: expected one or more, got no traces")
        if self.baseline is not None and self.baseline not in self.policies:
            raise UsageError(
                f"--baseline: expected one of {', '.join(self.policies)}, got {shown(self.baseline)}"
            )
        for policy in self.policies:
            self.workload.variants(policy)

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """What there is to do; parts with the same traces follow each other."""
        size = self.at_a_time
        chunks = [self.traces[first : first + size] for first in range(0, len(self.traces), size)]
        policies = [variant for policy in self.policies for variant in self.workload.variants(policy)]
        return tuple(
            Part(self.workload, policy, chunk) for chunk in chunks for policy in dict.fromkeys(policies)
        )

    def result(self, runs: Mapping[str, TraceRun]) -> PolicyComparison:
        """The comparison, of runs by their keys."""
        by_policy: dict[str, list[TraceRun]] = {}
        for part in self.parts:
            by_policy.setdefault(part.policy, []).extend(runs[key] for key in part.keys)
        found = {
            policy: self.workload.best([by_policy[each] for each in self.workload.variants(policy)])
            for policy in self.policies
        }
        return PolicyComparison(self.baseline, found)


@dataclass(frozen=True)
class PolicyComparison:
    """Policies on traces, each with each.

    Attributes:
        baseline: the policy that the others are compared with; None for none.
        runs: per policy, in their order, a run per trace, in the same order for all.
    """

    baseline: str | None
    runs: Mapping[str, Sequence[TraceRun]]

    def mean(self, policy: str, name: str) -> float:
        """The mean of a value over traces."""
        return mean(self.runs[policy], name)

    def paired(self, policy: str, name: str, baseline: str | None = None) -> Paired:
        """The policy against the baseline, trace by trace."""
        base = self.runs[baseline or self.baseline or ""]
        return paired([run[name] for run in self.runs[policy]], [run[name] for run in base])

    def only(self, policies: Sequence[str]) -> PolicyComparison:
        """These policies in this order; UsageError names one that is not there."""
        for policy in policies:
            if policy not in self.runs:
                raise UsageError(f"no policy {policy!r} was compared: {', '.join(self.runs)} were")
        baseline = self.baseline if self.baseline in policies else policies[0]
        return PolicyComparison(baseline, {policy: self.runs[policy] for policy in policies})

    @property
    def others(self) -> tuple[str, ...]:
        """The policies that are compared with the baseline; none without one."""
        return () if self.baseline is None else tuple(each for each in self.runs if each != self.baseline)

    def documents(self, workload: ComparisonWorkload) -> list[dict[str, Any]]:
        """The entries of `policies` in the JSON document."""
        return [
            workload.policy_document(policy, runs)
            | (workload.against(self, policy) if policy in self.others else {})
            for policy, runs in self.runs.items()
        ]

    def show(
        self, workload: ComparisonWorkload, title: str, first: str = "policy", file: TextIO | None = None
    ) -> None:
        """Print the table, a row a policy, and the difference of each from the baseline, if there is one."""
        console = open_console(file)
        rows = (
            (policy, *(column.cell(runs) for column in workload.columns))
            for policy, runs in self.runs.items()
        )
        console.print(ruled_table(title, first, [column.header for column in workload.columns], rows))
        for policy in self.others:
            console.print(workload.against_text(self, policy))


# -- running them ------------------------------------------------------------------------------------------------------


def run_parts(
    parts: Iterable[Part],
    processes: int,
    journal: RunJournal[TraceRun] | None = None,
    done: Callable[[Part, int], None] = lambda part, left: None,
    apart: bool = False,
) -> dict[str, TraceRun]:
    """Run what the journal does not have yet; returns all runs by their keys.

    Args:
        parts: of one or more plans; equal ones are run once.
        processes: how many run at a time; one runs in this process.
        journal: keeps each run as soon as it is finished.
        done: called after each part with the number of those that are left.
        apart: run nothing in this process, which then reacts to Ctrl-C at once: compiled code does not.

    Raises:
        MltcpError: the journal cannot be written, or a process was killed.
    """
    different = {part.keys: part for part in parts}
    known = {} if journal is None else journal.runs
    runs = {key: known[key] for keys in different for key in keys if key in known}
    todo = [part for keys, part in different.items() if not all(key in runs for key in keys)]
    for number, (part, found) in enumerate(_results(todo, processes, apart), start=1):
        new = [run for run in found if run.key not in runs]
        runs.update((run.key, run) for run in new)
        if journal is not None:
            journal.add(*new)
        done(part, len(todo) - number)
    return runs


def run_plans(
    plans: Sequence[ComparisonPlan[Any]],
    processes: int,
    folder: Path | None,
    *,
    apart: bool = False,
    opened: Callable[[], None] = lambda: None,
) -> dict[str, TraceRun]:
    """Run plans of one workload with a progress bar, and keep the runs in a folder; see `run_parts`.

    Args:
        plans: one or more.
        processes: how many run at a time.
        folder: where runs are kept, made if need be; None for nowhere.
        apart: run nothing in this process.
        opened: called when the folder is made, and no other command works there.

    Raises:
        UsageError: the folder cannot be made, holds something else, or another command is at work there.
        MltcpError: it cannot be written to, or a process was killed.
        KeyboardInterrupt: says how many runs are kept.
    """
    parts = [part for plan in plans for part in plan.parts]
    parse = plans[0].workload.parse
    with kept_runs(folder, parse) as journal:
        opened()
        if len(parts) == 1 and not apart:  # over in no time: a bar would take longer
            return run_parts(parts, 1, journal)
        try:
            with progress_bar(len(parts), transient=True) as bar:
                return run_parts(
                    parts, processes, journal, lambda part, left: bar.remaining(part.policy, left), apart
                )
        except KeyboardInterrupt:
            kept = "nothing is kept without -o"
            if folder is not None:
                keys = {key for part in parts for key in part.keys}
                count = len(keys & set(read_journal(folder, parse)))
                kept = (
                    f"{count} of {len(keys)} runs are kept in {folder}: the same command goes on from there"
                )
            raise KeyboardInterrupt(f"interrupted; {kept}") from None


def write_document(folder: Path, name: str, text: str) -> None:
    """Write a JSON document into a folder.

    Raises:
        MltcpError: it cannot be written.
    """
    atomic_files.write_atomically(folder / name, text.encode() + b"\n")


def perform(part: Part) -> tuple[TraceRun, ...]:
    """Run a part; what worker processes call."""
    return part.run()


def _results(
    parts: Sequence[Part], processes: int, apart: bool
) -> Iterator[tuple[Part, tuple[TraceRun, ...]]]:
    here = 0 if apart else len(parts) if processes <= 1 else 1
    yield from ((part, part.run()) for part in parts[:here])  # what is compiled here, the workers inherit
    left = parts[here:]
    if left:
        with Workers(perform, min(processes, len(left)), fork=True) as workers:
            yield from workers.results(left)


def digest(text: str) -> str:
    """A digest that tells texts apart."""
    return hashlib.sha256(text.encode()).hexdigest()[:20]


@cache
def _program() -> str:
    """A digest of the code that determines what comes of a run: another version's runs are other runs."""
    root = Path(__file__).parents[1]
    folders = (*(root / name for name in _SOURCES), Path(atomic_files.__file__).parent)
    found = hashlib.sha256()
    for path in sorted(path for folder in folders for path in folder.rglob("*.py")):
        found.update(str(path.relative_to(root.parent)).encode() + path.read_bytes())
    return found.hexdigest()
