"""Messages between the agent and the placement service, and announcements of delays between the ranks of a job."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Protocol, TypeAlias

from torch.distributed import DistError, PrefixStore, Store

from collectives.agent.time_shift import HELD
from mltcp.core.delay import Decision, Delay
from mltcp.core.errors import MltcpError

# The messages between a job's agent and the placement service, independent of the transport.
#
# Times are whole nanoseconds; those on the service's clock are marked as such.


class StreamError(MltcpError):
    """The placement service cannot be reached, or the stream to it broke."""


@dataclass(frozen=True)
class IterationReport:
    """A finished iteration.

    Attributes:
        number: of the iteration.
        began_ns: when it began to send, on the service's clock.
        duration_ns: how long it took, without the time for which operations were held back.
    """

    number: int
    began_ns: int
    duration_ns: int


@dataclass(frozen=True)
class Applied:
    """A delay was applied.

    The delayed operation waits for its last rank, so one rank that waits delays the whole job.

    Attributes:
        sequence: of the decision.
        iteration: the first one that began later.
        late: ranks that received the delay too late, or have not acknowledged it.
    """

    sequence: int
    iteration: int
    late: tuple[int, ...] = ()


@dataclass(frozen=True)
class ProfileReport:
    """The job's demand: the phases of an iteration, each of (nanoseconds, bits per second)."""

    phases: tuple[tuple[int, int], ...]


Report: TypeAlias = IterationReport | Applied | ProfileReport


class ServiceStream(Protocol):
    """A stream between the agent of one job and the service; every method may raise StreamError."""

    def clock_ns(self) -> int:
        """The service's clock."""

    def send(self, report: Report) -> None:
        """Queue a report; does not wait for the service."""

    def decisions(self) -> Iterator[Decision]:
        """The service's decisions as they come, until the stream ends."""

    def close(self) -> None:
        """End the stream, from any thread."""


class PlacementService(Protocol):
    """A placement service that agents can attach to."""

    def open(self, job: str, ranks: int) -> ServiceStream:
        """Open the stream of a job; raises StreamError if the service is not reachable."""


# -- announcements ------------------------------------------------------------------------------
#
# Announcements of delays by rank 0 to the other ranks of a job, and their acknowledgements, through
# the job's store.
#
# Each rank waits for a key of its own, on a thread and a store connection of its own, because a
# connection that waits serves no other request. Nothing is polled. The N-th announcement to rank R is
# at ``R/N``; the outcome of the decision S on rank R is at ``said/S/R``.


_log = logging.getLogger("mltcp")

_KEYS = "mltcp/shift"
_LONG = timedelta(days=7)
_END = "end"
_JOIN_S = 2.0
_LEAVE = timedelta(seconds=1)


class Announcer:
    """The announcing side, on rank 0.

    Args:
        store: the job's store.
        ranks: number of ranks of the job.
        turn: how many announcers this store has had before; listeners must be given the same number.
    """

    def __init__(self, store: Store, ranks: int, turn: int = 0) -> None:
        self._store: Store = PrefixStore(f"{_KEYS}/{turn}", store).clone()  # type: ignore[attr-defined]
        self._others = range(1, ranks)
        self._count = 0

    def announce(self, delay: Delay) -> None:
        """Send a delay to all other ranks; raises DistError if the store is gone."""
        self._send(json.dumps(asdict(delay)))

    def all_acknowledged(self, sequence: int) -> bool:
        """Whether all other ranks have acknowledged this decision."""
        return not self._others or bool(
            self._store.check([_outcome(sequence, rank) for rank in self._others])
        )

    def late_ranks(self, sequence: int) -> tuple[int, ...]:
        """The other ranks that received a decision too late, or have not acknowledged it."""
        return tuple(rank for rank in self._others if self._outcome_of(sequence, rank) != HELD)

    def _outcome_of(self, sequence: int, rank: int) -> str:
        key = _outcome(sequence, rank)
        return bytes(self._store.get(key)).decode() if self._store.check([key]) else ""

    def forget(self, sequence: int) -> None:
        """Delete the acknowledgements of a decision."""
        for rank in self._others:
            with suppress(DistError, RuntimeError):
                self._store.delete_key(_outcome(sequence, rank))

    def close(self) -> None:
        """Stop all listeners: the store may be gone after this, and a rank that still waits there would log errors."""
        with suppress(DistError, RuntimeError):
            self._send(_END)
            self._store.wait([_gone(rank) for rank in self._others], _LEAVE)

    def _send(self, text: str) -> None:
        for rank in self._others:
            self._store.set(f"{rank}/{self._count}", text)
        self._count += 1


class Listener:
    """The receiving side, on any rank but 0.

    Args:
        store: the job's store.
        rank: this process's.
        on_delay: is called with each announced delay, on the listening thread.
        turn: that of the announcer.
    """

    def __init__(self, store: Store, rank: int, on_delay: Callable[[Delay], object], turn: int = 0) -> None:
        own: Any = PrefixStore(f"{_KEYS}/{turn}", store)
        self._waiting: Store = own.clone()
        self._speaking: Store = own.clone()
        self._rank = rank
        self._on_delay = on_delay
        self._count = 0
        self._closing = False
        self._thread = threading.Thread(target=self._listen, name="mltcp-shifts", daemon=True)
        self._thread.start()

    def acknowledge(self, sequence: int, outcome: str) -> None:
        """Report to rank 0 the outcome of a decision on this rank."""
        with suppress(DistError, RuntimeError):
            self._speaking.set(_outcome(sequence, self._rank), outcome)

    def close(self) -> None:
        """Stop listening: the thread is woken by the announcement that it waits for, set by this rank itself."""
        self._closing = True
        if self._thread.is_alive():
            with suppress(DistError, RuntimeError):
                self._speaking.set(f"{self._rank}/{self._count}", _END)
            self._thread.join(_JOIN_S)

    def _listen(self) -> None:
        try:
            while not self._closing and (text := self._next()) != _END:
                self._on_delay(Delay(**json.loads(text)))
            self._waiting.set(_gone(self._rank), "")
        except (DistError, RuntimeError) as error:
            _log.debug("mltcp: time shifts are no longer received: %s", error)

    def _next(self) -> str:
        key = f"{self._rank}/{self._count}"
        self._waiting.wait([key], _LONG)
        text = bytes(self._waiting.get(key)).decode()
        self._waiting.delete_key(key)
        self._count += 1
        return text


def _gone(rank: int) -> str:
    return f"gone/{rank}"


def _outcome(sequence: int, rank: int) -> str:
    return f"said/{sequence}/{rank}"
