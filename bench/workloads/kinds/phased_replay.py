"""One rank that replays demand phases: timers for silences, and real all-reduces at the rates of the phases."""

from __future__ import annotations

import time
from collections import deque

import torch
import torch.distributed as dist

import collectives
from bench.workloads.kinds.replay import check_sum, contribution
from bench.workloads.loop import IterationRecord, sleep_until
from bench.workloads.phases import PhasedWork, Stretch, next_due_s

_ELEMENT_BYTES = 4
_UNDER_WAY = 2
"""Pieces at once, as with the buckets of DistributedDataParallel: the next one fills the link while one ends."""


class PhasedReplay:
    """Iterations of stretches; one in pieces takes longer on a busy link, but is never sent faster than its rate."""

    def __init__(self, work: PhasedWork, rank: int, ranks: int) -> None:
        self._work = work
        self._rank = rank
        self._ranks = ranks
        self._pieces = [
            [torch.ones(max(1, round(size / _ELEMENT_BYTES))) for size in stretch.pieces_bytes]
            for stretch in work.stretches
        ]
        self._tensors = [tensor for pieces in self._pieces for tensor in pieces]
        self._submitted_bytes = sum(tensor.numel() * _ELEMENT_BYTES for tensor in self._tensors)

    def iterate(self, iteration: int, hold_s: float) -> IterationRecord:
        """Run all stretches in order, and a check of the sums, which is not timed.

        Raises WrongDataError if a sum is wrong.
        """
        start_s = time.monotonic()
        for number, tensor in enumerate(self._tensors):
            tensor.fill_(contribution(self._rank, iteration, number))
        at_s = start_s
        # Without an optimizer step, the detector would take pieces of equal size for iterations.
        with collectives.iteration():
            for stretch, pieces in zip(self._work.at(iteration), self._pieces, strict=True):
                at_s = _pass(stretch, pieces, at_s)
        for number, tensor in enumerate(self._tensors):
            check_sum(tensor, self._ranks, iteration, number)
        return IterationRecord(start_s, at_s, hold_s, self._submitted_bytes)

    def outcome(self) -> None:
        """A replay trains nothing."""


def _pass(stretch: Stretch, pieces: list[torch.Tensor], begin_s: float) -> float:
    """Run a stretch that begins at `begin_s`; returns the time of its end."""
    due_s, under_way = begin_s, deque[dist.Work]()
    for piece in pieces:
        sleep_until(due_s)
        under_way.append(dist.all_reduce(piece, async_op=True))
        if len(under_way) == _UNDER_WAY:
            under_way.popleft().wait()
        due_s = next_due_s(due_s, stretch.every_s, time.monotonic())
    for work in under_way:
        work.wait()
    end_s = max(time.monotonic(), due_s) if pieces else begin_s + stretch.duration_s
    sleep_until(end_s)
    return end_s
