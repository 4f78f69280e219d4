"""A user's share of the daemon's time, and the connections that wait for it."""

from __future__ import annotations

import time
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

BURST_S = 0.01
"""The share of so long may be used at once: what a user may hold others up for, beside his last request."""

FORGOTTEN_S = 1.0
"""Nobody waits for longer than this for what he has used."""

Waiting = TypeVar("Waiting")
Result = TypeVar("Result")


@dataclass
class UserShare(Generic[Waiting]):
    """What a user has used of the daemon's time, less what has become his since.

    Attributes:
        per_s: the user's seconds in each second; None: as many as there are.
        waiting: connections on which a request waits for the user's time, first in first out.
        to_pass: connections on which descriptors wait for those of another connection of the user.
        passing: whether descriptors of the user are being looked at.
        of_all: what all uids without an account have together, if this is one of them.
    """

    per_s: float | None
    waiting: deque[Waiting] = field(default_factory=deque)
    to_pass: deque[Waiting] = field(default_factory=deque)
    passing: bool = False
    of_all: UserShare[Waiting] | None = None
    _used_s: float = 0.0
    _since_s: float = 0.0

    def charge(self, used_s: float, now_s: float) -> None:
        """Note the time that a request has taken."""
        if self.per_s is not None:
            self._used_s = min(self._left_s(now_s) + used_s, self.per_s * FORGOTTEN_S)
            self._since_s = now_s
        if self.of_all is not None:
            self.of_all.charge(used_s, now_s)

    def wait_s(self, now_s: float) -> float:
        """How long the next request has to wait; 0: not at all."""
        if self.per_s is None:
            return 0.0
        of_all_s = 0.0 if self.of_all is None else self.of_all.wait_s(now_s)
        return max(of_all_s, self._left_s(now_s) / self.per_s - BURST_S)

    def is_idle(self, now_s: float) -> bool:
        """Whether there is nothing to remember."""
        return not (self.waiting or self.to_pass or self.passing or self._left_s(now_s))

    def _left_s(self, now_s: float) -> float:
        return max(0.0, self._used_s - (now_s - self._since_s) * (self.per_s or 0.0))


@types.coroutine
def metered(
    coroutine: Coroutine[Any, Any, Result], charge: Callable[[float], None]
) -> Generator[Any, Any, Result]:
    """Await a coroutine, and charge the processor time that it takes itself, without what it waits for."""
    step = partial(coroutine.send, None)
    while True:
        began_s = time.thread_time()
        try:
            awaited = step()
        except StopIteration as end:
            result: Result = end.value
            return result
        finally:
            charge(time.thread_time() - began_s)
        try:
            sent = yield awaited
        except GeneratorExit:
            coroutine.close()  # which may have been collected, and so closed, before
            raise
        except BaseException as error:
            step = partial(coroutine.throw, error)
        else:
            step = partial(coroutine.send, sent)
