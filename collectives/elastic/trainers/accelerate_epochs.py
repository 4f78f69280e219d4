"""Elastic training in a loop of Accelerate's users.

::

    net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    for epoch, batches in elastic_epochs(accelerator, loader, 3, "checkpoints", micro_batches=8):
        for inputs, targets in batches:
            with accelerator.accumulate(net):
                ...
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from collectives.elastic.trainers.epoch_batches import EpochBatches, LoaderSource
from collectives.elastic.training import ElasticTraining
from mltcp.core.errors import UsageError

if TYPE_CHECKING:
    from accelerate import Accelerator


def elastic_epochs(
    accelerator: Accelerator,
    loader: DataLoader[Any],
    epochs: int,
    directory: str | os.PathLike[str],
    *,
    micro_batches: int,
    samples: int | None = None,
    **options: Any,
) -> Iterator[tuple[int, EpochBatches]]:
    """The epochs that are left, each with the batches that are left in it, on this rank.

    `accelerator` accumulates gradients over `micro_batches` / N batches. A schedule that it has prepared advances once
    an optimizer's step, whatever N. Its model, optimizer, schedules, scaler and the objects registered for
    checkpointing are restored and saved.

    Args:
        accelerator: that has prepared one model and one optimizer.
        loader: of the script, prepared or not; of its dataset, in batches of its size, at random unless it is in order.
        epochs: to train.
        directory: of the checkpoints, on a file system that all hosts share.
        micro_batches: in each step, on all ranks, whose number divides it.
        samples: in an epoch, of a stream.
        options: further ones of `ElasticTraining`, such as ``async_checkpoints``.

    Raises:
        UsageError: something else has been prepared, or a value is out of range.
    """
    models, optimizers = accelerator._models, accelerator._optimizers
    if len(models) != 1 or len(optimizers) != 1:
        raise UsageError(
            f"accelerator: expected one prepared model and one optimizer, got {len(models)} and {len(optimizers)}"
        )
    source = LoaderSource.of(loader, samples)
    batches = EpochBatches(
        source, micro_batches, accelerator.num_processes, lambda data: _moved(accelerator, data)
    )
    with ElasticTraining(
        directory,
        model=models[0],
        optimizer=optimizers[0].optimizer,
        epochs=epochs,
        micro_batches=micro_batches,
        others=_others(accelerator),
        **{**source.arguments(), **options},
    ) as training:
        accelerator.gradient_accumulation_steps = batches.batches_in_step
        batches.begin(training)
        while not training.complete:
            yield training.steps_done // batches.steps_in_epoch, batches
            batches.end_step()


def _others(accelerator: Accelerator) -> dict[str, Any]:
    others: dict[str, Any] = {}
    for number, schedule in enumerate(accelerator._schedulers):
        schedule.split_batches = True  # else each of its steps counts for N
        others[f"schedule {number}"] = schedule
    if accelerator.scaler is not None:
        others["scaler"] = accelerator.scaler
    others.update((f"registered {number}", each) for number, each in enumerate(accelerator._custom_objects))
    return others


def _moved(accelerator: Accelerator, data: Any) -> Any:
    from accelerate.utils import send_to_device

    return send_to_device(data, accelerator.device)
