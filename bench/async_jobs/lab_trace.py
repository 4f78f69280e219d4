"""A trace of asynchronous jobs at the size of the lab."""

from __future__ import annotations

from statistics import fmean

from bench.async_jobs.kinds import KINDS, JobKind
from bench.lab.link import Link
from mltcp.core.errors import UsageError, shown
from mltcp.core.quantities import NS_PER_S
from placement.model.queueing import throughput
from placement.model.table_reader import MOST
from placement.model.throughput import Workload
from placement.traces.async_sgd import AsyncTrace
from placement.traces.deadlines import DeadlineJob, DeadlineTrace

_MOST_SCALE = 1000
_PARTS = 1000


def models() -> tuple[Workload, ...]:
    """The models that traces name; an epoch is a number of thousandths of mini-batches."""
    return tuple(
        Workload(
            kind.name,
            kind.workload().parameters,
            _PARTS,
            kind.workload().compute_ns,
            round(kind.batches_an_epoch * _PARTS),
            kind.epochs,
        )
        for kind in KINDS
    )


def lab_trace(trace: AsyncTrace, link: Link, gpus: int, load: float, scale: float) -> DeadlineTrace:
    """The jobs as executors run them, on the lab's clock.

    The rate of arrivals is lambda = load W / E[S(1)], where E[S(1)] is the mean over all kinds by nominal service
    times: it does not depend on what is measured.

    Args:
        trace: names the models of `models`.
        link: at the parameter servers.
        gpus: W.
        load: x.
        scale: factor for the mini-batches of every job, and so for all times.

    Raises:
        UsageError: load or scale is out of range.
    """
    if not 0 < load <= 1:
        raise UsageError(f"--load: expected more than 0 and up to 1, got {shown(load)}")
    if not 0 < scale <= _MOST_SCALE:
        raise UsageError(f"--scale: expected more than 0 and up to {_MOST_SCALE}, got {shown(scale)}")
    alone_s = fmean(scale * _alone_s(kind, link) for kind in KINDS)
    between_s = alone_s / (load * gpus)
    rows = zip(trace.arrival_units.tolist(), trace.model.tolist(), trace.batches().tolist(), strict=True)
    jobs = tuple(
        DeadlineJob(
            f"j{number}",
            round(units * between_s * NS_PER_S),
            KINDS[model].workload(max(1, round(scale * batches))),
            MOST,
        )
        for number, (units, model, batches) in enumerate(rows)
    )
    return DeadlineTrace(trace.name, jobs, seed=trace.seed)


def _alone_s(kind: JobKind, link: Link) -> float:
    """S(1) of a mean job."""
    return kind.batches_an_epoch * kind.epochs / throughput(kind.nominal(link), 1)
