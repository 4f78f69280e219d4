"""The guests of a soak that are there now, each a process of its own."""

from __future__ import annotations

import multiprocessing
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess

from bench.soak.guests import run_guest, users_of
from bench.soak.world import World

_LONGEST_S = 20.0
_KILLED = 0.3
"""The share of guests that are killed at some moment of their life."""


@dataclass
class _Present:
    process: ForkServerProcess
    kind: str
    until_s: float


class Population:
    """Starts guests and ends them.

    Args:
        world: where they live.
        draw: by which they are chosen.
        kinds: of guests.
        most: guests at a time.
    """

    def __init__(self, world: World, draw: random.Random, kinds: Sequence[str], most: int) -> None:
        self.started: Counter[str] = Counter()
        self.killed = 0
        self._world = world
        self._draw = draw
        self._kinds, self._most = list(kinds), most
        self._present: list[_Present] = []
        # Forked by a process without threads; gRPC and the watches have some here.
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["bench.soak.guests"])

    def step(self) -> None:
        """Remove those that have ended, kill those whose time is over, and perhaps start another one."""
        now_s = time.monotonic()
        for each in self._present:
            if each.until_s < now_s and each.process.is_alive():
                each.process.kill()
                self.killed += 1
        for each in [each for each in self._present if not each.process.is_alive()]:
            self._forget(each)
        if len(self._present) < self._most:
            self._start()

    def end(self) -> None:
        """Kill all of them."""
        for each in list(self._present):
            each.process.kill()
            self._forget(each)

    def _start(self) -> None:
        draw = self._draw
        kind = draw.choice(self._kinds)
        task = self._world.guest(kind, draw.randrange(1 << 48), draw.choice(users_of(kind)))
        process = self._context.Process(target=run_guest, args=(task,), daemon=True)
        process.start()
        life_s = draw.uniform(0, 3) if draw.random() < _KILLED else _LONGEST_S
        self._present.append(_Present(process, kind, time.monotonic() + life_s))
        self.started[kind] += 1

    def _forget(self, each: _Present) -> None:
        each.process.join()
        each.process.close()
        self._present.remove(each)
