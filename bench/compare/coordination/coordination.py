"""The coordination of the jobs of one run: the placement service, a gate, both, or neither."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

from bench.compare.approaches.approach import Approach
from bench.compare.coordination.coordinator import Coordinator, PlacedDemand
from bench.compare.coordination.gate import SOCKET as GATE_SOCKET
from bench.compare.coordination.gate import gated
from bench.compare.coordination.service import SOCKET as SERVICE_SOCKET
from bench.compare.coordination.service import Network, served
from bench.compare.results.runs import Shift


class Coordination:
    """The coordinators of a run, as one."""

    def __init__(self, coordinators: Sequence[Coordinator]) -> None:
        self.coordinators = tuple(coordinators)

    def placed(self, job: PlacedDemand) -> None:
        """Tell the coordinators of a job before its ranks start."""
        for each in self.coordinators:
            each.placed(job)

    def released(self, job: str) -> None:
        """Tell the coordinators that the ranks of a job have ended."""
        for each in self.coordinators:
            each.released(job)

    @property
    def variables(self) -> tuple[tuple[str, str], ...]:
        """Environment variables of every rank."""
        return tuple(variable for each in self.coordinators for variable in each.variables)

    @property
    def decisions_s(self) -> tuple[float, ...]:
        """The duration of each decision so far."""
        return tuple(taken_s for each in self.coordinators for taken_s in each.decisions_s)

    def shifts(self, epoch_s: float) -> tuple[Shift, ...]:
        """The time shifts so far; times are from a moment of CLOCK_MONOTONIC on."""
        found = [shift for each in self.coordinators for shift in each.shifts]
        return tuple(replace(shift, at_s=max(0.0, shift.at_s - epoch_s)) for shift in found)


def sockets_of(approach: Approach) -> tuple[str, ...]:
    """The names of the sockets at which ranks reach the coordinators of an approach."""
    gate = () if approach.gate is None else (GATE_SOCKET,)
    return (*gate, *((SERVICE_SOCKET,) if approach.cassini else ()))


@contextmanager
def coordinated(
    approach: Approach,
    network: Network,
    rate_bps: int,
    speeds: Mapping[str, Fraction] | None = None,
    directory: Path | None = None,
) -> Iterator[Coordination]:
    """Run the gate and the placement service that an approach needs, for as long as the block lasts.

    Args:
        approach: the approach.
        network: of the placement service.
        rate_bps: the rate of a link of speed 1.
        speeds: of links that have another speed.
        directory: where their sockets are, as `sockets_of` names them; None: in one of its own.

    Raises:
        MltcpError: one of them did not start.
    """
    with ExitStack() as stack:
        if directory is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mltcp-coordination-")))
        coordinators: list[Coordinator] = []
        if approach.gate is not None:
            coordinators.append(stack.enter_context(gated(approach.gate, rate_bps, directory, speeds)))
        if approach.cassini:
            coordinators.append(stack.enter_context(served(network, directory)))
        yield Coordination(coordinators)
