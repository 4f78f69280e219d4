"""Loading of a rank's samples ahead of the step that trains on them, by torch's DataLoader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from collectives.elastic.batches import Division, EpochOrder, StepRange, step_range
from mltcp.core.errors import MltcpError, UsageError


@dataclass(frozen=True)
class RemainingSteps:
    """The samples of one rank in each remaining step, as a batch sampler.

    Attributes:
        samples_done: where the job is.
        total_samples: where it ends.
        epoch_samples: samples in an epoch.
        step_samples: samples of all ranks in a full step.
        division: of steps.
        order: of the samples.
    """

    samples_done: int
    total_samples: int
    epoch_samples: int
    step_samples: int
    division: Division
    order: EpochOrder

    def __iter__(self) -> Iterator[list[int]]:
        for step, part in self.parts():
            yield self.order.indices(step, part, self.division.parts).tolist()

    def parts(self) -> Iterator[tuple[StepRange, int]]:
        """The parts of this rank, each by its step and number."""
        done = self.samples_done
        while done < self.total_samples:
            step = step_range(done, self.epoch_samples, self.step_samples)
            for part in self.division.mine:
                yield step, part
            done += step.end - step.begin


class StreamParts(IterableDataset[list[Any]]):
    """The samples of one rank's parts, out of a stream that every rank reads from the beginning of each epoch.

    What lies before the position of the job is skipped: by the stream's own ``skip(n)`` if it has one, as those of
    Hugging Face's datasets, else by reading. A stream with ``set_epoch`` is told the epoch.

    Args:
        stream: of as many samples in each epoch as the training has, or more; in the same order on all ranks.
        steps: of the rank.
    """

    def __init__(self, stream: Any, steps: RemainingSteps) -> None:
        self._stream, self._steps = stream, steps

    def __iter__(self) -> Iterator[list[Any]]:
        epoch, position = -1, 0
        samples: Iterator[Any] = iter(())
        for step, part in self._steps.parts():
            if step.epoch != epoch:
                epoch, position = step.epoch, step.begin
                samples = self._from(epoch, position)
            wanted = step.part(part, self._steps.division.parts)
            found = list(islice(samples, wanted.start - position, wanted.stop - position))
            if len(found) < len(wanted):
                raise MltcpError(
                    f"stream: expected {self._steps.epoch_samples} samples in epoch {epoch}, "
                    f"got fewer than {wanted.stop}"
                )
            position = wanted.stop
            yield found

    def _from(self, epoch: int, position: int) -> Iterator[Any]:
        if hasattr(self._stream, "set_epoch"):
            self._stream.set_epoch(epoch)
        if position and hasattr(self._stream, "skip"):
            return iter(self._stream.skip(position))
        return islice(iter(self._stream), position, None)


@dataclass(frozen=True)
class CollateSome:
    """Collates the samples of a step; of none, as the short last step of an epoch may have on a rank, it makes None."""

    collate: Callable[[list[Any]], Any]

    def __call__(self, samples: list[Any]) -> Any:
        """The collated samples, or None."""
        return self.collate(samples) if samples else None


def prefetched(dataset: Dataset[Any], steps: RemainingSteps, **options: Any) -> Iterator[Any]:
    """The collated samples of each remaining step; `options` are those of DataLoader, such as ``num_workers``.

    Raises:
        UsageError: a stream is to be read by several workers, each of which would read all of it.
    """
    collate = CollateSome(options.pop("collate_fn", None) or default_collate)
    if not isinstance(dataset, IterableDataset):
        yield from DataLoader(dataset, batch_sampler=steps, collate_fn=collate, **options)
        return
    if options.get("num_workers", 0) > 1:
        raise UsageError(f"num_workers: expected 0 or 1 for a stream, got {options['num_workers']}")
    yield from DataLoader(StreamParts(dataset, steps), batch_size=None, collate_fn=collate, **options)
