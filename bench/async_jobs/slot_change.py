"""The workers that have to leave and to join so that a decision about GPUs is carried out."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from placement.simulator.rates.outcome import Span


@dataclass(frozen=True)
class SlotChange:
    """The difference between the workers that are there and those that a decision wants.

    Attributes:
        leaves: the GPUs whose worker has to leave, ascending.
        joins: the GPUs that get a worker of a job, ascending; some of them have to be left first.
    """

    leaves: tuple[int, ...]
    joins: tuple[tuple[int, str], ...]


def slot_change(present: Mapping[int, str], wanted: Mapping[int, str]) -> SlotChange:
    """Only workers on GPUs that were taken from their job leave, and only GPUs that are new to a job get one.

    Args:
        present: the job of the worker on each GPU that has one.
        wanted: the job that each GPU is given to.
    """
    return SlotChange(
        tuple(sorted(gpu for gpu, job in present.items() if wanted.get(gpu) != job)),
        tuple(sorted((gpu, job) for gpu, job in wanted.items() if present.get(gpu) != job)),
    )


def worker_moves(spans: Iterable[Span]) -> tuple[int, int]:
    """The workers that join and that are told to leave in a simulated run; those of a job that ends do neither."""
    of_job: dict[str, list[Span]] = {}
    for span in sorted(spans, key=lambda each: each.start_ns):
        of_job.setdefault(span.job, []).append(span)
    joins = leaves = 0
    for mine in of_job.values():
        joins += len(mine[0].gpus)
        for former, later in itertools.pairwise(mine):
            stays = former.end_ns == later.start_ns
            kept = len({*former.gpus} & {*later.gpus}) if stays else 0
            joins += len(later.gpus) - kept
            leaves += len(former.gpus) - kept
    return joins, leaves
