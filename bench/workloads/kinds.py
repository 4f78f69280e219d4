"""The kinds of work that a rank repeats: a profile, phases or a pattern to replay, or a small training."""

from __future__ import annotations

import hashlib
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import collectives
from bench.workloads.job import (
    IterationRecord,
    Pattern,
    PatternWork,
    TrainingOptions,
    TrainingOutcome,
    WrongDataError,
    sleep_until,
)
from bench.workloads.phases import PhasedWork, Stretch, next_due_s
from bench.workloads.profile import Profile
from collectives.group.torch_version import all_gather_single, reduce_scatter_single

_ELEMENT_BYTES = 4
# Contributions repeat with this period; sums of small whole numbers are exact in float32.
_PATTERN = 64


class Replay:
    """A profile's iterations as under DistributedDataParallel: a bucket's all-reduce starts when it is ready."""

    def __init__(self, profile: Profile, rank: int, ranks: int) -> None:
        self._profile = profile
        self._ready_s = tuple(profile.ready_s())
        self._rank = rank
        self._ranks = ranks
        self._buckets = [torch.ones(max(1, round(b / _ELEMENT_BYTES))) for b in profile.buckets_bytes]
        self._submitted_bytes = sum(bucket.numel() * _ELEMENT_BYTES for bucket in self._buckets)

    def iterate(self, iteration: int, hold_s: float) -> IterationRecord:
        """Run the forward phase, the backward phase with its all-reduces, and a check of the sums, which is not timed.

        Raises WrongDataError if a sum is wrong.
        """
        start_s = time.monotonic()
        for number, bucket in enumerate(self._buckets):
            bucket.fill_(contribution(self._rank, iteration, number))
        self._reduce(start_s)
        end_s = time.monotonic()
        for number, bucket in enumerate(self._buckets):
            check_sum(bucket, self._ranks, iteration, number)
        return IterationRecord(start_s, end_s, hold_s, self._submitted_bytes)

    def outcome(self) -> None:
        """A replay trains nothing."""

    def _reduce(self, start_s: float) -> None:
        works = []
        for bucket, ready_s in zip(self._buckets, self._ready_s, strict=True):
            sleep_until(start_s + ready_s)
            works.append(dist.all_reduce(bucket, async_op=True))
        for work in works:
            work.wait()


def contribution(rank: int, iteration: int, bucket: int) -> int:
    """The value of a rank in every element of a bucket; neighbouring iterations, buckets and ranks differ."""
    return (rank + 1) * (1 + (iteration * 7 + bucket) % _PATTERN)


def check_sum(tensor: torch.Tensor, ranks: int, iteration: int, bucket: int) -> None:
    """Check one element of a reduced bucket, another one in each iteration; raises WrongDataError."""
    expected = sum(contribution(rank, iteration, bucket) for rank in range(ranks))
    position = iteration * 7919 % tensor.numel()
    found = tensor[position].item()
    if found != expected:
        where = f"iteration {iteration}, bucket {bucket}, element {position}"
        raise WrongDataError(f"wrong sum in {where}: expected {expected}, got {found}")


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


_INPUTS = 16


class Training:
    """A perceptron with a square hidden layer that learns a fixed function of seeded random inputs."""

    def __init__(self, options: TrainingOptions, rank: int, ranks: int) -> None:
        self._options = options
        self._rank = rank
        self._ranks = ranks
        self._losses: list[float] = []
        torch.manual_seed(options.seed)
        self._module = perceptron(options.parameters)
        self._bytes = sum(p.numel() * p.element_size() for p in self._module.parameters())
        # All ranks build the same module from the seed, so that init_sync would only add traffic before the start.
        self._model = DistributedDataParallel(self._module, init_sync=False)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=options.learning_rate)

    def outcome(self) -> TrainingOutcome:
        """The losses on this rank's samples, and a checksum of the parameters, which is the same on all ranks."""
        digest = hashlib.sha256()
        for parameter in self._module.parameters():
            digest.update(parameter.detach().cpu().numpy().tobytes())
        return TrainingOutcome(tuple(self._losses), digest.hexdigest())

    def iterate(self, iteration: int, hold_s: float) -> IterationRecord:
        """Run the forward phase, sleep for the rest of the compute time, run backward phase and optimizer step."""
        start_s = time.monotonic()
        inputs, targets = self._samples(iteration)
        self._optimizer.zero_grad()
        loss = nn.functional.mse_loss(self._model(inputs), targets)
        sleep_until(start_s + self._options.compute_s)
        loss.backward()
        self._optimizer.step()
        end_s = time.monotonic()
        self._losses.append(loss.item())
        return IterationRecord(start_s, end_s, hold_s, self._bytes)

    def _samples(self, iteration: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator("cpu")
        generator.manual_seed((self._options.seed << 40) + iteration * self._ranks + self._rank)
        inputs = torch.randn(self._options.batch, _INPUTS, generator=generator, device="cpu")
        inputs = inputs.to(torch.get_default_device())
        return inputs, inputs.mean(dim=1, keepdim=True).mul(4).tanh()


def perceptron(parameters: int) -> nn.Sequential:
    """A multi-layer perceptron with as many parameters as fit into `parameters`."""
    # With h hidden units: (16 h + h) + (h h + h) + (h + 1) = h h + 19 h + 1.
    hidden = int((math.isqrt(19 * 19 + 4 * (parameters - 1)) - 19) / 2)
    return nn.Sequential(
        nn.Linear(_INPUTS, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1)
    )
