"""Coordination with other jobs: time shifts from a placement service, a gate, both, or neither."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed import PrefixStore, Store
from torch.distributed import distributed_c10d as c10d

from collectives.agent.agent import Agent
from collectives.agent.announcements import Announcer, Listener
from collectives.agent.time_shift import TimeShifts
from collectives.core.settings import Settings
from collectives.gate.gate import Gate
from collectives.group.admission import AdmissionControl
from collectives.recording.recorder import Recorder
from mltcp.core.delay import Delay

_KEYS = "mltcp/run"
_LONGEST_RUN_ID = 32


def store_of_run(store: Store) -> Store:
    """A store that all ranks share: the default group's, once there is one; until then `store`, that of a new group.

    The default group may be one that this backend does not wrap, so that the first group here is of some ranks only.
    """
    return c10d._get_default_store() if dist.is_initialized() else store


def identifier_of_run(store: Store) -> str:
    """An identifier shared by all processes of this run, and by no other run; `store` is shared by the same processes.

    The first process that asks makes it, and none waits for another.
    """
    launched = os.environ.get("TORCHELASTIC_RUN_ID", "")[:_LONGEST_RUN_ID]
    made = f"{launched}-{secrets.token_hex(4)}".lstrip("-")
    return bytes(PrefixStore(_KEYS, store).compare_set("instance", "", made)).decode()


# -- coordination -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _RankShifts:
    """This rank's time shifts, and the calls that stop the agent or listener which feeds them, in order."""

    shifts: TimeShifts
    stops: tuple[Callable[[], object], ...]

    def close(self) -> None:
        for stop in self.stops:
            stop()


class Coordination:
    """The gate and the time shifts of a process, from its first process group to its end.

    Time shifts are announced through the store of the job's groups: they end with the last group, and start again
    with the next one.

    Attributes:
        admission: where the process's operations are held back.
    """

    def __init__(self, settings: Settings, recorder: Recorder) -> None:
        self.admission = AdmissionControl()
        self._settings = settings
        self._recorder = recorder
        self._rank_shifts: _RankShifts | None = None
        self._turn = 0

    def begin(self, store: Store, rank: int, ranks: int) -> None:
        """Start what is configured and not running yet; `store` is one that all ranks share, as long as it exists."""
        settings, recorder = self._settings, self._recorder
        if settings.gate is not None and self.admission.gate is None:
            instance = identifier_of_run(store)
            self.admission.gate = Gate(settings.gate, settings.job, instance, rank, lambda: recorder.count)
        if settings.placement and self._rank_shifts is None and ranks > 0:
            if rank == 0:
                self._rank_shifts = _lead(settings, recorder, Announcer(store, ranks, self._turn), ranks)
            else:
                self._rank_shifts = _follow(recorder, store, rank, self._turn)
            self._turn += 1
            self.admission.shifts = self._rank_shifts.shifts

    def end_shifts(self) -> None:
        """Stop time shifts: the last group and its store are going, and nothing may wait at the store any more."""
        self.admission.shifts = None
        if self._rank_shifts is not None:
            self._rank_shifts.close()
            self._rank_shifts = None

    def close(self) -> None:
        """Hold no operation back any more."""
        self.end_shifts()
        gate, self.admission.gate = self.admission.gate, None
        if gate is not None:
            gate.close()

    def forget(self) -> None:
        """In a forked child: close the connections inherited from the parent."""
        if self.admission.gate is not None:
            self.admission.gate.forget()


def coordination_of(settings: Settings, recorder: Recorder) -> Coordination | None:
    """The coordination that the settings configure; None if they configure none."""
    return Coordination(settings, recorder) if settings.gate is not None or settings.placement else None


def _lead(settings: Settings, recorder: Recorder, announcer: Announcer, ranks: int) -> _RankShifts:
    """The time shifts of rank 0, which has the agent."""
    from collectives.agent.placement_service import GrpcPlacementService

    shifts = TimeShifts(lambda delay, outcome: agent.outcome(delay, outcome))
    agent = Agent(GrpcPlacementService(settings.placement), settings.job, ranks, shifts, announcer)
    return _RankShifts(
        shifts, (shifts.close, recorder.on_iteration_end.add(agent.iteration_ended), agent.close)
    )


def _follow(recorder: Recorder, store: Store, rank: int, turn: int) -> _RankShifts:
    """The time shifts of another rank, which listens for rank 0's announcements."""

    def acknowledge(delay: Delay, outcome: str) -> None:
        # Not on the thread that was held: the store may be slow.
        recorder.completion.run(lambda: listener.acknowledge(delay.sequence, outcome))

    shifts = TimeShifts(acknowledge)
    listener = Listener(store, rank, shifts.add, turn)
    return _RankShifts(shifts, (shifts.close, listener.close))
