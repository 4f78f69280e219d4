"""What the mean response of live jobs is made of, beside what was predicted: waiting, starts and ends, and steps.

The journal of a training (`collectives.elastic.journal`) says what rank 0 did while the job held its slots. Of each
such span ``steps_ns`` is what the training took from where it was loaded to the end of its last step; everything else
that it held slots for is the cost of a start and an end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from statistics import median
from typing import Any

from mltcp.core.quantities import NS_PER_S
from placement.simulator.rates.outcome import RatesOutcome, Span

Journal = Sequence[Mapping[str, Any]]
"""The lines of a training's journal."""

TERMS = ("waiting", "starts_and_ends", "steps")


@dataclass(frozen=True)
class SpanTerms:
    """The parts of a span in the order of time, in ns; they add up to the span.

    Attributes:
        job: its name.
        gpus: how many slots it had.
        nodes: on how many nodes.
        samples: that it did.
        spawn_ns: from the placement to the first line of rank 0's program.
        import_ns: imports.
        rendezvous_ns: joining the process group.
        build_ns: model and optimizer, the run lock, and loading the checkpoint.
        steps_ns: from then to the end of the last step.
        write_ns: the last checkpoint.
        end_ns: from then until the slots were free.
        lost_ns: what a run that left no checkpoint did after it had spawned.
    """

    job: str
    gpus: int
    nodes: int
    samples: int = 0
    spawn_ns: int = 0
    import_ns: int = 0
    rendezvous_ns: int = 0
    build_ns: int = 0
    steps_ns: int = 0
    write_ns: int = 0
    end_ns: int = 0
    lost_ns: int = 0

    @property
    def overhead_ns(self) -> int:
        """All but the steps."""
        return sum(getattr(self, name) for name in PARTS if name != "steps_ns")


PARTS = tuple(each.name for each in fields(SpanTerms) if each.name.endswith("_ns"))


def span_terms(
    spans: Sequence[Span], per_node: int, epoch_ns: int, journal_of: Callable[[str], Journal]
) -> tuple[SpanTerms, ...]:
    """The terms of spans, in their order.

    Args:
        spans: of all jobs.
        per_node: slots of a node.
        epoch_ns: the moment 0 of the spans on CLOCK_MONOTONIC, which all hosts of a lab share.
        journal_of: gives the journal of a job.
    """
    journals = {job: journal_of(job) for job in {span.job for span in spans}}
    found = []
    for span in spans:
        begin_ns, end_ns = span.start_ns + epoch_ns, span.end_ns + epoch_ns
        events = {
            str(line["event"]): line
            for line in journals[span.job]
            if begin_ns <= line["monotonic_ns"] <= end_ns
        }
        nodes = len({gpu // per_node for gpu in span.gpus})
        found.append(_terms(SpanTerms(span.job, len(span.gpus), nodes), begin_ns, end_ns, events))
    return tuple(found)


def _terms(base: SpanTerms, begin_ns: int, end_ns: int, events: Mapping[str, Mapping[str, Any]]) -> SpanTerms:
    at = {name: int(line["monotonic_ns"]) for name, line in events.items()}
    spawned_ns = at.get("process", end_ns)
    if not {"process", "imported", "rendezvous", "resumed", "checkpoint"} <= set(at):
        return SpanTerms(
            *(base.job, base.gpus, base.nodes), spawn_ns=spawned_ns - begin_ns, lost_ns=end_ns - spawned_ns
        )
    write_ns = round(float(events["checkpoint"]["write_s"]) * NS_PER_S)
    return SpanTerms(
        *(base.job, base.gpus, base.nodes),
        samples=int(events["checkpoint"]["samples_done"]) - int(events["resumed"]["samples_done"]),
        spawn_ns=spawned_ns - begin_ns,
        import_ns=at["imported"] - spawned_ns,
        rendezvous_ns=at["rendezvous"] - at["imported"],
        build_ns=at["resumed"] - at["rendezvous"],
        steps_ns=at["checkpoint"] - write_ns - at["resumed"],
        write_ns=write_ns,
        end_ns=end_ns - at["checkpoint"],
    )


def pace(terms: Sequence[SpanTerms], step_ns: Callable[[SpanTerms], Fraction]) -> Fraction:
    """How many times as long as the model says steps took, over all spans; 1 if none did any.

    Args:
        terms: of the spans.
        step_ns: what the model gives for the samples of a span.
    """
    expected = sum((step_ns(each) for each in terms if each.samples), Fraction(0))
    taken = sum(each.steps_ns for each in terms if each.samples)
    return Fraction(taken) / expected if expected and taken else Fraction(1)


def paces(terms: Sequence[SpanTerms], step_ns: Callable[[SpanTerms], Fraction]) -> dict[str, float]:
    """`pace` by where jobs ran: on one slot, on several of one node, across nodes."""
    places = {
        "one_slot": [each for each in terms if each.gpus == 1],
        "one_node": [each for each in terms if each.gpus > 1 and each.nodes == 1],
        "across_nodes": [each for each in terms if each.nodes > 1],
    }
    return {name: float(pace(found, step_ns)) for name, found in places.items() if found}


def mean_terms_s(outcome: RatesOutcome, steps_ns: int | None = None) -> dict[str, float]:
    """The mean response of an outcome by its terms, whose sum it is, in seconds.

    Args:
        outcome: measured, or predicted.
        steps_ns: of all spans, as measured; None: what is left of a span after its `Span.hold_ns`.
    """
    table, jobs = outcome.table, outcome.trace.jobs
    held = int((table.end_ns - table.start_ns).sum())
    steps = held - int(table.hold_ns.sum()) if steps_ns is None else steps_ns
    response = sum(end - job.arrival_ns for end, job in zip(outcome.end_ns, jobs, strict=True))
    parts = (response - held, held - steps, steps)
    return {name: part / len(jobs) / NS_PER_S for name, part in zip(TERMS, parts, strict=True)}


def medians_s(terms: Sequence[SpanTerms]) -> dict[str, float]:
    """The median of each part over the spans, in seconds."""
    return {
        f"{name.removesuffix('_ns')}_s": median(getattr(each, name) for each in terms) / NS_PER_S
        for name in PARTS
        if terms
    }
