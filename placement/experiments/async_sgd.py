"""The comparison of schedulers by mean response time: ``mltcp-placement jobs --workload async-sgd``.

JSQ-Chunk without a size of its chunks searches for the best one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TextIO

import numpy as np

from mltcp.core.policy_names import Vocabulary
from mltcp.core.quantities import S_PER_HOUR
from placement.experiments.comparison import (
    Column,
    ComparisonWorkload,
    Drawn,
    PolicyComparison,
    TraceRun,
    mean,
    mean_column,
)
from placement.experiments.console import open_console, ruled_table
from placement.experiments.statistics import half_interval
from placement.model.throughput import Workload
from placement.policies.schedulers.response.catalogue import (
    RESPONSE_SCHEDULERS,
    JsqChunk,
    Settings,
    check_chunk,
)
from placement.simulator.rates.response.settings import ResponseOutcome, ResponseSettings
from placement.traces.async_sgd import AsyncTrace, draw_trace

JSQ = "jsq-chunk"
NAMES = Vocabulary("policy", (*RESPONSE_SCHEDULERS, f"{JSQ}[-K]"))
"""The policies; ``jsq-chunk`` without K finds the best K."""

LARGEST_CHUNK = 50
"""The search tries chunks from one node to so many."""

BATCHES = 20
DROPPED = 2000
"""The first jobs of a trace, in the order of arrival, that means leave out; none of a trace of no more jobs."""

PERCENTILES = tuple(range(1, 100))
"""Of the times that are kept as a distribution."""

_SLACK_OF_NODES, _SLACK_OF_JOBS = 1, 100
_WIDE = 0.05

Runs = Sequence[TraceRun]


@dataclass(frozen=True)
class AsyncMix:
    """The parameters of a drawn trace.

    Attributes:
        models: of which the jobs are.
        jobs: of each trace.
    """

    models: tuple[Workload, ...]
    jobs: int

    def trace(self, seed: int) -> AsyncTrace:
        """See `draw_trace`."""
        return draw_trace(self.models, self.jobs, seed)


def interval_h(runs: Runs) -> float | None:
    """Half the width of the 95 % interval of the mean: from the means of the traces, or of one trace its own."""
    if len(runs) == 1:
        return runs[0]["interval_95_h"]
    return half_interval([run["mean_response_h"] for run in runs])


def is_stable(runs: Runs) -> bool:
    """Whether a policy is stable on all traces."""
    return all(run["stable"] for run in runs)


def is_wide(runs: Runs) -> bool:
    """Whether the interval is wider than 5 % of the mean, to either side."""
    interval = interval_h(runs)
    return interval is not None and interval > _WIDE * mean(runs, "mean_response_h")


def interval_text(runs: Runs) -> str:
    """Half the width of the interval, marked if it is wide."""
    interval = interval_h(runs)
    return "-" if interval is None else f"{interval:.1f}{'!' if is_wide(runs) else ''}"


@dataclass(frozen=True)
class AsyncSgd(ComparisonWorkload):
    """A stream of training jobs of any number of nodes.

    The values of a run: ``dropped`` of the first ``jobs``, that do not count in the means; ``mean_response_h`` from
    arrival to end; ``interval_95_h``, half the width of the 95 % confidence interval of that mean, from 20 batch means,
    None for fewer than two jobs a batch; ``to_40_percent_h``, the mean time from arrival until 40 % of a job is done;
    ``stable``, whether the jobs present after the last arrival are no more than the nodes and a hundredth of the jobs;
    ``most_present`` jobs at a time; ``left_at_last``, present after the last arrival; ``mean_response_all_h`` of all
    jobs; ``chunk``, K of JSQ-Chunk; ``percentiles_h``, from 1 to 99, of the response, and
    ``to_40_percent_percentiles_h``.

    Attributes:
        settings: the cluster and its load.
        parameters: of the policies; the load is that of `settings`.
    """

    settings: ResponseSettings
    parameters: Settings = field(default=Settings())

    shown = (
        *("jobs", "dropped", "mean_response_h", "interval_95_h", "to_40_percent_h", "stable"),
        *("most_present", "left_at_last", "mean_response_all_h"),
    )
    kept = ("chunk", "percentiles_h", "to_40_percent_percentiles_h")
    compared = "mean_response_h"
    columns = (
        mean_column("response\nmean (h)", "mean_response_h", ".1f"),
        Column("95 %\n+- (h)", interval_text),
        mean_column("to 40 %\nmean (h)", "to_40_percent_h", ".1f"),
        Column("most jobs\npresent", lambda runs: str(max(run["most_present"] for run in runs))),
        Column("\nstable", lambda runs: "yes" if is_stable(runs) else "no"),
    )

    def variants(self, policy: str) -> tuple[str, ...]:
        """JSQ-Chunk with each K that is tried where none is given.

        Raises:
            UsageError: an unknown name, parameters out of range, or a chunk larger than the cluster.
        """
        part = NAMES.parse(policy)
        if part.base != JSQ:
            self._scheduler(part.base)
        elif part.number is None:
            largest = min(LARGEST_CHUNK, self.settings.nodes)
            return tuple(f"{JSQ}-{chunk}" for chunk in range(1, largest + 1))
        else:
            check_chunk(part.number, self.settings.nodes)
        return (policy,)

    def best(self, candidates: Sequence[Runs]) -> Runs:
        """Those with the least mean response time; stable ones before others."""
        return min(candidates, key=lambda runs: (not is_stable(runs), mean(runs, "mean_response_h")))

    def run(self, trace: AsyncTrace, policy: str) -> dict[str, Any]:
        """See `ComparisonWorkload.run`."""
        from placement.simulator.rates.response.run import run_response  # compiled: slow to import

        part = NAMES.parse(policy)
        scheduler = JsqChunk(part.number) if part.number is not None else self._scheduler(part.base)
        outcome = run_response(trace, self.settings, scheduler)
        return values_of(outcome, self.settings.nodes) | {"chunk": part.number}

    def identity(self, trace: AsyncTrace | Drawn, policy: str) -> object:
        """With all numbers of a trace that was read: the `repr` of arrays is shortened."""
        if isinstance(trace, Drawn):
            return self, trace, policy
        columns = (trace.arrival_units, trace.model, trace.epochs)
        numbers = hashlib.sha256(b"".join(np.ascontiguousarray(each).tobytes() for each in columns))
        return self, trace.name, trace.models, numbers.hexdigest(), policy

    def policy_document(self, policy: str, runs: Runs) -> dict[str, Any]:
        """With the K that was found."""
        chunk = runs[0]["chunk"]
        return {
            "policy": policy,
            **({} if chunk is None else {"chunk": chunk}),
            "mean_response_h": mean(runs, "mean_response_h"),
            "interval_95_h": interval_h(runs),
            "to_40_percent_h": mean(runs, "to_40_percent_h"),
            "stable": is_stable(runs),
            "traces": [run.document(self.shown) for run in runs],
        }

    def _scheduler(self, base: str) -> Any:
        return RESPONSE_SCHEDULERS[base](replace(self.parameters, load=self.settings.load))


def values_of(outcome: ResponseOutcome, nodes: int) -> dict[str, Any]:
    """The values of a run on so many nodes, but for the chunk."""
    jobs = len(outcome.arrival_s)
    dropped = DROPPED if jobs > DROPPED else 0
    response_h = (outcome.end_s - outcome.arrival_s) / S_PER_HOUR
    part_h = (outcome.part_s - outcome.arrival_s) / S_PER_HOUR
    return {
        "jobs": jobs,
        "dropped": dropped,
        "mean_response_h": float(response_h[dropped:].mean()),
        "interval_95_h": half_interval_of_batches(response_h[dropped:]),
        "to_40_percent_h": float(part_h[dropped:].mean()),
        "stable": bool(outcome.left_at_last <= _SLACK_OF_NODES * nodes + jobs / _SLACK_OF_JOBS),
        "most_present": outcome.most_present,
        "left_at_last": outcome.left_at_last,
        "mean_response_all_h": float(response_h.mean()),
        "percentiles_h": _percentiles(response_h[dropped:]),
        "to_40_percent_percentiles_h": _percentiles(part_h[dropped:]),
    }


def _percentiles(values: np.ndarray) -> list[float]:
    return [float(each) for each in np.percentile(values, PERCENTILES)]


def half_interval_of_batches(values: np.ndarray) -> float | None:
    """Half the width of the 95 % interval of the mean of a stationary series, by 20 batch means.

    None for fewer than two values a batch. What is left over by whole batches does not count.
    """
    size = len(values) // BATCHES
    if size < 2:
        return None
    return half_interval(values[: size * BATCHES].reshape(BATCHES, size).mean(axis=1).tolist())


# -- the table ---------------------------------------------------------------------------------------------------------


def print_results(title: str, comparison: PolicyComparison, file: TextIO | None = None) -> None:
    """Print a row a policy, with its difference from the first, or from the baseline where there is one."""
    first = comparison.baseline or next(iter(comparison.runs))
    rows = []
    for policy, runs in comparison.runs.items():
        against = comparison.paired(policy, AsyncSgd.compared, first)
        half = "" if against.half_percent is None else f" +- {against.half_percent:.2f}"
        difference = "" if policy == first else f"{against.difference_percent:+.2f}{half}"
        cells = (column.cell(runs) for column in AsyncSgd.columns)
        rows.append((_shown_name(policy, runs[0]["chunk"]), *cells, difference))
    to = "the first" if comparison.baseline is None else first
    headers = (*(column.header for column in AsyncSgd.columns), f"to {to}\n(paired, %)")
    open_console(file).print(ruled_table(title, "policy", headers, rows))
    warn_of_wide(comparison.runs.values(), file)


def warn_of_wide(results: Iterable[Runs], file: TextIO | None = None) -> None:
    """Say so if the interval of any of them is wide."""
    if any(is_wide(runs) for runs in results):
        open_console(file).print(
            "! the interval is wider than 5 % of the mean: more jobs or traces are needed"
        )


def _shown_name(policy: str, chunk: int | None) -> str:
    """The policy, with the K that was found."""
    return policy if chunk is None or policy.endswith(f"-{chunk}") else f"{policy}, K = {chunk}"
