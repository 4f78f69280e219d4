"""Numbers of GPUs for the spans of a run that counted only the GPUs of each node."""

from __future__ import annotations

import heapq

from placement.simulator.rates.outcome import RatesOutcome
from placement.simulator.rates.span import Span


def numbered_spans(outcome: RatesOutcome) -> tuple[Span, ...]:
    """The spans of an outcome with the numbers of their GPUs, those of the run if it has any.

    Otherwise each span gets the lowest free numbers of its nodes; those of one moment are taken in the order of the
    jobs, after all GPUs that are given back at that moment.
    """
    if outcome.spans:
        return outcome.spans
    table, nodes = outcome.table, outcome.table.placed.shape[1]
    per_node = outcome.gpus // nodes
    free = [list(range(node * per_node, (node + 1) * per_node)) for node in range(nodes)]
    ends: list[tuple[int, tuple[int, ...]]] = []
    spans = []
    starts = zip(table.start_ns.tolist(), table.job.tolist(), range(len(table.job)), strict=True)
    for start_ns, job, row in sorted(starts):
        while ends and ends[0][0] <= start_ns:
            for gpu in heapq.heappop(ends)[1]:
                heapq.heappush(free[gpu // per_node], gpu)
        counts = enumerate(table.placed[row].tolist())
        gpus = tuple(heapq.heappop(free[node]) for node, count in counts for _ in range(count))
        end_ns = int(table.end_ns[row])
        heapq.heappush(ends, (end_ns, gpus))
        spans.append(Span(outcome.trace.jobs[job].name, gpus, start_ns, end_ns, int(table.hold_ns[row])))
    return tuple(spans)
