"""The result of a sweep: every run classified, and the JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.compare.holding.outcome import HoldingRun, Outcome, holding_run
from bench.compare.holding.sweep import MISMATCH, held_slowdown, mismatch_of
from bench.compare.results.figures import pooled_yardsticks
from bench.compare.results.runs import ISOLATED, Measured

SCHEMA = "mltcp-bench/holding/1"


@dataclass(frozen=True)
class Cell:
    """One policy at one mismatch: its runs in the order of the repeats."""

    approach: str
    mismatch: float
    runs: tuple[HoldingRun, ...]

    def count(self, outcome: Outcome) -> int:
        """The number of runs with this outcome."""
        return sum(run.outcome is outcome for run in self.runs)


@dataclass(frozen=True)
class HoldingResult:
    """A sweep.

    Attributes:
        jobs: how many share the link.
        cells: by mismatch, then in the order of the policies.
        setting: the conditions that all mismatches share.
    """

    jobs: int
    cells: tuple[Cell, ...]
    setting: dict[str, Any]

    @property
    def approaches(self) -> list[str]:
        """The policies, in order."""
        return list(dict.fromkeys(cell.approach for cell in self.cells))

    @property
    def mismatches(self) -> list[float]:
        """The mismatches, in order."""
        return list(dict.fromkeys(cell.mismatch for cell in self.cells))

    def cell(self, approach: str, mismatch: float) -> Cell:
        """The runs of a policy at a mismatch."""
        return next(one for one in self.cells if (one.approach, one.mismatch) == (approach, mismatch))


def holding_result(measured: Sequence[Measured]) -> HoldingResult:
    """Classify every run of a sweep, over the median of all isolated runs of its mismatch.

    Raises:
        UsageError: a measurement is not of a sweep.
        MltcpError: a job has no isolated run.
    """
    cells: list[Cell] = []
    for one in measured:
        mismatch = mismatch_of(one.setting, one.name)
        yardsticks = pooled_yardsticks(one.runs)
        contended = [run for run in one.runs if run.approach != ISOLATED]
        for approach in dict.fromkeys(run.approach for run in contended):
            runs = [run for run in contended if run.approach == approach]
            found = tuple(holding_run(run, yardsticks.get(run.repeat, {}), mismatch) for run in runs)
            cells.append(Cell(approach, mismatch, found))
    first = measured[0]
    jobs = max(len(run.jobs) for run in first.runs)
    return HoldingResult(jobs, tuple(cells), {k: v for k, v in first.setting.items() if k != MISMATCH})


def document(result: HoldingResult) -> dict[str, Any]:
    """The result as a JSON document."""
    return {
        "schema": SCHEMA,
        "jobs": result.jobs,
        "setting": result.setting,
        "mismatches": [
            {
                "mismatch": mismatch,
                "bound": round(held_slowdown(mismatch, result.jobs), 6),
                "policies": [_policy(result.cell(approach, mismatch)) for approach in result.approaches],
            }
            for mismatch in result.mismatches
        ],
    }


def _policy(cell: Cell) -> dict[str, Any]:
    return {
        "policy": cell.approach,
        **{outcome.value: cell.count(outcome) for outcome in Outcome},
        "repeats": [
            {k: v for k, v in asdict(run).items() if k not in ("approach", "mismatch")} for run in cell.runs
        ],
    }
