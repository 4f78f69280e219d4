"""How rank 0 tells the other ranks of a job what to hold, and hears what became of it, through the job's store.

Each rank waits for a key of its own, on a connection of its own to the store and on a thread of its own: a waiting
connection serves nobody else. Nobody polls. Rank R's N-th announcement is at ``R/N``; what it made of the decision S is
at ``said/S/R``.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from torch.distributed import DistError, PrefixStore, Store

from collectives.agent.time_shift import HELD, Hold

_log = logging.getLogger("mltcp")

_KEYS = "mltcp/shift"
_LONG = timedelta(days=7)
_END = "end"
_LEAVE_S = 2.0
_LEAVE = timedelta(seconds=1)


class Announcer:
    """Rank 0's side.

    Args:
        store: of the job.
        ranks: how many there are.
        turn: how many announcers there were at this store before; the same for the listeners.
    """

    def __init__(self, store: Store, ranks: int, turn: int = 0) -> None:
        self._store: Store = PrefixStore(f"{_KEYS}/{turn}", store).clone()  # type: ignore[attr-defined]
        self._others = range(1, ranks)
        self._count = 0

    def announce(self, hold: Hold) -> None:
        """Tell all other ranks; DistError where the store is gone."""
        self._tell(json.dumps(asdict(hold)))

    def all_have_said(self, sequence: int) -> bool:
        """Whether all other ranks have said what they made of this decision."""
        return not self._others or bool(self._store.check([_said(sequence, rank) for rank in self._others]))

    def late_ranks(self, sequence: int) -> tuple[int, ...]:
        """The other ranks that learned of a decision too late, or have said nothing of it."""
        return tuple(rank for rank in self._others if self._heard(sequence, rank) != HELD)

    def _heard(self, sequence: int, rank: int) -> str:
        key = _said(sequence, rank)
        return bytes(self._store.get(key)).decode() if self._store.check([key]) else ""

    def forget(self, sequence: int) -> None:
        """Clear away what was said of a decision."""
        for rank in self._others:
            with suppress(DistError, RuntimeError):
                self._store.delete_key(_said(sequence, rank))

    def close(self) -> None:
        """Let the other ranks wait no longer: the store may be gone after this, and who still waits would complain."""
        with suppress(DistError, RuntimeError):
            self._tell(_END)
            self._store.wait([_gone(rank) for rank in self._others], _LEAVE)

    def _tell(self, text: str) -> None:
        for rank in self._others:
            self._store.set(f"{rank}/{self._count}", text)
        self._count += 1


class Listener:
    """The side of any other rank: `on_hold` is called on the thread that listens."""

    def __init__(self, store: Store, rank: int, on_hold: Callable[[Hold], object], turn: int = 0) -> None:
        own: Any = PrefixStore(f"{_KEYS}/{turn}", store)
        self._waiting: Store = own.clone()
        self._speaking: Store = own.clone()
        self._rank = rank
        self._on_hold = on_hold
        self._count = 0
        self._closing = False
        self._thread = threading.Thread(target=self._listen, name="mltcp-shifts", daemon=True)
        self._thread.start()

    def say(self, sequence: int, outcome: str) -> None:
        """Tell rank 0 what this rank made of a decision."""
        with suppress(DistError, RuntimeError):
            self._speaking.set(_said(sequence, self._rank), outcome)

    def close(self) -> None:
        """Listen no more: what wakes the thread is the announcement that it waits for."""
        self._closing = True
        if self._thread.is_alive():
            with suppress(DistError, RuntimeError):
                self._speaking.set(f"{self._rank}/{self._count}", _END)
            self._thread.join(_LEAVE_S)

    def _listen(self) -> None:
        try:
            while not self._closing and (text := self._next()) != _END:
                self._on_hold(Hold(**json.loads(text)))
            self._waiting.set(_gone(self._rank), "")
        except (DistError, RuntimeError) as error:
            _log.debug("mltcp: time shifts are no longer heard of: %s", error)

    def _next(self) -> str:
        key = f"{self._rank}/{self._count}"
        self._waiting.wait([key], _LONG)
        text = bytes(self._waiting.get(key)).decode()
        self._waiting.delete_key(key)
        self._count += 1
        return text


def _gone(rank: int) -> str:
    return f"gone/{rank}"


def _said(sequence: int, rank: int) -> str:
    return f"said/{sequence}/{rank}"
