"""Run a trace of training jobs under a scheduler of mean response time, compiled."""

from __future__ import annotations

import numpy as np

from mltcp.core.errors import MltcpError
from placement.policies.schedulers.response.catalogue import ResponseScheduler
from placement.policies.schedulers.response.jsq_chunk import JsqChunk, check_chunk
from placement.policies.schedulers.response.ordered_shares import OrderedShares
from placement.simulator.rates.response.chunks import run_chunks
from placement.simulator.rates.response.loop import run
from placement.simulator.rates.response.outcome import ResponseOutcome
from placement.simulator.rates.response.settings import ResponseSettings
from placement.simulator.rates.response.state import Jobs, Present
from placement.simulator.rates.response.tables import rule_of, tables_of
from placement.traces.async_sgd import AsyncTrace


def run_response(
    trace: AsyncTrace, settings: ResponseSettings, scheduler: ResponseScheduler | JsqChunk
) -> ResponseOutcome:
    """Run a trace to its end.

    Raises:
        UsageError: a chunk is larger than the cluster.
        MltcpError: jobs wait that the scheduler never serves.
    """
    if isinstance(scheduler, JsqChunk):
        check_chunk(scheduler.chunk, settings.nodes)
    speeds = tuple(settings.speeds(model) for model in trace.models)
    rule = scheduler.rule if isinstance(scheduler, OrderedShares) else None
    tables = tables_of(speeds, rule)  # type: ignore[arg-type]  # rules are values
    count = len(trace)
    jobs = Jobs(
        arrival=trace.arrival_units / settings.rate(trace),
        model=trace.model.astype(np.int64),
        size=trace.batches(),
        end=np.zeros(count),
        part=np.full(count, np.inf),
        share=float(settings.share),
    )
    if isinstance(scheduler, JsqChunk):
        finished, most, at_last, area = run_chunks(tables, jobs, settings.nodes, scheduler.chunk)
    else:
        present = _present(count)
        finished, most, at_last, area = run(rule_of(scheduler), tables, jobs, present, settings.nodes)
    if not finished:
        raise MltcpError(f"{scheduler.name}: jobs of {trace.name} are never served")
    return ResponseOutcome(jobs.arrival, jobs.end, jobs.part, most, at_last, area)


def _present(jobs: int) -> Present:
    whole, real = np.zeros((4, jobs + 1), np.int64), np.zeros((5, jobs + 1))
    return Present(
        number=whole[0],
        model=whole[1],
        nodes=whole[2],
        order=whole[3],
        size=real[0],
        left=real[1],
        priority=real[2],
        expected=real[3],
        worth=real[4],
    )
