"""A record, within the training's own state, of which samples were trained on in which epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from collectives.elastic.batches import Batch


class SampleCounts:
    """How often each sample was trained on in each epoch, as the surviving parameters have it.

    It is saved and restored with the model, and counts what the ranks really loaded. So it finds a sample that was
    lost or seen twice independently of how the library keeps its position.
    """

    def __init__(self, samples: int, epochs: int) -> None:
        self._counts = torch.zeros(epochs, samples, dtype=torch.int32)

    def add(self, batch: Batch) -> None:
        """Count the samples of a step on all ranks; every rank must call it."""
        step = torch.zeros(self._counts.shape[1], dtype=torch.int32)
        step.index_add_(0, batch.indices, torch.ones(len(batch), dtype=torch.int32))
        if dist.is_initialized() and batch.ranks > 1:
            dist.all_reduce(step)
        self._counts[batch.epoch] += step

    def faults(self, samples_done: int) -> list[str]:
        """The faults in the counts of a job that has done so many samples; empty if there are none."""
        samples = self._counts.shape[1]
        whole, part = divmod(samples_done, samples)
        found = []
        for epoch, counts in enumerate(self._counts):
            expected = samples if epoch < whole else part if epoch == whole else 0
            twice, seen = int((counts > 1).sum()), int((counts > 0).sum())
            if twice:
                found.append(f"epoch {epoch}: {twice} samples were seen more than once")
            if seen != expected:
                found.append(f"epoch {epoch}: expected {expected} samples, got {seen}")
        return found

    def state_dict(self) -> Mapping[str, Any]:
        """The counts."""
        return {"counts": self._counts}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the counts. Raises ValueError if they are of other numbers of samples or epochs."""
        counts = state_dict["counts"]
        if counts.shape != self._counts.shape:
            raise ValueError(f"counts: expected {list(self._counts.shape)}, got {list(counts.shape)}")
        self._counts.copy_(counts)
