"""Loading of a rank's samples ahead of the step that trains on them, by torch's DataLoader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader, Dataset, default_collate

from collectives.elastic.batches import EpochOrder, step_range


@dataclass(frozen=True)
class RemainingSteps:
    """The samples of one rank in each remaining step, as a batch sampler.

    Attributes:
        samples_done: where the job is.
        total_samples: where it ends.
        epoch_samples: samples in an epoch.
        seed: of the epochs' orders.
        batch: samples of a rank in a full step.
        rank: this one.
        ranks: their number.
    """

    samples_done: int
    total_samples: int
    epoch_samples: int
    seed: int
    batch: int
    rank: int
    ranks: int

    def __iter__(self) -> Iterator[list[int]]:
        order = EpochOrder(self.epoch_samples, self.seed)
        done = self.samples_done
        while done < self.total_samples:
            step = step_range(done, self.epoch_samples, self.ranks * self.batch)
            yield order.indices(step, self.rank, self.ranks).tolist()
            done += step.end - step.begin


@dataclass(frozen=True)
class CollateSome:
    """Collates the samples of a step; of none, as the short last step of an epoch may have on a rank, it makes None."""

    collate: Callable[[list[Any]], Any]

    def __call__(self, samples: list[Any]) -> Any:
        """The collated samples, or None."""
        return self.collate(samples) if samples else None


def prefetched(dataset: Dataset[Any], steps: RemainingSteps, **options: Any) -> Iterator[Any]:
    """The collated samples of each remaining step; `options` are those of DataLoader, such as ``num_workers``."""
    collate = CollateSome(options.pop("collate_fn", None) or default_collate)
    yield from DataLoader(dataset, batch_sampler=steps, collate_fn=collate, **options)
