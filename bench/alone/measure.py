"""Measures the rounds of a table that a folder does not have yet."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bench.alone.cell import Cell
from bench.alone.own_controls import OwnControls, own_controls
from bench.alone.round import AloneRound, base_of, round_from_line, round_key, run_round
from bench.compare.approach import Policy, parse_policy
from bench.compare.results.journal import writable
from bench.lab.network import namespaces
from mltcp.core.errors import UsageError
from mltcp.ebpf.congestion_controls import MLTCP_CONTROLS
from placement.experiments.run_journal import open_journal


@dataclass(frozen=True)
class AlonePlan:
    """A table.

    Attributes:
        cells: its rows.
        controls: those of MLTCP, each compared with its base in the same round.
        rounds: of each cell.

    Raises:
        UsageError: there is nothing to measure.
    """

    cells: tuple[Cell, ...]
    controls: tuple[Policy, ...]
    rounds: int

    def __post_init__(self) -> None:
        for policy in self.controls:
            if policy.control not in MLTCP_CONTROLS:
                raise UsageError(
                    f"--controls: expected {', '.join(MLTCP_CONTROLS)}, with or without modifiers, got {policy.name}"
                )
        if self.rounds < 1:
            raise UsageError(f"--rounds: expected 1 or more, got {self.rounds}")
        names = [cell.name for cell in self.cells]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise UsageError(f"--cells: expected each name once, got {twice} twice")
        if not any(self.compared(cell) for cell in self.cells):
            raise UsageError(
                "--cells, --controls: expected a cell with a base of one of the controls, got none"
            )

    def compared(self, cell: Cell) -> tuple[Policy, ...]:
        """The controls that a cell compares with their bases."""
        return tuple(policy for policy in self.controls if base_of(policy) in cell.bases)

    def arms(self, cell: Cell) -> tuple[Policy, ...]:
        """The policies of a cell: each control after its base, which several may share."""
        found: dict[str, Policy] = {}
        for policy in self.compared(cell):
            base = base_of(policy)
            found.setdefault(base, parse_policy(base, base))
            found[policy.name] = policy
        return tuple(found.values())

    @property
    def steps(self) -> int:
        """The number of arms of all rounds."""
        return self.rounds * sum(len(self.arms(cell)) for cell in self.cells)


def measured(plan: AlonePlan, folder: Path, step: Callable[[str, int], None]) -> list[AloneRound]:
    """All rounds of a plan, cell by cell; each round of all cells is run before the next one.

    Args:
        plan: what is measured.
        folder: where each round is kept as soon as it is done, and from which rounds are taken.
        step: called before each arm that is missing, with a description and how many are missing then.

    Raises:
        NotAvailableError: not root, or the kernel lacks something; not if the folder has all rounds.
        MltcpError: an arm failed; the rounds before it are kept.
    """
    with writable(folder):
        pass
    points = [
        (round_key(cell, plan.arms(cell), number), cell, number)
        for number in range(plan.rounds)
        for cell in plan.cells
        if plan.arms(cell)
    ]
    with open_journal(folder, round_from_line) as journal, ExitStack() as stack:

        @cache
        def controls() -> OwnControls:
            namespaces.require_privileges()
            policies = [policy.control for cell in plan.cells for policy in plan.arms(cell)]
            return stack.enter_context(own_controls(policies))

        missing = [point for point in points if point[0] not in journal.runs]
        count = _Countdown(sum(len(plan.arms(cell)) for _, cell, _ in missing), step)
        for _, cell, number in missing:
            journal.add(run_round(cell, plan.arms(cell), number, controls(), count))
        return [journal.runs[key] for key, _, _ in points]


class _Countdown:
    def __init__(self, left: int, step: Callable[[str, int], None]) -> None:
        self._left, self._step = left, step

    def __call__(self, description: str) -> None:
        self._step(description, self._left)
        self._left -= 1
