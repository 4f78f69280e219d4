"""The iteration loop of one rank: wait for the perturbation, run the iteration, record it (CLOCK_MONOTONIC)."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class IterationRecord:
    """One iteration of a rank, in CLOCK_MONOTONIC seconds; `hold_s` is the delay before its start."""

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
    """The result of a training on one rank: a loss for each iteration, and a checksum of the parameters."""

    losses: tuple[float, ...]
    parameters_sha256: str


class Workload(Protocol):
    """The work that a rank repeats."""

    def iterate(self, iteration: int, hold_s: float) -> IterationRecord:
        """Run one iteration now; `hold_s`, the delay before it, is only recorded."""

    def outcome(self) -> TrainingOutcome | None:
        """The result of the training so far; None for a replay."""


def sleep_until(deadline_s: float) -> None:
    """Sleep until CLOCK_MONOTONIC reaches `deadline_s`; return at once if it has passed."""
    remaining_s = deadline_s - time.monotonic()
    if remaining_s > 0:
        time.sleep(remaining_s)


def run_iterations(
    workload: Workload,
    iterations: int,
    hold_s: Callable[[int], float],
    on_iteration: IterationCallback,
) -> tuple[IterationRecord, ...]:
    """Run the iterations one after the other; `on_iteration` is called after each."""
    records = []
    for iteration in range(iterations):
        held_s = hold_s(iteration)
        sleep_until(time.monotonic() + held_s)
        record = workload.iterate(iteration, held_s)
        records.append(record)
        on_iteration(iteration, record)
    return tuple(records)
