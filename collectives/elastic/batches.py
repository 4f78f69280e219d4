"""Batches of a training whose number of ranks changes: their samples, division, and learning rate."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from mltcp.core.errors import UsageError, shown


@dataclass(frozen=True)
class Batch:
    """The samples of one rank in one step, or in one micro-batch of it, and how its loss counts.

    Attributes:
        indices: of the samples in the data set, int64; in the short last step of an epoch there may be none.
        epoch: from 0.
        step_samples: samples of all ranks in this step.
        samples_done: samples of the job before this step, over all epochs.
        ranks: number of ranks that have samples of their own.
        ends_epoch: whether this is the last batch of the epoch; the place to step a schedule that counts epochs.
        ends_step: whether the optimizer steps after this batch: always, unless a step has several micro-batches.
        part: number of the micro-batch in its step; without micro-batches the rank.
        averaged: whether gradients are averaged over ranks, as by DistributedDataParallel, or summed.
    """

    indices: torch.Tensor
    epoch: int
    step_samples: int
    samples_done: int
    ranks: int
    ends_epoch: bool
    ends_step: bool = True
    part: int = 0
    averaged: bool = True

    def __len__(self) -> int:
        return len(self.indices)

    def mean(self, total: torch.Tensor) -> torch.Tensor:
        """The loss to call ``backward()`` on, of the sum of the losses of this rank's samples.

        The mean over ranks of its gradients, which DistributedDataParallel and FSDP compute, is the gradient of the
        mean over all samples of the step, also where ranks have different numbers of samples or none. The gradients of
        several micro-batches are added up.
        """
        return total * ((self.ranks if self.averaged else 1) / self.step_samples)


# -- learning rates -----------------------------------------------------------------------------


@dataclass(frozen=True)
class BatchScaling:
    """The factor (N * batch / reference) ** exponent on the learning rate of every parameter group.

    The optimizer and its schedule keep the rate for the reference batch; the factor is applied during the optimizer's
    step only. So a checkpoint has no trace of N in it, and any schedule works, also one with a lowest rate of its own.
    The short last step of an epoch has the factor of a full step.

    Attributes:
        reference: samples in a step for which the script's learning rate is meant.
        exponent: 1 linear, 0.5 square root, 0 none.

    Raises:
        UsageError: the reference is less than 1, or the exponent is not a number from 0 to 1.
    """

    reference: int
    exponent: float

    def __post_init__(self) -> None:
        if type(self.reference) is not int or self.reference < 1:
            raise UsageError(f"reference: expected 1 or more samples, got {shown(self.reference)}")
        if not (math.isfinite(self.exponent) and 0 <= self.exponent <= 1):
            raise UsageError(f"exponent: expected 0 to 1, got {shown(self.exponent)}")

    def factor(self, step_samples: int) -> float:
        """The factor for steps of so many samples."""
        return float((step_samples / self.reference) ** self.exponent)


def linear_in_batch(reference: int) -> BatchScaling:
    """Learning rate proportional to N * batch (Goyal et al., 2017), for SGD."""
    return BatchScaling(reference, 1.0)


def root_of_batch(reference: int) -> BatchScaling:
    """Learning rate proportional to the square root of N * batch, for Adam and its kin."""
    return BatchScaling(reference, 0.5)


SAME_FOR_ANY_BATCH = BatchScaling(1, 0.0)
"""The learning rate does not depend on N * batch."""


# -- the order of samples -----------------------------------------------------------------------
#
# The order of the samples in each epoch, and their division into steps and ranks.
#
# Sample i of an epoch's permutation belongs to the job, not to a rank: with N ranks a step takes the
# next N * batch samples, whatever the earlier steps took. So the position of a job is one number, the
# samples done over all epochs.


_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 63) - 1

HIGHEST_SEED = 2**31 - 1


@dataclass(frozen=True)
class StepRange:
    """The samples of one step of all ranks: positions `begin` to `end` (exclusive) of the epoch's order."""

    epoch: int
    begin: int
    end: int

    def part(self, number: int, parts: int) -> range:
        """The positions of one part: consecutive ones, of which two parts have equally many or differ by one.

        In a full step every part is a whole batch. In the short last step of an epoch a part may be empty.
        """
        count, more = divmod(self.end - self.begin, parts)
        begin = self.begin + number * count + min(number, more)
        return range(begin, begin + count + (number < more))


def step_range(samples_done: int, epoch_samples: int, step_samples: int) -> StepRange:
    """The next step of a job that has done so many samples; it ends with the epoch at the latest.

    Args:
        samples_done: over all epochs.
        epoch_samples: samples in an epoch.
        step_samples: samples in a full step, N * batch.
    """
    epoch, begin = divmod(samples_done, epoch_samples)
    return StepRange(epoch, begin, min(epoch_samples, begin + step_samples))


@dataclass(frozen=True)
class Division:
    """The division of a step into parts, and which of them are a rank's: every `ranks`-th.

    Without micro-batches a step has as many parts as ranks. With them the number is the same for any number of ranks,
    so that the samples of a part, and its random numbers, do not depend on it.

    Attributes:
        parts: number of parts, a multiple of `ranks`.
        rank: that has the parts `rank`, `rank + ranks`, ...
        ranks: number of ranks.
    """

    parts: int
    rank: int
    ranks: int

    @property
    def mine(self) -> range:
        """The numbers of this rank's parts."""
        return range(self.rank, self.parts, self.ranks)


def check_divisor(ranks: int, micro_batches: int) -> None:
    """Check that all ranks get equally many micro-batches of a step; raises UsageError."""
    if micro_batches % ranks:
        divisors = ", ".join(str(each) for each in range(1, micro_batches + 1) if micro_batches % each == 0)
        raise UsageError(
            f"ranks: expected a divisor of {micro_batches} micro_batches ({divisors}), got {ranks}"
        )


class EpochOrder:
    """The order of the samples in each epoch: a permutation, which is a function of the seed and the epoch alone.

    Args:
        samples: of the data set; an epoch that is shorter takes the first ones of its order.
        seed: 0 to `HIGHEST_SEED`; None: the samples' own order, as of a stream.
    """

    def __init__(self, samples: int, seed: int | None) -> None:
        self._samples, self._seed = samples, seed
        self._epoch, self._order = -1, torch.arange(samples)

    def indices(self, step: StepRange, number: int, parts: int) -> torch.Tensor:
        """The samples of a part of a step, as an int64 tensor of indices into the data set."""
        if self._seed is not None and step.epoch != self._epoch:
            generator = torch.Generator().manual_seed(_mixed(self._seed, step.epoch, 0))
            self._order, self._epoch = torch.randperm(self._samples, generator=generator), step.epoch
        positions = step.part(number, parts)
        return self._order[positions.start : positions.stop]


def step_seed(seed: int, samples_done: int, part: int) -> int:
    """The seed of a part's random numbers (dropout, augmentation) in the step that begins at this position."""
    return _mixed(seed, samples_done, part + 1)


def _mixed(seed: int, position: int, stream: int) -> int:
    """A seed for each (position, stream), by the finalizer of SplitMix64."""
    value = (seed * _GOLDEN + position * 0xBF58476D1CE4E5B9 + stream * 0x94D049BB133111EB) & (2**64 - 1)
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
    return (value ^ (value >> 31)) & _MASK
