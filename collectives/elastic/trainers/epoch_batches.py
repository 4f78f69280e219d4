"""The batches of an elastic training as a trainer of another library takes them: an iterable with a length."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, SequentialSampler

from collectives.elastic.batches import Batch, check_divisor
from collectives.elastic.training import ElasticTraining
from mltcp.core.errors import UsageError, shown

_KEPT = (
    "collate_fn",
    "num_workers",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "prefetch_factor",
    "persistent_workers",
)


@dataclass(frozen=True)
class LoaderSource:
    """What a script's DataLoader loads, and how.

    Attributes:
        dataset: by index, or a stream.
        samples: in an epoch.
        batch: samples of a micro-batch.
        shuffle: whether its order is random.
        options: further ones of the DataLoader.
    """

    dataset: Any
    samples: int
    batch: int
    shuffle: bool
    options: dict[str, Any]

    @classmethod
    def of(cls, loader: DataLoader[Any], samples: int | None = None) -> LoaderSource:
        """Those of a DataLoader, also of one that Accelerate has prepared.

        Args:
            loader: of the script.
            samples: in an epoch, of a stream.

        Raises:
            UsageError: the batch size, or the number of samples, is not to be known.
        """
        if not isinstance(loader, DataLoader):
            raise UsageError(f"loader: expected a DataLoader, got {shown(type(loader).__name__)}")
        sampler: Any = loader.batch_sampler
        while (inner := getattr(sampler, "batch_sampler", None)) is not None:
            sampler = inner
        batch = getattr(sampler, "batch_size", None) or loader.batch_size
        if batch is None:
            raise UsageError("loader: expected a DataLoader with a batch_size")
        if isinstance(loader.dataset, IterableDataset) and samples is None:
            raise UsageError("samples: expected the number of samples in an epoch of a stream, got None")
        shuffle = not isinstance(getattr(sampler, "sampler", None), SequentialSampler)
        options = {name: getattr(loader, name) for name in _KEPT}
        return cls(loader.dataset, samples or len(loader.dataset), batch, shuffle, options)  # type: ignore[arg-type]

    def arguments(self) -> dict[str, Any]:
        """Those of `ElasticTraining` that stand for it: whole steps only, whose gradients the trainer reduces."""
        return {
            **{"samples": self.samples, "batch": self.batch, "shuffle": self.shuffle},
            **{"drop_last": True, "in_order": False},
        }


class EpochBatches:
    """In each pass, this rank's batches that are left of the epoch at hand.

    A step ends when the next one's first batch is asked for; the last one of an epoch at the next pass, or by
    `end_step`: so what a script does between epochs (schedules, evaluation) is in the checkpoint.

    Args:
        source: of the samples.
        micro_batches: in a step, on all ranks.
        ranks: number of ranks, which divides it.
        move: a batch to the device.

    Attributes:
        steps_in_epoch: whole steps of an epoch.
        batches_in_step: of this rank: the trainer accumulates gradients over so many.

    Raises:
        UsageError: the number of ranks does not divide `micro_batches`, or the samples of an epoch fill no step.
    """

    def __init__(
        self,
        source: LoaderSource,
        micro_batches: int,
        ranks: int,
        move: Callable[[Any], Any] = lambda data: data,
    ) -> None:
        check_divisor(ranks, micro_batches)
        self.steps_in_epoch = source.samples // (source.batch * micro_batches)
        self.batches_in_step = micro_batches // ranks
        if not self.steps_in_epoch:
            raise UsageError(
                f"samples: expected those of a step, {micro_batches} * {source.batch}, got {source.samples}"
            )
        self._source, self._move = source, move
        self._training: ElasticTraining | None = None
        self._data: Iterator[Any] = iter(())
        self._epoch: Iterator[Batch] | None = None

    def begin(self, training: ElasticTraining) -> None:
        """Take the batches of a training, which has been entered."""
        self._training = training
        self._data = training.prefetched(self._source.dataset, **self._source.options)

    @property
    def batches_done(self) -> int:
        """The batches of the epoch at hand that were done before its next step."""
        assert self._training is not None
        return self._training.steps_done % self.steps_in_epoch * self.batches_in_step

    def __len__(self) -> int:
        """The batches of a whole epoch on this rank."""
        return self.steps_in_epoch * self.batches_in_step

    def __iter__(self) -> Iterator[Any]:
        assert self._training is not None
        self.end_step()
        self._epoch = self._training.epoch()
        for batch in self._epoch:
            yield self._move(next(self._data))
            if batch.ends_epoch:
                return

    def end_step(self) -> None:
        """End the step whose batches have been taken, if any: the job may be saved, or stopped."""
        epoch, self._epoch = self._epoch, None
        if epoch is not None:
            next(epoch, None)
