"""Admission control: numbers a process's collective operations, and holds them back for a time shift or at the gate.

There is none where neither a placement service nor a gate is configured.
"""

from __future__ import annotations

import logging
import time

from collectives.agent.time_shift import TimeShifts
from collectives.gate.gate import Gate
from collectives.recording.operation import InFlightOperation

_log = logging.getLogger("mltcp")


class AdmissionControl:
    """Admits every collective operation of a process; sends and receives, which not all ranks issue, bypass it.

    Attributes:
        shifts: the delays that this rank applies, while the job is attached to a placement service.
        gate: the gate that large operations ask, if one is configured.
    """

    def __init__(self, shifts: TimeShifts | None = None, gate: Gate | None = None) -> None:
        self.shifts = shifts
        self.gate = gate
        self._failed = False

    def admit(self, operation: InFlightOperation) -> None:
        """Number the operation and block the calling thread until it may be submitted."""
        number = operation.number = next(operation.group.numbers)
        called_ns = time.monotonic_ns()
        shifts, gate = self.shifts, self.gate
        try:
            if shifts is not None:
                shifts.enter(operation.group.name, number)
            if gate is not None:
                gate.enter(operation)
        except Exception:
            if not self._failed:
                self._failed = True
                _log.exception("mltcp: an operation could not be held back; the job continues")
        operation.held_ns = time.monotonic_ns() - called_ns
