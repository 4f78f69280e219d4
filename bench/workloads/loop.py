"""The iteration loop of one rank: hold, run, record; on the clock that all processes of a host share."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class IterationRecord:
    """One iteration as its rank saw it, in CLOCK_MONOTONIC seconds; the hold came before the start."""

    start_s: float
    end_s: float
    hold_s: float
    submitted_bytes: int

    @property
    def duration_s(self) -> float:
        """From the start of the forward phase until the last all-reduce is done."""
        return self.end_s - self.start_s


IterationCallback = Callable[[int, IterationRecord], None]


@dataclass(frozen=True)
class TrainingOutcome:
    """What a training comes to on one rank: a loss for each iteration, and a checksum of the parameters."""

    losses: tuple[float, ...]
    parameters_sha256: str


class Workload(Protocol):
    """What a rank repeats, and what it comes to in the end (None for a replay)."""

    def iterate(self, iteration: int, hold_s: float) -> IterationRecord:
        """Run one iteration now; `hold_s`, which has passed already, is only recorded."""

    def outcome(self) -> TrainingOutcome | None:
        """The result of the training so far."""


def sleep_until(deadline_s: float) -> None:
    """Sleep until CLOCK_MONOTONIC says `deadline_s`; return at once where that is past."""
    remaining_s = deadline_s - time.monotonic()
    if remaining_s > 0:
        time.sleep(remaining_s)


def run_iterations(
    workload: Workload,
    iterations: int,
    hold_s: Callable[[int], float],
    on_iteration: IterationCallback,
) -> tuple[IterationRecord, ...]:
    """Run the iterations one after the other and tell `on_iteration` about each."""
    records = []
    for iteration in range(iterations):
        held_s = hold_s(iteration)
        sleep_until(time.monotonic() + held_s)
        record = workload.iterate(iteration, held_s)
        records.append(record)
        on_iteration(iteration, record)
    return tuple(records)
