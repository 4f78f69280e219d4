"""What an operation passes before it goes to the transport: numbered, held for a time shift, asked for at the gate.

There is none where neither a placement service nor a gate is configured.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from collectives.agent.time_shift import TimeShifts
from collectives.gate.gate import Gate, GatePass
from collectives.group.completion import AnyWork

if TYPE_CHECKING:
    from collectives.recording.recorder import GroupLabel

_log = logging.getLogger("mltcp")


class Ticket:
    """An operation that has passed.

    Attributes:
        number: among the collective operations of its group, from 1 on; the same on all of its ranks.
        held_ns: how long it was held back.
    """

    __slots__ = ("_passed", "held_ns", "number")

    def __init__(self, number: int, held_ns: int, passed: GatePass | None) -> None:
        self.number = number
        self.held_ns = held_ns
        self._passed = passed

    def follow(self, work: AnyWork) -> None:
        """This is the operation's work, which may be asked whether it is complete."""
        if self._passed is not None:
            self._passed.work = work

    def done(self) -> None:
        """The operation has ended on this rank, well or not."""
        if self._passed is not None:
            self._passed.done()


class Entrance:
    """The one way in for a process's collective operations; sends and receives, which not all ranks do, go past it."""

    def __init__(self, shifts: TimeShifts | None, gate: Gate | None) -> None:
        self.shifts = shifts
        self.gate = gate
        self._failed = False

    def __call__(self, name: str, group: GroupLabel, nbytes: int) -> Ticket:
        """Hold an operation back as long as need be; the caller's thread waits here."""
        number = next(group.numbers)
        came_ns = time.monotonic_ns()
        passed = None
        try:
            if self.shifts is not None:
                self.shifts.enter(group.name, number)
            if self.gate is not None:
                passed = self.gate.enter(name, group.name, number, nbytes, group.size)
        except Exception:
            if not self._failed:
                self._failed = True
                _log.exception("mltcp: an operation could not be held back; the job goes on")
        return Ticket(number, time.monotonic_ns() - came_ns, passed)
