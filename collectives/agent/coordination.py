"""What steers this process's operations from outside: a placement service's time shifts, a gate, both, or neither."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable

from torch.distributed import PrefixStore, Store

from collectives.agent.agent import Agent
from collectives.agent.announcements import Announcer, Listener
from collectives.agent.time_shift import Hold, TimeShifts
from collectives.core.settings import Settings
from collectives.gate.gate import Gate
from collectives.group.admission import Entrance
from collectives.recording.recorder import Recorder

_KEYS = "mltcp/run"


class Steering:
    """What the settings ask for, from the first process group to the end of the process.

    Time shifts need the store of the job's groups, and so end with the last group, and begin anew with the next.
    """

    def __init__(self, settings: Settings, recorder: Recorder) -> None:
        self._settings = settings
        self._recorder = recorder
        self._gate: Gate | None = None
        self._shifts: _Shifts | None = None
        self._turn = 0

    def begin(self, store: Store, rank: int, ranks: int) -> None:
        """A process group is there, whose ranks meet at this store; what has begun already goes on."""
        settings, recorder = self._settings, self._recorder
        if settings.gate is not None and self._gate is None:
            instance = _instance(store, rank)
            self._gate = Gate(settings.gate, settings.job, instance, rank, lambda: recorder.count)
        if settings.placement and self._shifts is None and ranks > 0:
            self._shifts = _Shifts(settings, recorder, store, rank, ranks, self._turn)
            self._turn += 1
            recorder.after_last_group = self.end_shifts
        recorder.entrance = Entrance(None if self._shifts is None else self._shifts.holds, self._gate)

    def end_shifts(self) -> None:
        """The last group is going, and with it its store: nothing may wait there any more."""
        self._recorder.entrance = None if self._gate is None else Entrance(None, self._gate)
        if self._shifts is not None:
            self._shifts.close()
            self._shifts = None

    def close(self) -> None:
        """Hold nothing back any more."""
        self.end_shifts()
        self._recorder.entrance = None
        if self._gate is not None:
            self._gate.close()

    def forget(self) -> None:
        """In a forked child: all of it is the parent's."""
        if self._gate is not None:
            self._gate.forget()


class _Shifts:
    """The holds of this rank, and who brings them: the agent on rank 0, a listener on any other."""

    def __init__(
        self, settings: Settings, recorder: Recorder, store: Store, rank: int, ranks: int, turn: int
    ) -> None:
        self._outcome: Callable[[Hold, str], object] = lambda hold, outcome: None
        self.holds = TimeShifts(lambda hold, outcome: self._outcome(hold, outcome))
        self._ends: list[Callable[[], object]] = [self.holds.close]
        if rank == 0:
            self._lead(settings, recorder, Announcer(store, ranks, turn), ranks)
        else:
            self._follow(recorder, Listener(store, rank, self.holds.add, turn))

    def _lead(self, settings: Settings, recorder: Recorder, announcer: Announcer, ranks: int) -> None:
        from collectives.agent.placement_service import PlacementService

        agent = Agent(PlacementService(settings.placement), settings.job, ranks, self.holds, announcer)
        self._outcome = agent.outcome
        self._ends += [recorder.on_iteration_end.add(agent.iteration_ended), agent.close]

    def _follow(self, recorder: Recorder, listener: Listener) -> None:
        def tell(hold: Hold, outcome: str) -> None:
            # Not on the thread that was held: the store may take its time.
            recorder.completion.run(lambda: listener.say(hold.sequence, outcome))

        self._outcome = tell
        self._ends.append(listener.close)

    def close(self) -> None:
        for end in self._ends:
            end()


def steering_of(settings: Settings, recorder: Recorder) -> Steering | None:
    """What the settings ask for; None if that is nothing."""
    return Steering(settings, recorder) if settings.gate is not None or settings.placement else None


def _instance(store: Store, rank: int) -> str:
    """What all processes of this run, and none of another, call it."""
    own = PrefixStore(_KEYS, store)
    if rank == 0:
        launched = os.environ.get("TORCHELASTIC_RUN_ID", "")[:32]
        own.set("instance", f"{launched}-{secrets.token_hex(4)}".lstrip("-"))
    return bytes(own.get("instance")).decode()
