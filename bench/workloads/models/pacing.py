"""Pacing of a model's blocks, so that the computing of an iteration takes as long as asked on few processors."""

from __future__ import annotations

import time

import torch

from bench.workloads.job import sleep_until
from bench.workloads.model_work import FORWARD


class Pacer:
    """Makes each of the blocks of a pass take an equal share of the pass's computing time.

    A block's gradients are computed when its share of the backward pass is over, so that they are sent when a slower
    processor would have them. Whatever the blocks really compute is part of their time. Where blocks communicate
    themselves (`exchanging`), only the processor's time is, and what they wait for comes on top.

    Args:
        compute_s: of an iteration; 0: no pacing.
        blocks: of a pass.
        passes: forward passes of an iteration, each followed by a backward pass.
        exchanging: whether blocks communicate.
    """

    def __init__(self, compute_s: float, blocks: int, passes: int = 1, exchanging: bool = False) -> None:
        self._forward_s = compute_s * FORWARD / (blocks * passes)
        self._backward_s = compute_s * (1 - FORWARD) / (blocks * passes)
        self._exchanging = exchanging
        self._last = blocks - 1
        self._since_s = 0.0

    def begin(self) -> None:
        """Note that a pass begins now."""
        self._since_s = self._now_s()

    def after(self, block: int, output: torch.Tensor) -> torch.Tensor:
        """Wait until the block's share of the forward pass is over; its backward pass will wait likewise."""
        if not self._forward_s:
            return output
        self._wait(self._forward_s)
        if output.requires_grad:
            output.register_hook(lambda gradient: self._backward(block))
        return output

    def _backward(self, block: int) -> None:
        if block == self._last:
            self.begin()
        self._wait(self._backward_s)

    def _wait(self, share_s: float) -> None:
        if self._exchanging:
            time.sleep(max(0.0, share_s - (self._now_s() - self._since_s)))
            self._since_s = self._now_s()
        else:
            self._since_s += share_s
            sleep_until(self._since_s)

    def _now_s(self) -> float:
        return time.thread_time() if self._exchanging else time.monotonic()
