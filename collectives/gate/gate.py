"""The gate: before a large operation this rank asks whether it may go, and afterwards tells that it is done.

Whoever asks is held until the gate says go: the thread that calls the operation, also for an asynchronous one. A gate
that dies, or says nothing for the stated time, is open: operations go without asking until it is back.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable
from functools import lru_cache
from weakref import WeakSet

from collectives.core.gate_settings import GateSettings
from collectives.core.notices import rank_on_host, say_once
from collectives.gate.channel import GateChannel, GateRefusedError
from collectives.group.completion import AnyWork

_log = logging.getLogger("mltcp")

RETRY_S = 2.0
"""A gate that is away is looked for this often."""

GATED = frozenset({"all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter"})
"""The operations that ask: those whose payload is the same on all ranks, so that all of them ask or none."""

Counter = Callable[[], int]


class GatePass:
    """One operation that may go; `done` is to be called when it has ended, however it did, once or more."""

    __slots__ = ("_gate", "group", "number", "round", "work")

    def __init__(self, gate: Gate, group: int, number: int, round_: int) -> None:
        self._gate = gate
        self.group = group
        self.number = number
        self.round = round_
        self.work: AnyWork | None = None

    def done(self) -> None:
        """The operation has ended on this rank."""
        self._gate.end(self)


class Gate:
    """This rank's way to the gate. Each thread that asks, or tells, has a connection of its own.

    Args:
        settings: where the gate is.
        job: the job's name.
        instance: what tells this run of it from others.
        rank: of this process.
        iterations: how many iterations have finished, for gates that know how many the job has.
    """

    def __init__(
        self, settings: GateSettings, job: str, instance: str, rank: int, iterations: Counter = lambda: 0
    ) -> None:
        self.settings = settings
        self._hello = {"job": job, "instance": instance, "rank": rank, "token": settings.token}
        self._rank = rank
        self._iterations = iterations
        self._lock = threading.Lock()
        self._own = threading.local()
        self._channels: WeakSet[GateChannel] = WeakSet()
        self._under_way: dict[GatePass, None] = {}
        self._round = 0
        self._open = False
        self._closing = threading.Event()
        try:
            self._channel()
        except (OSError, GateRefusedError) as error:
            self._fail(error, self._round)

    @property
    def is_open(self) -> bool:
        """Whether operations go without asking, since no gate answers."""
        return self._open

    def enter(self, name: str, group: str, number: int, nbytes: int, size: int) -> GatePass | None:
        """Ask for an operation, if it has to; returns when it may go, with what is to be called at its end."""
        if self._open or nbytes < self.settings.threshold_bytes or size < 2 or name not in GATED:
            return None
        round_, key = self._round, _number_of(group)
        try:
            self._end_completed()
            self._channel().ask(key, number, nbytes, size, self._iterations())
        except (OSError, GateRefusedError) as error:
            self._fail(error, round_)
            return None
        except BaseException:
            # Interrupted while it waits: the gate is still to answer, on a connection that cannot be used any more.
            self._own.channel.shut()
            self._own.round = None
            raise
        passed = GatePass(self, key, number, round_)
        self._under_way[passed] = None
        return passed

    def end(self, passed: GatePass) -> None:
        """An operation has ended on this rank: the gate hears of it once."""
        if passed not in self._under_way:
            return
        # Two threads may come to know of it at the same time.
        with self._lock:
            if self._under_way.pop(passed, self) is self:
                return
        passed.work = None
        if self._open or passed.round != self._round:
            return
        try:
            self._channel().tell_done(passed.group, passed.number)
        except (OSError, GateRefusedError) as error:
            self._fail(error, passed.round)

    def close(self) -> None:
        """Ask no more; the gate sees that this rank has left."""
        with self._lock:
            self._open = True
            self._round += 1
        self._closing.set()
        self._shut()

    def forget(self) -> None:
        """In a forked child: it must not keep its parent's connections alive."""
        for channel in list(self._channels):
            channel.close()

    def _shut(self) -> None:
        with self._lock:
            channels = list(self._channels)
            self._channels.clear()
        for channel in channels:
            channel.shut()

    def _end_completed(self) -> None:
        """What has completed is said before the next question, or that would seem to belong to it."""
        for passed in list(self._under_way):
            if passed.work is not None and passed.work.is_completed():
                passed.done()

    # -- connections -------------------------------------------------------------------------------------------------

    def _channel(self) -> GateChannel:
        """This thread's connection."""
        if getattr(self._own, "round", None) != self._round:
            round_ = self._round
            channel = GateChannel(self.settings.address, self._hello, self.settings.timeout_s)
            with self._lock:
                self._channels.add(channel)
            self._own.channel, self._own.round = channel, round_
        found: GateChannel = self._own.channel
        return found

    def _fail(self, error: Exception, round_: int) -> None:
        """The gate does not answer: it is open from now on, for all threads."""
        with self._lock:
            if self._open or round_ != self._round:
                return
            self._open = True
            self._round += 1
            self._under_way.clear()
        self._shut()
        why = "it says nothing" if isinstance(error, TimeoutError) else str(error) or "it is gone"
        say_once(
            "gate",
            f"mltcp: the gate at {self.settings.address} does not answer ({why}); operations go without it",
            rank_on_host(self._rank),
        )
        if not isinstance(error, GateRefusedError):
            threading.Thread(target=self._return, name="mltcp-gate", daemon=True).start()

    def _return(self) -> None:
        """On a thread: wait until the gate is back."""
        while not self._closing.wait(RETRY_S):
            try:
                GateChannel(self.settings.address, self._hello, self.settings.timeout_s).close()
            except OSError:
                continue
            except GateRefusedError as error:
                _log.warning("mltcp: the gate does not take this rank back: %s", error)
                return
            with self._lock:
                self._open = self._closing.is_set()
            _log.info("mltcp: the gate is back")
            return


@lru_cache(maxsize=1024)
def _number_of(group: str) -> int:
    """What stands for a process group's name, on all of its ranks."""
    return int.from_bytes(hashlib.blake2b(group.encode(), digest_size=8).digest(), "little")
