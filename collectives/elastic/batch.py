"""The part of a training step that one rank does."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Batch:
    """The samples of one rank in one step, and how its loss counts.

    Attributes:
        indices: of the samples in the data set, int64; in the short last step of an epoch there may be none.
        epoch: from 0.
        step_samples: samples of all ranks in this step.
        samples_done: samples of the job before this step, over all epochs.
        ranks: number of ranks.
        ends_epoch: whether this is the last step of the epoch; the place to step a schedule that counts epochs.
    """

    indices: torch.Tensor
    epoch: int
    step_samples: int
    samples_done: int
    ranks: int
    ends_epoch: bool

    def __len__(self) -> int:
        return len(self.indices)

    def mean(self, total: torch.Tensor) -> torch.Tensor:
        """The loss to call ``backward()`` on, of the sum of the losses of this rank's samples.

        The mean over ranks of its gradients, which DistributedDataParallel and FSDP compute, is the gradient of the
        mean over all samples of the step, also where ranks have different numbers of samples or none.
        """
        return total * (self.ranks / self.step_samples)
