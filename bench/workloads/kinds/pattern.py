"""One rank's iterations by pattern: timers for computing, and real collectives of real tensors."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol

import torch
import torch.distributed as dist

import collectives
from bench.workloads.patterns import Pattern, PatternWork
from collectives.group.torch_version import all_gather_single, reduce_scatter_single

_ELEMENT_BYTES = 4


class Exchange(Protocol):
    """The collectives of an iteration, with the time for computing between them."""

    def run(self, is_last: bool) -> bool:
        """Run an iteration; whether rank 0 has said that it is the last one.

        What rank 0 says travels as the first element of the data, so that it costs no message.
        """
        ...


def exchange_of(work: PatternWork, rank: int, ranks: int) -> Exchange:
    """The exchange of a rank."""
    return _KINDS[work.pattern](work, rank, ranks)


def iterate(exchange: Exchange, is_last: bool) -> tuple[float, float, bool]:
    """Run an iteration; its beginning and end, in CLOCK_MONOTONIC seconds, and whether it was the last one."""
    begin_s = time.monotonic()
    with collectives.iteration():
        was_last = exchange.run(is_last)
    return begin_s, time.monotonic(), was_last


class _AllReduce:
    def __init__(self, work: PatternWork, rank: int, ranks: int) -> None:
        self._compute_s, self._speaks = work.compute_s, rank == 0
        self._gradients = torch.zeros(_elements(work.size_bytes, 1))

    def run(self, is_last: bool) -> bool:
        time.sleep(self._compute_s)
        self._gradients.zero_()
        self._gradients[0] = float(is_last and self._speaks)
        dist.all_reduce(self._gradients)
        return bool(self._gradients[0] > 0)


class _Sharded:
    def __init__(self, work: PatternWork, rank: int, ranks: int) -> None:
        self._layers, self._speaks, self._ranks = work.layers, rank == 0, ranks
        self._step_s = work.compute_s / (3 * work.layers)
        shard = _elements(work.size_bytes, ranks * work.layers)
        self._shard, self._gradient = torch.zeros(shard), torch.zeros(shard)
        self._layer, self._gradients = torch.zeros(shard * ranks), torch.zeros(shard * ranks)

    def run(self, is_last: bool) -> bool:
        for _ in range(self._layers):
            all_gather_single(self._layer, self._shard)
            time.sleep(self._step_s)
        self._gradients.zero_()
        self._gradients.view(self._ranks, -1)[:, 0] = float(is_last and self._speaks)
        for _ in range(self._layers):
            all_gather_single(self._layer, self._shard)
            time.sleep(2 * self._step_s)
            reduce_scatter_single(self._gradient, self._gradients)
        return bool(self._gradient[0] > 0)


class _AllToAll:
    def __init__(self, work: PatternWork, rank: int, ranks: int) -> None:
        self._layers, self._speaks, self._ranks = work.layers, rank == 0, ranks
        self._step_s = work.compute_s / work.layers
        tokens = _elements(work.size_bytes, ranks * work.layers) * ranks
        self._sent, self._received = torch.zeros(tokens), torch.zeros(tokens)

    def run(self, is_last: bool) -> bool:
        self._sent.view(self._ranks, -1)[:, 0] = float(is_last and self._speaks)
        for _ in range(self._layers):
            time.sleep(self._step_s)
            dist.all_to_all_single(self._received, self._sent)
        return bool(self._received[0] > 0)


def _elements(size_bytes: int, parts: int) -> int:
    return max(1, round(size_bytes / parts / _ELEMENT_BYTES))


_KINDS: Mapping[Pattern, Callable[[PatternWork, int, int], Exchange]] = {
    Pattern.ALL_REDUCE: _AllReduce,
    Pattern.SHARDED: _Sharded,
    Pattern.ALL_TO_ALL: _AllToAll,
}
