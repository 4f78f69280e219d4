"""The order of the samples in each epoch, and their division into steps and ranks.

Sample i of an epoch's permutation belongs to the job, not to a rank: with N ranks a step takes the next N * batch
samples, whatever the earlier steps took. So the position of a job is one number, the samples done over all epochs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 63) - 1

HIGHEST_SEED = 2**31 - 1


@dataclass(frozen=True)
class StepRange:
    """The samples of one step of all ranks: positions `begin` to `end` (exclusive) of the epoch's order."""

    epoch: int
    begin: int
    end: int

    def of_rank(self, rank: int, ranks: int) -> range:
        """The positions of one rank: consecutive ones, of which two ranks have equally many or differ by one.

        In a full step every rank has its whole batch. In the short last step of an epoch a rank may have none.
        """
        count, more = divmod(self.end - self.begin, ranks)
        begin = self.begin + rank * count + min(rank, more)
        return range(begin, begin + count + (rank < more))


def step_range(samples_done: int, epoch_samples: int, step_samples: int) -> StepRange:
    """The next step of a job that has done so many samples; it ends with the epoch at the latest.

    Args:
        samples_done: over all epochs.
        epoch_samples: samples in an epoch.
        step_samples: samples in a full step, N * batch.
    """
    epoch, begin = divmod(samples_done, epoch_samples)
    return StepRange(epoch, begin, min(epoch_samples, begin + step_samples))


class EpochOrder:
    """The permutation of the samples in each epoch, a function of the seed and the epoch alone.

    Args:
        epoch_samples: samples in an epoch.
        seed: 0 to `HIGHEST_SEED`.
    """

    def __init__(self, epoch_samples: int, seed: int) -> None:
        self._samples, self._seed = epoch_samples, seed
        self._epoch, self._order = -1, torch.empty(0, dtype=torch.int64)

    def indices(self, step: StepRange, rank: int, ranks: int) -> torch.Tensor:
        """The samples of a rank in a step, as an int64 tensor of indices into the data set."""
        if step.epoch != self._epoch:
            generator = torch.Generator().manual_seed(_mixed(self._seed, step.epoch, 0))
            self._order, self._epoch = torch.randperm(self._samples, generator=generator), step.epoch
        positions = step.of_rank(rank, ranks)
        return self._order[positions.start : positions.stop]


def step_seed(seed: int, samples_done: int, rank: int) -> int:
    """The seed of a rank's random numbers (dropout, augmentation) in the step that begins at this position."""
    return _mixed(seed, samples_done, rank + 1)


def _mixed(seed: int, position: int, stream: int) -> int:
    """A seed for each (position, stream), by the finalizer of SplitMix64."""
    value = (seed * _GOLDEN + position * 0xBF58476D1CE4E5B9 + stream * 0x94D049BB133111EB) & (2**64 - 1)
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
    return (value ^ (value >> 31)) & _MASK
